"""`omlx config`: the effective settings and where each came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click

from omlx import settings
from omlx.cli import tables
from omlx.cli.command import Count, verb
from omlx.cli.console import err, out
from omlx.pool import admission
from omlx.units import format_duration, human_bytes
from omlx.urls import without_credentials

if TYPE_CHECKING:
    from omlx.settings import Settings

HEADER = ("SETTING", "VALUE", "SOURCE")


@verb("config", count=Count(0, 0), environment=())
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object, values as numbers and lists")
def command(args: tuple[str, ...], as_json: bool) -> None:
    """Show the settings and where each comes from

    A value comes from the first of: a flag of `omlx serve`, a variable OMLX_NAME, Ollama's variable, the config
    file, the default. This shows what a server started from this shell without flags would use; of settings that follow
    the machine, also what they come to here.
    """
    import msgspec

    loaded = settings.load({}, os.environ)
    for warning in loaded.warnings:
        err(f"note: {warning}")
    here = _here(loaded.settings)
    values = {setting.name: _visible(setting, loaded.settings) for setting in settings.describe()}
    if as_json:
        shown = {
            name: {"value": _plain(value), "source": loaded.sources[name]}
            | ({"here": here[name].value} if name in here else {})
            for name, value in values.items()
        }
        out(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())
        return
    rows = [
        (
            setting.name,
            _shown(setting, values[setting.name])
            + (f" ({here[setting.name].text} here)" if setting.name in here else ""),
            loaded.sources[setting.name],
        )
        for setting in settings.describe()
    ]
    out(tables.render(rows, HEADER, max_cell=1000), end="")
    path = Path(os.environ.get("OMLX_CONFIG") or settings.config_file())
    out(f"\nConfig file: {path}{'' if path.exists() else ' (there is none)'}")


class Here(NamedTuple):
    """What a setting that follows the machine comes to."""

    value: int
    text: str


def _here(loaded: Settings) -> dict[str, Here]:
    """By setting, by this machine's RAM and disk. What a GPU has of its own a server knows: see `omlx doctor`."""
    machine = admission.machine()
    sizes = {
        "hot_cache_max_size": admission.hot_bytes(loaded.hot_cache_max_size, machine.ram),
        "max_process_memory": admission.parse_cap(loaded.max_process_memory, machine),
        "paged_ssd_cache_max_size": admission.cold_bytes(loaded),
    }
    if loaded.max_model_memory:
        sizes["max_model_memory"] = admission.parse_cap(loaded.max_model_memory, machine)
    here = {name: Here(size, human_bytes(size)) for name, size in sizes.items()}
    if not loaded.max_concurrent_requests:
        most = admission.MOST_CONCURRENT
        here["max_concurrent_requests"] = Here(most, f"up to {most}")
    return here


def _visible(setting: Any, loaded: Any) -> Any:
    """The value; of a secret only that there is one, and of a URL not whom it logs in."""
    value = getattr(loaded, setting.name)
    if setting.kind.secret:
        return ["(hidden)"] * len(value)
    if isinstance(value, list):
        return [without_credentials(entry) if isinstance(entry, str) else entry for entry in value]
    return without_credentials(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """As JSON can hold it: an endless duration is -1, as users write it."""
    return -1 if value == float("inf") else value


def _shown(setting: Any, value: Any) -> str:
    if value == float("inf"):
        return "forever"
    match setting.kind.parse:
        case "keep_alive":
            return format_duration(value)
        case "size":
            return human_bytes(value)
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else str(value)
