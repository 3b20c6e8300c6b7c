"""`omlx search`: MLX models on Hugging Face."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.cli.progress import Display
from omlx.cli.tables import render
from omlx.units import human_bytes


@verb("search", usage="TEXT", count=Count(1))
@click.option("--limit", default=20, metavar="N", help="How many to show")
def command(args: tuple[str, ...], limit: int) -> None:
    """Find models on Hugging Face

    Lists MLX repositories whose names match, the most downloaded first. Any of them can be pulled by the name shown.
    """
    run_async(_search(" ".join(args), limit))


async def _search(text: str, limit: int) -> None:
    async with connected() as client:
        with Display() as waiting:
            waiting.step("")
            try:
                hits = await client.search(text, limit)
            finally:
                waiting.stop(clear=True)
    rows = [
        (f"hf.co/{hit.repository}", human_bytes(hit.size) if hit.size else "-", f"{hit.downloads:,}") for hit in hits
    ]
    out(render(rows, ("NAME", "SIZE", "DOWNLOADS"), max_cell=200), end="")
