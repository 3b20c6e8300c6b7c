"""`omlx cache`: what the KV store holds, and why a prompt was not found in it."""

from __future__ import annotations

import sys

import rich_click as click

from omlx.cli.command import CliError, Count, verb


@verb("cache", usage="[stats | clear [MODEL] | explain MODEL]", count=Count(0, 2), models=True)
@click.option("--raw", is_flag=True, help="explain: take the prompt as it is, without the model's template")
def command(args: tuple[str, ...], raw: bool) -> None:
    """Look into the cache of prompts

    `omlx cache` shows hits and sizes for the loaded models. `omlx cache clear` forgets what is stored. `omlx cache
    explain MODEL < prompt` tells how much of a prompt is stored and why not more.
    """
    from omlx.cli.console import run_async

    match args:
        case () | ("stats",):
            run_async(_stats())
        case ("clear",) | ("clear", _):
            run_async(_clear(args[1] if len(args) == 2 else ""))
        case ("explain", model):
            text = sys.stdin.read()
            # The shell ends what it pipes with a line feed; nobody means it to be part of the prompt.
            run_async(_explain(model, text if raw else text.removesuffix("\n"), raw))
        case _:
            raise CliError("use `omlx cache`, `omlx cache clear [MODEL]` or `omlx cache explain MODEL < prompt`")


async def _stats() -> None:
    from omlx.cli.console import connected, out
    from omlx.cli.tables import render
    from omlx.units import human_bytes

    async with connected() as client:
        models = await client.cache()
    rows = [
        (
            model.model,
            f"{model.hits}/{model.lookups}",
            f"{_share(model.tokens_from_ram, model.tokens_looked_up)}",
            f"{_share(model.tokens_from_disk, model.tokens_looked_up)}",
            f"{human_bytes(model.hot_bytes)} of {human_bytes(model.hot_max_bytes)}",
            model.cold_problem or f"{human_bytes(model.cold_bytes)} of {human_bytes(model.cold_max_bytes)}",
        )
        for model in models
    ]
    out(render(rows, ("NAME", "HITS", "TOKENS FROM RAM", "FROM SSD", "RAM", "SSD"), max_cell=60), end="")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


async def _clear(model: str) -> None:
    from omlx.cli.console import connected, out

    async with connected() as client:
        await client.clear_cache(model)
    out(f"cleared the cache of {model or 'all loaded models'}")


async def _explain(model: str, prompt: str, raw: bool) -> None:
    from omlx.cli.console import connected, out

    async with connected() as client:
        found = await client.explain_cache(model, prompt, raw=raw)
    out(f"{found.cached_tokens} of {found.tokens} tokens are stored: {found.from_ram} in RAM, {found.from_disk} on SSD")
    out(f"{found.reason.replace('_', ' ')}: {found.message}")
    if found.divergence is not None:
        out(f"from token {found.divergence} on the prompt says {found.prompt_text!r}, stored is {found.stored_text!r}")
