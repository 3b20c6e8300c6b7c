"""The status item on a real (virtual) screen: Xvfb with a tray, GTK's menu, a real server; clicks by xdotool.

`SCREENSHOTS=folder` keeps the pictures.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image, ImageGrab

from tests.cli.conftest import make_model
from tests.server.local import eventually
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.slow
_PROGRAMS = ("Xvfb", "trayer", "xdotool", "dbus-run-session")
_GI = Path("/usr/lib/python3/dist-packages/gi")
"""Debian's GTK bindings, for Debian's Python; a venv of the same version can use them."""
_TEAL, _GREY = (15, 118, 110), (128, 128, 128)
MENU_WIDTH = 150
"""Menus are wider than this, the tray is not."""


class Desktop:
    """A screen with a tray in its corner."""

    def __init__(self, display: str, folder: Path) -> None:
        self.display = display
        self.env = {**os.environ, "DISPLAY": display, "PYTHONPATH": str(folder), "NO_AT_BRIDGE": "1"}
        self.env.pop("PYSTRAY_BACKEND", None)
        (folder / "gi").symlink_to(_GI)

    def xdotool(self, *words: str) -> str:
        return subprocess.run(["xdotool", *words], env=self.env, capture_output=True, text=True, timeout=120).stdout

    def picture(self) -> Image.Image:
        return ImageGrab.grab(xdisplay=self.display)

    def has(self, colour: tuple[int, int, int]) -> bool:
        return colour in {found for _, found in self.picture().getcolors(1 << 20) or []}

    def menus(self) -> list[tuple[int, int, int, int]]:
        """x, y, width and height of the menus that are open."""
        found = []
        for window in self.xdotool("search", "--onlyvisible", "--name", ".*").split()[1:]:
            lines = self.xdotool("getwindowgeometry", "--shell", window).splitlines()
            place = {name: int(value) for name, _, value in (line.partition("=") for line in lines)}
            if place.get("WIDTH", 0) > MENU_WIDTH:
                found.append((place["X"], place["Y"], place["WIDTH"], place["HEIGHT"]))
        return found

    def keep(self, name: str) -> None:
        if folder := os.environ.get("SCREENSHOTS"):
            self.picture().save(Path(folder) / name)


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install xvfb trayer xdotool dbus-daemon dbus-bin")
    if importlib.util.find_spec("pystray") is None:
        pytest.skip("no pystray: pip install -e '.[dev]'")
    if not list(_GI.glob(f"_gi.cpython-{sys.version_info.major}{sys.version_info.minor}-*.so")):
        pytest.skip("no GTK for this Python: apt-get install python3-gi gir1.2-gtk-3.0, and a venv of Debian's version")
    reader, writer = os.pipe()
    screen = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writer), "-screen", "0", "900x420x24", "-nolisten", "tcp"],
        pass_fds=[writer], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    with os.fdopen(reader) as said:
        display = f":{said.readline().strip()}"
    desktop = Desktop(display, tmp_path)
    words = ["trayer", "--edge", "top", "--align", "right", "--widthtype", "request", "--height", "28"]
    tray = subprocess.Popen(words, env=desktop.env, stderr=subprocess.DEVNULL)
    yield desktop
    for process in (tray, screen):
        process.terminate()
        process.wait(120)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server", env={"OMLX_SPARE_RUNNER": "false"}) as running:
        make_model("tiny", tiny_model("llama", taught=True), tmp_path, running.url)
        yield running


@pytest.fixture
def app(desktop: Desktop, server: ServerProcess) -> Iterator[subprocess.Popen[bytes]]:
    """`omlx menubar`, with the colour of a running server in the tray."""
    opened = {
        "BROWSER": f'{sys.executable} -c \'import sys; open("{server.folder}/opened", "w").write(sys.argv[1])\' %s'
    }
    words = ["dbus-run-session", "--", sys.executable, "-m", "omlx", "menubar"]
    log = server.folder / "menubar.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, env={**desktop.env, "OMLX_HOST": server.url, **opened}, stdout=output, stderr=output
        )
    if not eventually(lambda: desktop.has(_TEAL), 30):
        process.kill()
        pytest.fail(log.read_text("utf-8", "replace"))
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(120)


def open_menu(desktop: Desktop) -> tuple[int, int, int, int]:
    icon = desktop.picture()
    places = [(x, y) for x in range(icon.width) for y in range(40) if icon.getpixel((x, y)) in {_TEAL, _GREY}]
    x, y = places[len(places) // 2]
    desktop.xdotool("mousemove", str(x), str(y), "click", "3")
    assert eventually(lambda: bool(desktop.menus()), 10)
    return desktop.menus()[0]


def choose(desktop: Desktop, *keys: str) -> None:
    for key in keys:
        desktop.xdotool("key", key)
        time.sleep(0.2)


def status(server: ServerProcess) -> Any:
    return httpx.get(f"{server.url}/api/omlx/status", trust_env=False).json()


def test_the_menu_loads_a_model_and_stops_the_server(
    desktop: Desktop, server: ServerProcess, app: subprocess.Popen[bytes]
) -> None:
    _, _, _, height = open_menu(desktop)
    assert height > 100
    choose(desktop, "End", "Right")
    assert eventually(lambda: len(desktop.menus()) >= 1)
    desktop.keep("menubar.png")
    choose(desktop, "Return")
    assert eventually(lambda: [model["state"] for model in status(server)["models"]] == ["ready"])

    open_menu(desktop)
    choose(desktop, "Home", "Return")
    assert server.process is not None
    assert server.process.wait(120) == 0, "the first thing that can be chosen is Stop server"
    assert eventually(lambda: desktop.has(_GREY) and not desktop.has(_TEAL))


def test_an_open_menu_stays_open_while_the_numbers_change(
    desktop: Desktop, server: ServerProcess, app: subprocess.Popen[bytes]
) -> None:
    open_menu(desktop)
    for keep_alive in (60, 0):
        body = {"model": "tiny", "prompt": "", "keep_alive": keep_alive}
        httpx.post(f"{server.url}/api/generate", json=body, trust_env=False, timeout=60).raise_for_status()
        time.sleep(3.5)
        assert desktop.menus(), "the app drew another menu meanwhile"


def test_quit_ends_the_app_and_not_the_server(
    desktop: Desktop, server: ServerProcess, app: subprocess.Popen[bytes]
) -> None:
    open_menu(desktop)
    choose(desktop, "Home", "Down", "Down", "Down", "Down", "Return")
    assert app.wait(120) == 0
    assert status(server)["models"] == []
