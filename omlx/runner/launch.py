"""Starting the ranks of a distributed model, with MLX's own launcher; the server's side, without MLX.

`mlx.launch` knows how to start a program on several hosts (by ssh, or here) and what each backend's environment is.
Its processes inherit no descriptors, so rank 0 connects back to a Unix socket whose path it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from omlx.messages.load_spec import Backend, Parallel
from omlx.runner.process import ENVIRONMENT, LOG_LEVEL, Started, log_level, start_with_output

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


class Machines(msgspec.Struct, frozen=True):
    """Where ranks run: a host for each, first that of rank 0: this machine. `hostfile`: its content, if any."""

    hosts: tuple[Host, ...]
    hostfile: bytes = b""

    @property
    def here(self) -> int:
        """How many of the ranks run on this machine."""
        return sum(host.ssh in _HERE or host.ssh == self.hosts[0].ssh for host in self.hosts)


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is divided, and over which machines."""

    backend: Backend
    parallel: Parallel = "auto"
    machines: Machines


def find_machines(hostfile: str, ranks: int) -> Machines:
    """Those that a hostfile names; "": this one, so many times. Raises LaunchError."""
    if not hostfile:
        return Machines((Host("127.0.0.1", ["127.0.0.1"]),) * ranks)
    how = "write it with mlx.distributed_config, or leave the setting hostfile out"
    try:
        data = Path(hostfile).read_bytes()
    except OSError as error:
        raise LaunchError(f"the hostfile {hostfile} cannot be read: {error.strerror}; {how}") from error
    try:
        content = msgspec.json.decode(data, type=Hostfile | list[Host])
    except msgspec.MsgspecError as error:
        raise LaunchError(f"the hostfile {hostfile} is none that can be used: {error}; {how}") from error
    hosts = content.hosts if isinstance(content, Hostfile) else content
    if len(hosts) < 2:
        raise LaunchError(f"the hostfile {hostfile} names fewer than two hosts; {how}")
    if not hosts[0].ips:
        raise LaunchError(f"the hostfile {hostfile} gives the first host no IP address; {how}")
    return Machines(tuple(hosts), data)


async def start(plan: GroupPlan) -> Started:
    """Start all ranks; returns the launcher and the socket of rank 0, once that has come. Raises LaunchError, OSError.

    The launcher's end is the group's: it ends the other processes when one fails, and each ends with its neighbours.
    """
    with tempfile.TemporaryDirectory(prefix="omlx-group-") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(folder) / "server"))
        listener.listen(1)
        listener.setblocking(False)
        # Not in a worker thread: Linux ends the processes together with the thread that started them.
        # The launcher reads its standard input all the time; at an end of file it would spin.
        process, output = start_with_output(_command(plan, Path(folder)), stdin=subprocess.PIPE)
        try:
            connection = await _rank_0(listener, process, output)
        except BaseException:
            process.kill()
            process.wait()
            output.close()
            raise
        _calm(process)
        return Started(process, connection, output)


def _command(plan: GroupPlan, folder: Path) -> list[str]:
    """The launcher's command line; `folder` holds the socket that rank 0 connects to, and the hostfile."""
    hosts = plan.machines.hosts
    here = all(host.ssh in _HERE for host in hosts)
    control = f"{'127.0.0.1' if here else hosts[0].ips[0]}:{_free_ports(1)}"
    where = ["--hosts", "127.0.0.1", "-n", str(len(hosts))]
    if plan.machines.hostfile:
        # As it was when the server started: the memory of the ranks was planned by it.
        copy = folder / "hosts.json"
        copy.write_bytes(plan.machines.hostfile)
        where = ["--hostfile", str(copy)]
    variables = {**ENVIRONMENT, LOG_LEVEL: log_level(), "OMLX_GROUP_SECRET": secrets.token_hex(16)}
    if "PYTHONPATH" in os.environ:
        variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return [
        *(sys.executable, "-c", _LAUNCHER, "--backend", plan.backend, *where),
        *("--starting-port", str(_free_ports(_PORTS)), "--nccl-port", str(_free_ports(1))),
        *(part for name, value in variables.items() for part in ("--env", f"{name}={value}")),
        *("--python", sys.executable, "--"),
        *("-P", "-m", "omlx.runner.rank", str(folder / "server"), plan.backend, control, plan.parallel),
    ]


async def _rank_0(listener: socket.socket, process: subprocess.Popen[bytes], output: socket.socket) -> socket.socket:
    """Rank 0's connection, or LaunchError with the launcher's last words."""
    accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not (await asyncio.wait([accepting], timeout=_POLL_S))[0]:
                if process.poll() is not None:
                    raise LaunchError(f"the processes of the distributed model could not be started: {_last(output)}")
    except TimeoutError:
        raise LaunchError(f"no process of the distributed model came within {_START_TIMEOUT_S:.0f} s") from None
    finally:
        if not accepting.done():
            accepting.cancel()
            # The loop watches the listener until the task has ended; only then may the listener be closed.
            await asyncio.wait([accepting])
    connection, _ = accepting.result()
    return connection


def _last(output: socket.socket) -> str:
    """The last line of what is there to be read."""
    output.setblocking(False)
    words = bytearray()
    with contextlib.suppress(BlockingIOError):
        while part := output.recv(1 << 16):
            words += part
    lines = words.decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


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
