"""`omlx ps`: the models in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from omlx.cli.command import verb

if TYPE_CHECKING:
    from omlx.api import ollama as wire

HEADER = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")
_FOREVER = timedelta(days=20 * 365)


@verb("ps", usage="[PREFIX]", models=True)
def command(args: tuple[str, ...]) -> None:
    """List running models

    PREFIX shows only models whose name starts with it.
    """
    from omlx.cli.console import out, run_async

    out(run_async(_ps(args[0] if args else "")), end="")


async def _ps(prefix: str) -> str:
    from omlx.cli.console import connected

    async with connected() as client:
        return loaded_table(await client.loaded(), datetime.now().astimezone(), prefix)


def loaded_table(models: Sequence[wire.LoadedModel], now: datetime, prefix: str = "") -> str:
    """The loaded models whose name starts with `prefix`; `now` is what UNTIL counts from."""
    from omlx.cli import tables
    from omlx.units import human_bytes

    rows = [
        (
            model.name,
            model.digest[:12],
            human_bytes(model.size),
            processor(model.size, model.size_vram),
            str(model.context_length),
            until(datetime.fromisoformat(model.expires_at), now),
        )
        for model in models
        if model.name.startswith(prefix)
    ]
    return tables.render(rows, HEADER)


def processor(size: int, size_vram: int) -> str:
    """Where a model lies: "100% GPU", "100% CPU" or the shares of both."""
    if size_vram == 0:
        return "100% CPU"
    if size_vram == size:
        return "100% GPU"
    if size_vram > size or size == 0:
        return "Unknown"
    on_cpu = int((size - size_vram) / size * 100 + 0.5)
    return f"{on_cpu}%/{100 - on_cpu}% CPU/GPU"


def until(expires: datetime, now: datetime) -> str:
    """When a model goes: "4 minutes from now", "Forever", "Stopping..."."""
    from omlx.units import human_time

    if expires.year == 1:
        return "Never"
    if expires < now:
        return "Stopping..."
    return "Forever" if expires - now > _FOREVER else human_time(expires, now)
