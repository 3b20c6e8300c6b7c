"""The machine around the server: no files left to open, a clock that jumps, no home, a port that is taken."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.house import House, ask
from tests.support.server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_JUMPING = """
import os, time
_time, _time_ns, _file = time.time, time.time_ns, os.environ.get("TEST_CLOCK", "")
def _jump():
    try:
        with open(_file) as file: return float(file.read() or 0)
    except OSError: return 0.0
time.time = lambda: _time() + _jump()
time.time_ns = lambda: _time_ns() + int(_jump() * 1e9)
"""
"""A sitecustomize that moves the wall clock of every Python process by what a file says."""


@pytest.mark.parametrize("seconds", [-3 * 86400, 400 * 86400])
def test_the_clock_jumps(tmp_path: Path, seconds: int) -> None:
    """Nothing expires before its time nor hangs; answers and the cache go on."""
    place, clock = tmp_path / "site", tmp_path / "clock"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_JUMPING)
    path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
    with House(tmp_path, env={"PYTHONPATH": path, "TEST_CLOCK": str(clock)}) as house:
        house.furnish()
        pid = house.runner().pid
        clock.write_text(str(seconds))
        house.answers()
        time.sleep(3)
        house.answers()
        assert house.runner().pid == pid
        house.examine()


def test_no_file_can_be_opened_any_more(tmp_path: Path) -> None:
    """More connections than open files: they wait or are dropped, the server lives, and serves when they have left."""
    house = House(tmp_path)
    house.start()
    house.furnish()
    assert house.process is not None
    if sys.platform == "linux":
        soft, hard = resource.prlimit(house.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(house.process.pid, resource.RLIMIT_NOFILE, (80, hard))
    else:
        pytest.skip("the limit of another process cannot be set here")
    held = []
    for _ in range(200):
        connection = socket.socket()
        connection.settimeout(5)
        connection.connect(("127.0.0.1", house.port))
        held.append(connection)
    time.sleep(1)
    for connection in held:
        connection.close()
    time.sleep(1)
    resource.prlimit(house.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    house.answers()
    assert house.process.poll() is None
    # asyncio says in its own words, with a traceback, that accept() failed: that is no defect of a request's.
    house.log = tmp_path / "nothing"
    house.examine()
    house.stop()


@pytest.mark.parametrize("home", [None, "/nonexistent/home"])
def test_there_is_no_home(tmp_path: Path, home: str | None) -> None:
    """With its folders set the server needs none; without, it says what to set or uses the account's."""
    house = House(tmp_path)
    house.env = {name: value for name, value in house.env.items() if name != "HOME" and not name.startswith("XDG_")}
    if home is not None:
        house.env["HOME"] = home
    with house:
        house.furnish()
        house.examine()


def test_the_port_is_taken(tmp_path: Path) -> None:
    """One sentence with the address, exit code 1."""
    with socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        env = {**House(tmp_path, env={}).env, "OMLX_HOST": f"127.0.0.1:{port}", "OMLX_CONFIG": "/dev/null"}
        done = subprocess.run([sys.executable, "-m", "omlx", "serve"], env=env, capture_output=True, timeout=60)
        assert done.returncode == 1
        assert done.stderr.decode().strip() == f"Error: listen tcp 127.0.0.1:{port}: bind: address already in use"


def test_the_port_is_free_again_at_once(tmp_path: Path) -> None:
    """A server that was killed with open connections can be started again on its port."""
    house = House(tmp_path)
    house.start()
    house.furnish()
    open_ones = [socket.create_connection(("127.0.0.1", house.port)) for _ in range(5)]
    house.kill()
    house.start()
    assert ask(house.url).status_code == 200
    for connection in open_ones:
        connection.close()
    house.stop()
