"""Starting the ranks of a distributed model, with MLX's own launcher; the server's side, without MLX.

`mlx.launch` knows how to start a program on several hosts (by ssh, or here) and what each backend's environment is. Its
processes inherit no descriptors, so rank 0 connects back to a Unix socket whose path it is given.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from omlx.runner.process import ENVIRONMENT
from omlx.runner.protocol import Backend, Parallel

_LAUNCHER = "from mlx._distributed_utils.launch import main; main()"
_HERE = {"127.0.0.1", "localhost", "::1"}
_START_TIMEOUT_S = 60.0
_POLL_S = 0.2
_PORTS = 64
"""A ring uses one port per rank and connection; so many in a row are looked for."""


class LaunchError(Exception):
    """The processes could not be started; the message says why and what to do."""


class Host(msgspec.Struct):
    """One machine of a hostfile, as `mlx.distributed_config` writes it."""

    ssh: str
    ips: list[str] = []


class Hostfile(msgspec.Struct):
    hosts: list[Host]
    backend: str = ""


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is divided. `hostfile` "": `ranks` processes on this machine."""

    backend: Backend
    parallel: Parallel = "auto"
    hostfile: str = ""
    ranks: int = 2


def read_hosts(plan: GroupPlan) -> list[Host]:
    """The machines, first the one of rank 0. Raises LaunchError."""
    if not plan.hostfile:
        return [Host("127.0.0.1", ["127.0.0.1"])] * plan.ranks
    try:
        data = Path(plan.hostfile).read_bytes()
    except OSError as error:
        raise LaunchError(f"the hostfile {plan.hostfile} cannot be read: {error.strerror}") from error
    try:
        content = msgspec.json.decode(data, type=Hostfile | list[Host])
    except msgspec.MsgspecError as error:
        form = "is not one that mlx.distributed_config writes"
        raise LaunchError(f"the hostfile {plan.hostfile} {form}: {error}") from error
    hosts = content.hosts if isinstance(content, Hostfile) else content
    if len(hosts) < 2:
        raise LaunchError(f"the hostfile {plan.hostfile} names fewer than two hosts")
    if not hosts[0].ips:
        raise LaunchError(f"the hostfile {plan.hostfile} gives the first host no IP address")
    return hosts


def ranks_here(plan: GroupPlan) -> tuple[int, int]:
    """How many of its processes run on this machine, which is the first of the hostfile, and how many there are in all.

    Raises LaunchError.
    """
    hosts = read_hosts(plan)
    return sum(host.ssh in _HERE or host.ssh == hosts[0].ssh for host in hosts), len(hosts)


async def start(plan: GroupPlan) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start all ranks; returns the launcher and the socket of rank 0, once that has come. Raises LaunchError, OSError.

    The launcher's end is the group's: it ends the other processes when one fails, and each ends with its neighbours.
    """
    hosts = read_hosts(plan)
    with tempfile.TemporaryDirectory(prefix="omlx-group-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "server")
        listener.bind(path)
        listener.listen(1)
        listener.setblocking(False)
        # Not in a worker thread: Linux ends the processes together with the thread that started them.
        process = subprocess.Popen(  # noqa: ASYNC220
            _command(plan, hosts, path),
            # The launcher reads its standard input all the time; at an end of file it would spin.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            connection = await _rank_0(listener, process)
            _calm(process)
            return process, connection
        except BaseException:
            process.kill()
            process.wait()
            raise


def _command(plan: GroupPlan, hosts: list[Host], path: str) -> list[str]:
    """The launcher's command line; `path` is the socket that rank 0 connects to."""
    here = all(host.ssh in _HERE for host in hosts)
    control = f"{'127.0.0.1' if here else hosts[0].ips[0]}:{_free_ports(1)}"
    where = ["--hostfile", plan.hostfile] if plan.hostfile else ["--hosts", "127.0.0.1", "-n", str(plan.ranks)]
    given = {**ENVIRONMENT, "OMLX_GROUP_SECRET": secrets.token_hex(16)}
    if "PYTHONPATH" in os.environ:
        given["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return [
        *(sys.executable, "-c", _LAUNCHER, "--backend", plan.backend, *where),
        *("--starting-port", str(_free_ports(_PORTS)), "--nccl-port", str(_free_ports(1))),
        *(part for name, value in given.items() for part in ("--env", f"{name}={value}")),
        *("--python", sys.executable, "--"),
        *("-P", "-m", "omlx.runner.rank", path, plan.backend, control, plan.parallel),
    ]


async def _rank_0(listener: socket.socket, process: subprocess.Popen[bytes]) -> socket.socket:
    """Rank 0's connection, or LaunchError with the launcher's last words."""
    accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not (await asyncio.wait([accepting], timeout=_POLL_S))[0]:
                if process.poll() is not None:
                    words = (process.stdout.read() if process.stdout else b"").decode("utf-8", "replace").split("\n")
                    last = next((line.strip() for line in reversed(words) if line.strip()), "it said nothing")
                    raise LaunchError(f"the processes of the distributed model could not be started: {last}")
    except TimeoutError:
        raise LaunchError(f"no process of the distributed model came within {_START_TIMEOUT_S:.0f} s") from None
    finally:
        if not accepting.done():
            accepting.cancel()
    connection, _ = accepting.result()
    return connection


def _calm(launcher: subprocess.Popen[bytes]) -> None:
    """Stop the launcher from spinning: it waits until a process can take input, which is nearly always.

    Input that a process cannot take makes it give up on that; ours close theirs first thing.
    """
    if launcher.stdin is not None:
        launcher.stdin.write(b"\n")
        launcher.stdin.flush()


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that are free on this machine."""
    while True:
        first = 20_000 + secrets.randbelow(30_000)
        try:
            for port in range(first, first + count):
                with socket.create_server(("", port)):
                    pass
        except OSError:
            continue
        return first
