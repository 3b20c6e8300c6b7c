"""The *tray*: the status item itself, by pystray. Everything it shows was decided in `menu`.

The platform's loop has the main thread and calls us there; looks at the server arrive from the control's thread.
"""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from PIL import Image, ImageDraw

from omlx.menubar import clipboard
from omlx.menubar.control import Control
from omlx.menubar.menu import SEPARATOR, Act, MenuEntry, entries, status_line
from omlx.menubar.seen import ServerState
from omlx.settings import Settings

_BACKEND = "PYSTRAY_BACKEND"
_SIZE = 64
_GREY, _TEAL, _AMBER = (128, 128, 128), (15, 118, 110), (217, 119, 6)


class NoTray(Exception):
    """There is no status item here; the message says what is missing."""


def run(settings: Settings, *, start: bool) -> None:
    """Show the status item of the server with these settings until it is quit.

    Needs the main thread. Raises NoTray.
    """
    Tray(_pystray(), settings).run(start=start)


def _pystray() -> Any:
    """pystray, on the first of its backends that works here.

    It looks for a desktop while it is imported, and gives up at the first backend that fails in an unforeseen way, such
    as GTK without an indicator library; so it is asked for one backend at a time.
    """
    if find_spec("pystray") is None:
        raise NoTray("the menu bar app needs pystray: pip install 'omlx[menubar]'")
    chosen = os.environ.get(_BACKEND)
    reasons = []
    for name in [chosen] if chosen else ["darwin"] if sys.platform == "darwin" else ["appindicator", "gtk", "xorg"]:
        os.environ[_BACKEND] = name
        try:
            return import_module("pystray")
        except Exception as error:
            reasons.append(f"{name}: {' '.join(str(error).split()) or type(error).__name__}")
            for module in [module for module in sys.modules if module.split(".")[0] == "pystray"]:
                del sys.modules[module]
    raise NoTray(f"there is no desktop here that could show a status item ({'; '.join(reasons)})")


class Tray:
    """The status item. Without menus (plain X11) a click opens the dashboard."""

    def __init__(self, pystray: Any, settings: Settings) -> None:
        self._pystray = pystray
        self._control = Control(settings, self._see)
        self._drawn: tuple[MenuEntry, ...] = ()
        self._lit = ""
        self._quit = False
        self._icon = pystray.Icon("omlx", icon=picture(_GREY), title="oMLX")
        self._draw(self._control.seen)

    def run(self, *, start: bool) -> None:
        thread = threading.Thread(target=self._control.run, kwargs={"start": start}, name="control")

        def begin(icon: Any) -> None:
            icon.visible = True
            thread.start()

        try:
            self._icon.run(begin)
        except Exception as error:
            if thread.ident is None:
                raise NoTray(f"the desktop takes no status item: {error}") from error
            # GTK's way out fails on desktops that show no notifications.
            if not self._quit:
                raise
        finally:
            if thread.ident is not None:
                self._control.end()
                thread.join()

    def _see(self, seen: ServerState) -> None:
        """From the control's thread: AppKit wants its main thread, the others' pystray goes there itself."""
        if sys.platform == "darwin":
            from PyObjCTools import AppHelper

            AppHelper.callAfter(self._draw, seen)
        else:
            self._draw(seen)

    def _draw(self, seen: ServerState) -> None:
        """Only what changed: an open menu closes when it is exchanged."""
        items = entries(seen)
        if items != self._drawn:
            self._drawn = items
            self._icon.menu = self._pystray.Menu(*map(self._item, items))
        self._icon.title = f"oMLX: {status_line(seen)}"[:127]
        lit = _light(seen)
        if lit != self._lit:
            self._lit = lit
            self._icon.icon = picture(_COLOURS[lit])

    def _item(self, entry: MenuEntry) -> Any:
        if entry == SEPARATOR:
            return self._pystray.Menu.SEPARATOR
        if entry.below:
            return self._pystray.MenuItem(entry.text, self._pystray.Menu(*map(self._item, entry.below)))
        ticked, act = entry.checked, entry.act
        checked = None if ticked is None else lambda _: ticked
        return self._pystray.MenuItem(
            entry.text, self._doer(act) if act else None, checked=checked, default=entry.first, enabled=act is not None
        )

    def _doer(self, act: Act) -> Callable[[], None]:
        return lambda: self._do(act)

    def _do(self, act: Act) -> None:
        url = self._control.seen.url
        match act.kind:
            case "quit":
                self._quit = True
                self._icon.stop()
            case "dashboard":
                webbrowser.open(url)
            case "copy":
                if not clipboard.copy(url):
                    sys.stderr.write(f"no program for the clipboard was found; the address is {url}\n")
            case _:
                self._control.click(act)


_COLOURS = {"off": _GREY, "on": _TEAL, "busy": _AMBER}


def _light(seen: ServerState) -> str:
    if seen.overview is None:
        return "off"
    return "busy" if seen.overview.running else "on"


def picture(colour: tuple[int, int, int]) -> Image.Image:
    """The dashboard's icon, three bars in a rounded square, in the colour of the server's state."""
    image = Image.new("RGBA", (_SIZE, _SIZE))
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((0, 0, _SIZE - 1, _SIZE - 1), radius=16, fill=(*colour, 255))
    for left, top in ((14, 34), (28, 24), (42, 14)):
        draw.rounded_rectangle((left, top, left + 8, 50), radius=4, fill=(255, 255, 255, 230))
    return image
