"""`omlx import`: models that are on this machine already."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import rich_click as click

from omlx.cli.command import CliError, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, is_terminal, out, printable, run_async
from omlx.cli.progress import Display
from omlx.client import Client, ImportLine
from omlx.units import format_duration, human_bytes

_COUNTED = {"imported": "imported", "present": "here already", "planned": "to import", "refused": "not imported"}


@verb("import", usage="[MODEL...]")
@click.option("--from", "source", type=click.Choice(["ollama", "huggingface"]), help="Look there only")
@click.option("--folder", default="", metavar="PATH", help="Ollama's folder of models, where it is not a usual one")
@click.option("--link", is_flag=True, help="Share the files of Ollama's MLX models instead of copying them")
@click.option("--prefer", type=click.Choice(["convert", "pull"]), default="convert",
              help="pull: fetch the MLX repository of a name where the catalog has one")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only list what would be imported from Ollama, with sizes and times")
@click.option("--verbose", is_flag=True, help="Say for each tensor what becomes of it")
@click.option("-y", "--yes", is_flag=True, help="Import Ollama's models without asking")
def command(
    args: tuple[str, ...], source: str | None, folder: str, link: bool, prefer: str, dry_run: bool, verbose: bool,
    yes: bool,
) -> int:  # fmt: skip
    """Register models that other programs have on this machine

    Looks into the Hugging Face cache, LM Studio's folders and the store of an Ollama. Models of the first two are
    hard-linked, so they take no further space; each gets the name hf.co/ORG/NAME. Models of Ollama keep their names and
    are converted to MLX, which takes about their size again; Ollama's own files are never changed. What was imported
    before is not imported again, and an interrupted import goes on where it stopped.

    MODEL names models of Ollama; without one all are imported.
    """
    if source == "huggingface":
        flags = {"--folder": folder, "--link": link, "--prefer": prefer != "convert", "--dry-run": dry_run}
        _refuse_ollamas(args, flags)
    body = {
        "source": "ollama",
        "folder": folder or _named_folder(),
        "models": list(args),
        "link": link,
        "prefer": prefer,
        "dry_run": dry_run,
        "verbose": verbose,
    }
    if source is None and (args or folder or dry_run):
        source = "ollama"
    return run_async(_import(source, body, yes=yes))


def _refuse_ollamas(models: tuple[str, ...], flags: Mapping[str, object]) -> None:
    """CliError where what is said is about Ollama's models only: a --dry-run, above all, must not import."""
    if models:
        raise CliError("MODEL names a model of Ollama: leave it out, or say --from ollama")
    for flag, given in flags.items():
        if given:
            raise CliError(f"{flag} is for models of Ollama: leave it out, or say --from ollama")


def _named_folder() -> str:
    """Where this shell says that Ollama keeps its models; the server looks at the usual places itself."""
    return os.environ.get("OLLAMA_MODELS", "").strip(" \t\"'") if os.environ.get("OMLX_MODELS") else ""


async def _import(source: str | None, body: Mapping[str, Any], *, yes: bool) -> int:
    outcomes: Counter[str] = Counter()
    async with connected() as client:
        if source != "ollama":
            async for step in client.import_found():
                if step.status != "success":
                    outcomes["found"] += 1
                    out(printable(step.status))
        if source == "ollama" or (source is None and await _wanted(client, outcomes, yes=yes)):
            await _follow(client, body, outcomes)
    if not outcomes:
        elsewhere = "" if source == "huggingface" else ", nor has an Ollama"
        err(f"note: the Hugging Face cache and LM Studio have no models here{elsewhere}")
    return 1 if outcomes["refused"] else 0


async def _wanted(client: Client, outcomes: Counter[str], *, yes: bool) -> bool:
    """Whether Ollama's models are to be converted, too: they take space and time."""
    found = await client.importable()
    if not found.ollama_models:
        return False
    outcomes["found"] += 1
    count = f"{found.ollama_models} model{'' if found.ollama_models == 1 else 's'} of {human_bytes(found.ollama_bytes)}"
    if yes:
        return True
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        out(f"Ollama has {count} here: `omlx import --from ollama` converts them")
        return False
    return click.confirm(f"Ollama has {count} here. Convert them (about the same space again)?", default=True, err=True)


async def _follow(client: Client, body: Mapping[str, Any], outcomes: Counter[str]) -> None:
    """Show an import from Ollama: bars on stderr, a line for each model on stdout."""
    size = seconds = 0
    with Display() as display:
        async for step in client.import_found(body):
            size, seconds = size + step.bytes, seconds + step.seconds
            if step.outcome:
                outcomes[step.outcome] += 1
            _show(step, display)
    counts = [f"{outcomes[kind]} {text}" for kind, text in _COUNTED.items() if outcomes[kind]]
    if outcomes["planned"]:
        counts.append(f"{human_bytes(size)}, about {format_duration(seconds)}")
    out(", ".join(counts) or "Ollama has no models here")


def _show(step: ImportLine, display: Display) -> None:
    if step.digest:
        if step.completed > 0:
            display.bytes(step.digest, f"{printable(step.status)}:", step.completed, step.total)
    elif step.status != "success":
        display.step(printable(step.status))
