"""`omlx import`: models of other programs on this machine."""

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

_COUNTED = {"imported": "imported", "present": "already here", "planned": "to import", "refused": "not imported"}


@verb("import", usage="[MODEL...]")
@click.option("--from", "source", type=click.Choice(["ollama", "huggingface"]), help="Import from this program only")
@click.option("--folder", default="", metavar="PATH", help="Ollama's model folder, if it is not a default one")
@click.option("--link", is_flag=True, help="Share the files of Ollama's MLX models instead of copying them")
@click.option("--prefer", type=click.Choice(["convert", "pull"]), default="convert",
              help="pull: fetch a model's MLX repository if the catalog has one")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only list the models to import from Ollama, with sizes and times")
@click.option("--verbose", is_flag=True, help="Print the conversion of each tensor")
@click.option("-y", "--yes", is_flag=True, help="Import Ollama's models without asking")
def command(
    args: tuple[str, ...], source: str | None, folder: str, link: bool, prefer: str, dry_run: bool, verbose: bool,
    yes: bool,
) -> int:  # fmt: skip
    """Register models that other programs have on this machine

    Searches the Hugging Face cache, LM Studio's folders and Ollama's store. Models of the first two are hard-linked, so
    they take no further space; each gets the name hf.co/ORG/NAME. Ollama's models keep their names and are converted to
    MLX, which takes about their size again; Ollama's own files are never changed. Models that are already imported are
    skipped, and an interrupted import resumes where it stopped.

    MODEL selects models of Ollama; the default is all of them.
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
        raise CliError("MODEL names a model of Ollama: leave it out, or use --from ollama")
    for flag, is_set in flags.items():
        if is_set:
            raise CliError(f"{flag} is for models of Ollama: leave it out, or use --from ollama")


def _named_folder() -> str:
    """Ollama's model folder by this shell's environment; the server searches the default folders itself."""
    return os.environ.get("OLLAMA_MODELS", "").strip(" \t\"'") if os.environ.get("OMLX_MODELS") else ""


async def _import(source: str | None, body: Mapping[str, Any], *, yes: bool) -> int:
    outcomes: Counter[str] = Counter()
    async with connected() as client:
        if source != "ollama":
            async for step in client.import_found():
                if step.status != "success":
                    outcomes["found"] += 1
                    out(printable(step.status))
        if source == "ollama" or (source is None and await _confirm_ollama(client, outcomes, yes=yes)):
            await _follow(client, body, outcomes)
    if not outcomes:
        searched = (
            "Hugging Face cache or LM Studio" if source == "huggingface" else "Hugging Face cache, LM Studio or Ollama"
        )
        err(f"note: found no models of the {searched}")
    return 1 if outcomes["refused"] else 0


async def _confirm_ollama(client: Client, outcomes: Counter[str], *, yes: bool) -> bool:
    """Whether to convert Ollama's models, too. Asks first, because they take space and time."""
    importable = await client.importable()
    if not importable.ollama_models:
        return False
    outcomes["found"] += 1
    plural = "" if importable.ollama_models == 1 else "s"
    count = f"{importable.ollama_models} model{plural} of {human_bytes(importable.ollama_bytes)}"
    if yes:
        return True
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        out(f"Ollama has {count}: `omlx import --from ollama` converts them")
        return False
    return click.confirm(f"Ollama has {count}. Convert them (about the same space again)?", default=True, err=True)


async def _follow(client: Client, body: Mapping[str, Any], outcomes: Counter[str]) -> None:
    """Show the progress of an import from Ollama on stderr; print the totals on stdout."""
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
    out(", ".join(counts) or "Ollama has no models")


def _show(step: ImportLine, display: Display) -> None:
    if step.digest:
        if step.completed > 0:
            display.bytes(step.digest, f"{printable(step.status)}:", step.completed, step.total)
    elif step.status != "success":
        display.step(printable(step.status))
