"""`omlx export`: a model as a folder that works without oMLX."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import aclosing
from pathlib import Path

import rich_click as click
from omlx_registry.errors import CreateError
from omlx_registry.model_files import is_safe_path
from omlx_registry.worker_client import ExportGguf, JobResult, run_job

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, out, run_async
from omlx.cli.progress import Display
from omlx.client import Client
from omlx.protocols.admin import wire as admin

MODELFILE = "Modelfile"
GGUF = "model.gguf"


@verb("export", usage="MODEL DIR", count=Count(2, 2), models=True)
@click.option("--gguf", is_flag=True, help="Write one GGUF file for llama.cpp and Ollama")
def command(args: tuple[str, ...], gguf: bool) -> None:
    """Export a model to a folder that works without oMLX

    Writes the model's files, which mlx-lm loads directly, and a Modelfile with template, system prompt and parameters.
    `omlx create NAME -f DIR/Modelfile` recreates the model. Files that DIR already has are compared and kept; a file
    with other content is never replaced.

    --gguf writes a GGUF file and its Modelfile (models of type llama, mistral, qwen2, qwen3 with a BPE tokenizer).
    """
    run_async((_export_gguf if gguf else _export)(args[0], Path(args[1]).expanduser()))


async def _export(model: str, folder: Path) -> None:
    async with connected() as client:
        with Display() as display:
            export = await fetch(client, display, model, folder)
    out(f"exported {model} to {folder}: {len(export.files)} files and a Modelfile")


async def _export_gguf(model: str, folder: Path) -> None:
    target = _new_file(folder)
    draft = folder / f".{GGUF}.partial"
    async with connected() as client:
        with Display() as display:
            try:
                with tempfile.TemporaryDirectory(dir=folder, prefix=".mlx-") as source:
                    export = await fetch(client, display, model, Path(source))
                    if any(line.startswith(("ADAPTER ", "DRAFT ")) for line in export.modelfile.splitlines()):
                        raise CliError(f"{model} has an adapter or a draft model, which a GGUF file cannot hold")
                    modelfile = export.modelfile.replace("\nFROM .\n", f"\nFROM ./{GGUF}\n", 1)
                    _require_writable(folder / MODELFILE, modelfile)
                    notes = await _convert(Path(source), draft, display)
                    draft.replace(target)
                _write_modelfile(folder / MODELFILE, modelfile)
            except OSError as error:
                raise CliError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
            finally:
                draft.unlink(missing_ok=True)
    for note in notes:
        err(f"note: {note}")
    out(f"exported {model} to {target}, with its Modelfile")


def _new_file(folder: Path) -> Path:
    """The path of the GGUF file; creates its folder. Raises CliError."""
    target = folder / GGUF
    if target.exists():
        raise CliError(f"{target} already exists: choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"{folder} cannot be written: {error.strerror}") from error
    return target


async def _convert(folder: Path, target: Path, display: Display) -> list[str]:
    """Write the GGUF file; returns notes about weights that are not exact. Raises CliError."""
    display.step("writing GGUF")
    notes: list[str] = []
    try:
        async with aclosing(run_job(ExportGguf(str(folder), str(target)))) as steps:
            async for step in steps:
                if isinstance(step, JobResult):
                    notes = step.result["notes"]
                elif step.total:
                    display.restate(f"writing GGUF {100 * step.completed // step.total}%")
    except CreateError as error:
        raise CliError(error.message) from error
    return notes


async def fetch(client: Client, display: Display, model: str, folder: Path) -> admin.ExportResponse:
    """Download the model into the folder, except for files it already has. Raises CliError, ClientError."""
    export = await client.export(model)
    try:
        _require_writable(folder / MODELFILE, export.modelfile)
        for file in export.files:
            if not is_safe_path(file.path):
                raise CliError(f"the server names an unsafe path: {file.path!r}")
            path = folder / file.path
            if path.exists():
                _require_same(path, file.digest)
            else:
                await _download(client, display, model, file, path)
        _write_modelfile(folder / MODELFILE, export.modelfile)
    except OSError as error:
        raise CliError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return export


def _require_same(path: Path, digest: str) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest.removeprefix("sha256:"):
            raise CliError(f"{path} already exists and differs: choose another folder")


async def _download(client: Client, display: Display, model: str, file: admin.ExportedFile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.partial")
    digest, done = hashlib.sha256(), 0
    try:
        with draft.open("wb") as target:
            async for block in client.download(model, file.path):
                target.write(block)
                digest.update(block)
                done += len(block)
                display.bytes(file.path, f"{file.path}:", done, file.size)
        if digest.hexdigest() != file.digest.removeprefix("sha256:"):
            raise CliError(
                f"{file.path} arrived incomplete or damaged: try again; `omlx registry verify` tests the store"
            )
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _require_writable(path: Path, text: str) -> None:
    """CliError where another Modelfile is there; known before gigabytes are written beside it."""
    if path.exists() and path.read_text("utf-8", "replace") != text:
        raise CliError(f"{path} already exists and differs: choose another folder")


def _write_modelfile(path: Path, text: str) -> None:
    _require_writable(path, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
