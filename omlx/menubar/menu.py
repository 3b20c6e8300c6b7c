"""The *menu*: entries made of what was seen. Pure; what an entry does is data, too.

Entries that stay come first and the models last: a click is told by its place, and a menu that is open while models
come and go must still mean what it shows.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from omlx.menubar.seen import ServerState
from omlx.protocols.admin.overview import ModelRow, Overview
from omlx.units import human_bytes

MOST_MODELS = 25
"""Further ones are on the dashboard: a menu is no list to scroll."""
_MOST_LETTERS = 70

Kind = Literal["start", "stop", "dashboard", "copy", "login", "load", "unload", "pin", "unpin", "quit"]


class Act(msgspec.Struct, frozen=True):
    """What a click does, and with which model."""

    kind: Kind
    model: str = ""


class MenuEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the menu. Without `act` and `below` it only tells something; an empty `text` is a separator."""

    text: str = ""
    act: Act | None = None
    checked: bool | None = None
    """None: there is nothing to tick."""
    below: tuple[MenuEntry, ...] = ()
    first: bool = False
    """What a plain click on the status item does, where there is such a thing."""


SEPARATOR = MenuEntry()


def entries(seen: ServerState) -> tuple[MenuEntry, ...]:
    """The whole menu."""
    runs = seen.overview is not None
    return (
        MenuEntry(text=status_line(seen)),
        *((MenuEntry(text=memory_line(seen.overview)),) if seen.overview else ()),
        *((MenuEntry(text=_short(power_line(seen.overview))),) if seen.overview and power_line(seen.overview) else ()),
        *((MenuEntry(text=_short(seen.complaint)),) if seen.complaint else ()),
        SEPARATOR,
        MenuEntry(text="Stop server", act=Act("stop")) if runs else _start(seen),
        MenuEntry(text="Open dashboard", act=Act("dashboard") if runs else None, first=True),
        MenuEntry(text=f"Copy {seen.url}", act=Act("copy")),
        MenuEntry(text="Start at login", act=Act("login"), checked=seen.at_login),
        MenuEntry(text="Quit", act=Act("quit")),
        *((SEPARATOR, *_models(seen, seen.overview)) if seen.overview else ()),
    )


def status_line(seen: ServerState) -> str:
    """One line: the model, how fast, how many requests; also the tooltip."""
    if seen.doing:
        return _short(seen.doing)
    if seen.overview is None:
        return _short(seen.trouble or "Server is not running")
    loaded = seen.overview.models
    if not loaded:
        return "No model loaded"
    name = loaded[0].name if len(loaded) == 1 else f"{len(loaded)} models"
    return f"{_short(name)} · {_activity(seen.overview)}"


def memory_line(overview: Overview) -> str:
    used = human_bytes(overview.memory_used)
    return f"Memory: {used} of {human_bytes(overview.memory_limit)}" if overview.memory_limit else f"Memory: {used}"


def power_line(overview: Overview) -> str:
    """Which policy slows work down and why; "" where none does."""
    power = overview.power
    parts = [f"{power.policy}, {power.reason}"] if power.reason else []
    if power.limit_watts:
        now = "" if power.watts is None else f"{power.watts:.0f} of "
        parts.append(f"{now}{power.limit_watts:g} W")
    return f"Power: {' · '.join(parts)}" if parts else ""


def _activity(overview: Overview) -> str:
    if not overview.running:
        return "idle"
    requests = f"{overview.running} request{'s' if overview.running > 1 else ''}"
    return f"{overview.generated_rate:.0f} tok/s · {requests}" if overview.generated_rate else f"reading · {requests}"


def _start(seen: ServerState) -> MenuEntry:
    if seen.trouble:
        return MenuEntry(text="Start server")
    return MenuEntry(text="Start server", act=Act("start") if seen.startable else None)


def _models(seen: ServerState, overview: Overview) -> list[MenuEntry]:
    """The loaded ones, then those on disk."""
    loaded = {row.name: row for row in overview.models}
    names = [*loaded, *(name for name in seen.models if name not in loaded)]
    items = [_model(name, loaded.get(name), name in seen.pinned) for name in names[:MOST_MODELS]]
    if not names:
        items.append(MenuEntry(text="No models yet: omlx pull qwen3:8b"))
    if len(names) > MOST_MODELS:
        items.append(MenuEntry(text=f"{len(names) - MOST_MODELS} more on the dashboard", act=Act("dashboard")))
    return items


def _model(name: str, row: ModelRow | None, pinned: bool) -> MenuEntry:
    details = []
    if row is not None:
        details = [row.state if row.state != "ready" else human_bytes(row.size)]
    if pinned:
        details.append("pinned")
    return MenuEntry(
        text=" · ".join([_short(name), *details]),
        below=(
            MenuEntry(text="Unload", act=Act("unload", name)) if row else MenuEntry(text="Load", act=Act("load", name)),
            MenuEntry(text="Pinned", act=Act("unpin" if pinned else "pin", name), checked=pinned),
        ),
    )


def _short(text: str) -> str:
    """Names and messages come from elsewhere: one line, and not wider than a screen."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_LETTERS else line[: _MOST_LETTERS - 1] + "…"
