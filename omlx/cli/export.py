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
@click.option("--gguf", is_flag=True, help="Write one GGUF file instead, for llama.cpp and Ollama")
def command(args: tuple[str, ...], gguf: bool) -> None:
    """Write a model into a folder that works without oMLX

    DIR gets the model's files, which mlx-lm opens as they are, and a Modelfile with template, system prompt and
    parameters, from which `omlx create NAME -f DIR/Modelfile` makes the same model again. What is in DIR already is
    compared and kept; a file of the same name with other content is never replaced.

    --gguf writes a GGUF file and its Modelfile (models of type llama, mistral, qwen2, qwen3 with a BPE tokenizer).
    """
    run_async((_export_gguf if gguf else _export)(args[0], Path(args[1]).expanduser()))


async def _export(model: str, folder: Path) -> None:
    async with connected() as client:
        with Display() as display:
            found = await fetch(client, display, model, folder)
    out(f"{model} is in {folder}: {len(found.files)} files and a Modelfile")


async def _export_gguf(model: str, folder: Path) -> None:
    target = _new_file(folder)
    draft = folder / f".{GGUF}.partial"
    async with connected() as client:
        with Display() as display:
            try:
                with tempfile.TemporaryDirectory(dir=folder, prefix=".mlx-") as place:
                    found = await fetch(client, display, model, Path(place))
                    if any(line.startswith(("ADAPTER ", "DRAFT ")) for line in found.modelfile.splitlines()):
                        raise CliError(f"{model} has an adapter or a draft model, which a GGUF file cannot hold")
                    modelfile = found.modelfile.replace("\nFROM .\n", f"\nFROM ./{GGUF}\n", 1)
                    _require_writable(folder / MODELFILE, modelfile)
                    notes = await _convert(Path(place), draft, display)
                    draft.replace(target)
                _write_modelfile(folder / MODELFILE, modelfile)
            except OSError as error:
                raise CliError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
            finally:
                draft.unlink(missing_ok=True)
    for note in notes:
        err(f"note: {note}")
    out(f"{model} is in {target}, its Modelfile beside it")


def _new_file(folder: Path) -> Path:
    """Where the GGUF file goes; its folder is made."""
    target = folder / GGUF
    if target.exists():
        raise CliError(f"{target} is there already: choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"{folder} cannot be written: {error.strerror}") from error
    return target


async def _convert(folder: Path, target: Path, display: Display) -> list[str]:
    """Write the GGUF file; sentences about what is not exact."""
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
    """Bring the model into the folder; files that are there are not fetched again. Raises CliError, ClientError."""
    found = await client.export(model)
    try:
        _require_writable(folder / MODELFILE, found.modelfile)
        for file in found.files:
            if not is_safe_path(file.path):
                raise CliError(f"the server names an unsafe path: {file.path!r}")
            path = folder / file.path
            if path.exists():
                _require_same(path, file.digest)
            else:
                await _download(client, display, model, file, path)
        _write_modelfile(folder / MODELFILE, found.modelfile)
    except OSError as error:
        raise CliError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return found


def _require_same(path: Path, digest: str) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest.removeprefix("sha256:"):
            raise CliError(f"{path} is there already and differs: choose another folder")


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
        raise CliError(f"{path} is there already and differs: choose another folder")


def _write_modelfile(path: Path, text: str) -> None:
    _require_writable(path, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
