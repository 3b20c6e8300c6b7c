"""`omlx cache`: what the KV store holds, why a prompt was not found in it, and conversations that are kept by name."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.cli.tables import percent, render
from omlx.units import human_bytes, human_time

if TYPE_CHECKING:
    from omlx.protocols.admin.cache import CachedModel

_USAGE = "[ls | stats | clear [MODEL] | verify | explain MODEL | save NAME MODEL | load NAME | rm NAME]"


@verb("cache", usage=_USAGE, count=Count(0, 3), models=True)
@click.option("--raw", is_flag=True, help="explain: take the prompt as it is, without the model's template")
def command(args: tuple[str, ...], raw: bool) -> None:
    """Look into the cache of prompts

    `omlx cache` shows hits and sizes for the loaded models, `omlx cache ls` what is on disk. `omlx cache clear` forgets
    what is stored, of one model or of all; `omlx cache verify` reads every record and removes what is damaged. `omlx
    cache explain MODEL < prompt` tells how much of a prompt is stored and why not more. `omlx cache save NAME MODEL`
    keeps the conversation that MODEL answered last from being evicted, `load` brings it back into memory, `rm` lets it
    go.
    """
    match args:
        case () | ("stats",):
            run_async(_stats())
        case ("ls",):
            run_async(_list())
        case ("clear",) | ("clear", _):
            run_async(_clear(args[1] if len(args) == 2 else ""))
        case ("verify",):
            run_async(_verify())
        case ("explain", model):
            text = sys.stdin.read()
            # The shell ends what it pipes with a line feed; nobody means it to be part of the prompt.
            run_async(_explain(model, text if raw else text.removesuffix("\n"), raw))
        case ("save", name, model):
            run_async(_save(name, model))
        case ("load", name):
            run_async(_load(name))
        case ("rm", name):
            run_async(_remove(name))
        case _:
            raise CliError(f"use omlx cache {_USAGE}")


async def _stats() -> None:
    async with connected() as client:
        models = await client.cache()
    rows = [
        (
            model.model,
            f"{model.hits}/{model.lookups}",
            percent(model.tokens_from_ram, model.tokens_looked_up),
            percent(model.tokens_from_disk, model.tokens_looked_up),
            f"{human_bytes(model.hot_bytes)} of {human_bytes(model.hot_max_bytes)}",
            model.reason
            or model.cold_problem
            or f"{human_bytes(model.cold_bytes)} of {human_bytes(model.cold_max_bytes)}",
            human_bytes(model.cold_written_this_hour),
        )
        for model in models
    ]
    header = ("NAME", "HITS", "TOKENS FROM RAM", "FROM SSD", "RAM", "SSD", "WRITTEN THIS HOUR")
    out(render(rows, header, max_cell=60), end="")


async def _list() -> None:
    async with connected() as client:
        folder = await client.cache_folder()
    models = [
        (
            _owners(model),
            str(model.records),
            human_bytes(model.bytes),
            human_time(datetime.fromtimestamp(model.used, UTC)),
        )
        for model in folder.models
    ]
    out(render(models, ("NAME", "RECORDS", "SIZE", "USED")), end="")
    if folder.sessions:
        sessions = [(session.name, session.model, human_bytes(session.bytes)) for session in folder.sessions]
        out("\n" + render(sessions, ("SESSION", "MODEL", "SIZE")), end="")
    out(f"\n{human_bytes(folder.bytes)} of {human_bytes(folder.max_bytes)} in {folder.path}")


def _owners(model: CachedModel) -> str:
    """All models that use the records; the one that made them, where it was removed since."""
    return ", ".join(model.names) or f"{model.name or '?'} (removed)"


async def _clear(model: str) -> None:
    async with connected() as client:
        cleared = await client.clear_cache(model)
    out(f"cleared the cache of {', '.join(cleared.names) or model or 'all models'}: {cleared.records} records")
    if len(cleared.names) > 1:
        out("these models have the same weights, so they shared the records")


async def _verify() -> None:
    async with connected() as client:
        report = await client.verify_cache()
    for fault in report.faults:
        out(fault)
    bad = report.damaged + report.stray + report.missing
    out(f"{report.intact} records are intact" + (f", {bad} were not and are removed" if bad else ""))


async def _explain(model: str, prompt: str, raw: bool) -> None:
    async with connected() as client:
        answer = await client.explain_cache(model, prompt, raw=raw)
    places = f"{answer.from_ram} in RAM, {answer.from_disk} on SSD"
    out(f"{answer.cached_tokens} of {answer.tokens} tokens are stored: {places}")
    out(f"{answer.reason.replace('_', ' ')}: {answer.message}")
    if answer.divergence is not None:
        texts = f"the prompt says {answer.prompt_text!r}, stored is {answer.stored_text!r}"
        out(f"from token {answer.divergence} on {texts}")


async def _save(name: str, model: str) -> None:
    async with connected() as client:
        tokens = await client.save_session(name, model)
    out(f"kept the last conversation of {model} as {name!r}: {tokens} tokens")


async def _load(name: str) -> None:
    async with connected() as client:
        loaded = await client.load_session(name)
    out(f"{name!r} is in the memory of {loaded.model}: {human_bytes(loaded.bytes)} read")


async def _remove(name: str) -> None:
    async with connected() as client:
        await client.remove_session(name)
    out(f"{name!r} is no longer kept")
