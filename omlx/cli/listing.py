"""`omlx list`: the models on disk. (A module called `list` would hide the builtin from the package.)"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from omlx.cli import tables
from omlx.cli.command import verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.units import human_bytes, human_time

if TYPE_CHECKING:
    from omlx.protocols.ollama import models as models_wire

HEADER = ("NAME", "ID", "SIZE", "MODIFIED")


@verb("list", usage="[PREFIX]", aliases=("ls",), models=True)
def command(args: tuple[str, ...]) -> None:
    """List models

    PREFIX shows only models whose name starts with it.
    """
    out(run_async(_list(args[0] if args else "")), end="")


async def _list(prefix: str) -> str:
    async with connected() as client:
        return model_table(await client.tags(), prefix)


def model_table(models: Sequence[models_wire.ListedModel], prefix: str = "") -> str:
    """The models whose name starts with `prefix` in any letter case, in the given order."""
    rows = [
        (model.name, model.digest[:12], human_bytes(model.size), human_time(datetime.fromisoformat(model.modified_at)))
        for model in models
        if model.name.lower().startswith(prefix.lower())
    ]
    return tables.render(rows, HEADER)
