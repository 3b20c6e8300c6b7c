"""What clicks do to a real server, without a desktop."""

from __future__ import annotations

import os
import plistlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omlx.menubar import clipboard, login
from omlx.menubar.control import Control
from omlx.menubar.menu import Act
from omlx.menubar.seen import ServerState
from omlx.settings import Settings, load
from tests.server.local import SCRIPTED, LocalServer, eventually, stocked
from tests.support.server import free_port

Begin = Callable[[str], Control]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Begin]:
    """Start a control for the server at a URL; it is ended with the test."""
    monkeypatch.setattr("omlx.menubar.control.EVERY_S", 0.1)
    for name in ("OMLX_MODELS", "OMLX_PAGED_SSD_CACHE_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir()
    monkeypatch.setenv("OMLX_SPARE_RUNNER", "false")
    running: list[tuple[Control, threading.Thread]] = []

    def begun(url: str) -> Control:
        monkeypatch.setenv("OMLX_HOST", url)
        control = Control(load({}, os.environ).settings, lambda seen: None)
        thread = threading.Thread(target=control.run, kwargs={"start": False})
        thread.start()
        running.append((control, thread))
        return control

    yield begun
    for control, thread in running:
        control.end()
        thread.join(120)
        assert not thread.is_alive()


def becomes(control: Control, holds: Callable[[ServerState], bool], timeout_s: float = 30) -> bool:
    return eventually(lambda: holds(control.seen), timeout_s)


def test_models_are_loaded_pinned_and_unloaded(begin: Begin, tmp_path: Path) -> None:
    settings = Settings(models=str(tmp_path / "stock"), spare_runner=False)
    with LocalServer(stocked(tmp_path / "stock"), settings, SCRIPTED) as server:
        control = begin(server.url)
        assert becomes(control, lambda seen: "plain:latest" in seen.models)
        control.click(Act("load", "plain:latest"))
        assert becomes(control, lambda seen: [row.name for row in seen.overview.models] == ["plain:latest"])
        assert becomes(control, lambda seen: not seen.doing)
        control.click(Act("pin", "plain:latest"))
        assert becomes(control, lambda seen: "plain:latest" in seen.pinned)
        control.click(Act("unpin", "plain:latest"))
        assert becomes(control, lambda seen: not seen.pinned)
        control.click(Act("unload", "plain:latest"))
        assert becomes(control, lambda seen: not seen.overview.models and not seen.doing)
        control.click(Act("load", "nobody"))
        assert becomes(control, lambda seen: "'nobody' not found" in seen.complaint)
    assert becomes(control, lambda seen: seen.overview is None), "and a server that went away is seen, too"


def test_a_key_is_shown_and_a_wrong_one_is_told(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(models=str(tmp_path / "stock"), spare_runner=False, api_key=["sesame"])
    with LocalServer(stocked(tmp_path / "stock"), settings, SCRIPTED) as server:
        assert becomes(begin(server.url), lambda seen: bool(seen.trouble) and seen.overview is None)
        monkeypatch.setenv("OMLX_API_KEY", "sesame")
        assert becomes(begin(server.url), lambda seen: seen.overview is not None)


def test_the_server_is_started_and_stopped(begin: Begin) -> None:
    control = begin(f"http://127.0.0.1:{free_port()}")
    assert becomes(control, lambda seen: not seen.trouble and seen.overview is None)
    control.click(Act("start"))
    assert becomes(control, lambda seen: seen.overview is not None and not seen.doing)
    control.click(Act("stop"))
    assert becomes(control, lambda seen: seen.overview is None and not seen.doing)
    assert control.seen.complaint == ""


def test_a_server_elsewhere_is_not_started_here(begin: Begin) -> None:
    assert not begin("http://192.0.2.1:11434").startable


def test_start_at_login_is_switched(begin: Begin) -> None:
    control = begin("http://127.0.0.1:1")
    control.click(Act("login"))
    assert becomes(control, lambda seen: seen.at_login)
    control.click(Act("login"))
    assert becomes(control, lambda seen: not seen.at_login)
    assert not login.file().exists()


@pytest.mark.parametrize("python", ['/opt/my python/100%/bin/py`$x"\\y', "/usr/bin/python3"])
def test_what_starts_at_login_is_this_program(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", python)
    wanted = [python, "-m", "omlx", "menubar", "--start"]
    monkeypatch.setattr(sys, "platform", "linux")
    login.switch(True)
    assert login.file().read_text().startswith("[Desktop Entry]\n")
    (line,) = [line for line in login.file().read_text().splitlines() if line.startswith("Exec=")]
    unescaped = line.removeprefix("Exec=").replace("\\\\", "\\")
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {unescaped}"], capture_output=True, text=True, check=True)
    assert words.stdout.replace("%%", "%").splitlines() == wanted
    monkeypatch.setattr(sys, "platform", "darwin")
    login.switch(True)
    assert login.file().name == "omlx.menubar.plist"
    assert plistlib.loads(login.file().read_bytes())["ProgramArguments"] == wanted


def test_the_clipboard_takes_the_text_or_says_that_it_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not clipboard.copy("http://x")
    program = tmp_path / "xclip"
    program.write_text(f'#!/bin/sh\nread -r line; echo "$line $2" > {tmp_path}/copied\n')
    program.chmod(0o755)
    assert clipboard.copy("http://x\n")
    assert (tmp_path / "copied").read_text() == "http://x clipboard\n"
