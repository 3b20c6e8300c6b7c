"""`omlx serve`: the server in the foreground. Its flags are the settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import rich_click as click

from omlx import settings
from omlx.cli.command import Count, OptionalValue, verb
from omlx.server import serve
from omlx.units import format_duration, human_bytes

if TYPE_CHECKING:
    from omlx.server.app import Balancer

NOT_FOR_THE_SERVER = {"autostart", "no_history"}
"""Settings of the other verbs: `serve` has no flags for them."""
_METAVARS = {"keep_alive": "DURATION", "size": "SIZE", "host": "HOST", "list": "LIST", "path": "PATH"}


def _option(setting: settings.Setting) -> click.Option:
    """The flag of one setting. Values stay text: `settings.load` reads them as it reads variables."""
    text = f"{setting.description} {_default(setting)}".rstrip()
    if setting.type is bool:
        return OptionalValue([setting.flag], bare="true", help=text, metavar="[=false]")
    metavar = _METAVARS.get(setting.kind.parse) or ("NUMBER" if setting.type in {int, float} else "TEXT")
    if get_origin(setting.type) is Literal:
        metavar = "|".join(get_args(setting.type))
    return click.RichOption([setting.flag], help=text, metavar=metavar)


def _default(setting: settings.Setting) -> str:
    value = setting.default
    if setting.kind.parse == "keep_alive":
        return f"(default {format_duration(value)})"
    if setting.kind.parse == "size":
        return f"(default {human_bytes(value).replace(' ', '')})"
    if isinstance(value, bool):
        return f"(default {str(value).lower()})"
    return f"(default {value})" if value not in ("", [], None) else ""


@verb(
    "serve",
    count=Count(0, 0),
    aliases=("start",),
    environment=tuple(setting.name for setting in settings.describe() if setting.name not in NOT_FOR_THE_SERVER),
)
def command(args: tuple[str, ...], **options: Any) -> int:
    """Start oMLX

    Runs the server in the foreground; it logs to stderr and ends with Ctrl+C or SIGTERM.
    A value comes from the flag, else its variable, else the config file (see `omlx config`).
    """
    flags = {name: value for name, value in options.items() if value is not None}
    loaded = settings.load(flags, os.environ)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    return serve(loaded, _balancer(loaded.settings))


def _balancer(loaded: settings.Settings) -> Balancer | None:
    if not loaded.replicas:
        return None
    from omlx.replicas import balance  # its HTTP client takes a third of the start

    return balance(loaded)


command.params.extend(_option(setting) for setting in settings.describe() if setting.name not in NOT_FOR_THE_SERVER)
