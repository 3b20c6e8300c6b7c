"""`omlx outdated`: pulled models that have a newer revision on Hugging Face."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, out, run_async
from omlx.cli.progress import Display
from omlx.cli.tables import render

if TYPE_CHECKING:
    from omlx.protocols.admin.wire import PulledState

_SHOWN = 12
"""Characters shown of a commit, as of digests in `omlx pull`."""


@verb("outdated", count=Count(0, 0))
@click.option("--json", "as_json", is_flag=True, help="Print every pulled model as JSON, up to date or not")
def command(args: tuple[str, ...], as_json: bool) -> None:
    """Show which models have a newer revision

    Sends one request to Hugging Face for each repository that a model was pulled from. `omlx pull MODEL` fetches the
    newer revision; unchanged files are not downloaded again.
    """
    models = run_async(_ask())
    if as_json:
        out(msgspec.json.format(msgspec.json.encode(models)).decode())
        return
    rows = [(it.name, it.repository, it.commit[:_SHOWN], it.latest[:_SHOWN]) for it in models if it.outdated]
    if rows:
        out(render(rows, ("NAME", "REPOSITORY", "HERE", "LATEST"), max_cell=200), end="")
    for it in models:
        if it.error:
            err(f"note: {it.name}: {it.error}")
    if not rows:
        err(_summary(models))


async def _ask() -> list[PulledState]:
    async with connected() as client:
        with Display() as waiting:
            waiting.step("")
            try:
                return await client.outdated()
            finally:
                waiting.stop(clear=True)


def _summary(models: list[PulledState]) -> str:
    known = sum(not it.error for it in models)
    if not models:
        return "note: no model was pulled from Hugging Face"
    return "all models are up to date" if known == len(models) else f"{known} of {len(models)} models are up to date"
