"""`omlx create`: make a model from a Modelfile. The client reads the files it names and uploads what is missing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rich_click as click
from omlx_registry.errors import InvalidName, ModelfileError, RegistryError
from omlx_registry.folders import checked_path, model_file_names
from omlx_registry.modelfile import Meaning, interpret, parse_modelfile
from omlx_registry.names import parse_name

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, run_async
from omlx.cli.progress import Display, follow
from omlx.client import Client, ClientError

_BLOCK = 4 << 20
_ONLY_FULL_PRECISION = "quantization is only supported for"
"""Of Ollama's error, which says no more."""


@verb("create", usage="MODEL", count=Count(1, 1))
@click.option("-f", "--file", default="", metavar="PATH", help='Name of the Modelfile (default "Modelfile")')
@click.option("-q", "--quantize", default="", metavar="LEVEL", help="Quantize model to this level (e.g. q4_K_M)")
@click.option("--draft-quantize", default="", metavar="LEVEL", help="Quantize the draft model to this level")
@click.option("--experimental", is_flag=True, help="Accepted for Ollama's sake: safetensors need no switch here")
def command(args: tuple[str, ...], file: str, quantize: str, draft_quantize: str, experimental: bool) -> None:
    """Create a model

    Reads a Modelfile: FROM names a model, a GGUF file or a folder with safetensors. Without a Modelfile the folder
    this runs in is taken (`FROM .`).
    """
    try:
        parse_name(args[0])
    except InvalidName as error:
        raise CliError(f"invalid model name: {args[0]}") from error
    source, folder = _read(file)
    try:
        meaning = interpret(parse_modelfile(source))
    except ModelfileError as error:
        raise CliError(str(error)) from error
    for warning in meaning.warnings:
        err(warning)
    body = {"model": args[0], "quantize": quantize, "draft_quantize": draft_quantize, **_texts(meaning)}
    run_async(_create(body, meaning, folder))


def _read(file: str) -> tuple[bytes, Path]:
    """The Modelfile's bytes and the folder its paths are relative to."""
    path = _expanded(file or "Modelfile")
    try:
        return path.read_bytes(), path.absolute().parent
    except FileNotFoundError as error:
        if file:
            raise CliError("specified Modelfile wasn't found") from error
        return b"FROM .\n", Path.cwd()
    except OSError as error:
        raise CliError(f"the Modelfile {path} cannot be read: {error.strerror}") from error


def _texts(meaning: Meaning) -> dict[str, Any]:
    """The parts of the request that need no file; only what the Modelfile gives."""
    texts = {
        "template": meaning.template,
        "system": meaning.system,
        "renderer": meaning.renderer,
        "parser": meaning.parser,
        "requires": meaning.requires,
        "license": meaning.licenses,
        "parameters": meaning.parameters,
        "messages": meaning.messages,
    }
    return {name: value for name, value in texts.items() if value}


async def _create(body: dict[str, Any], meaning: Meaning, folder: Path) -> None:
    async with connected() as client:
        try:
            with Display() as display:
                display.step("gathering model components")
                body |= await _sources(client, display, meaning, folder)
                await follow(client.create({name: value for name, value in body.items() if value}), display)
        except ClientError as error:
            if _ONLY_FULL_PRECISION in str(error):
                err("note: this model is quantized already: leave --quantize out, or name one in full precision")
            raise


async def _sources(client: Client, display: Display, meaning: Meaning, folder: Path) -> dict[str, Any]:
    """`from` or `files`, and the adapter's and draft's files, all uploaded."""
    sources: dict[str, Any] = {}
    files: dict[str, Path] = {}
    for base in meaning.bases:
        path = _local(base, folder)
        if path is None:
            sources["from"] = base
        else:
            files |= model_files(path)
    adapters: dict[str, Path] = {}
    if meaning.adapter is not None:
        adapters = model_files(_existing(meaning.adapter, folder))
    drafts: dict[str, Path] = {}
    for draft in meaning.drafts:
        path = _local(draft, folder)
        if path is None:
            sources["draft"] = draft
        else:
            drafts |= model_files(path)
    for field, paths in (("files", files), ("adapters", adapters), ("draft_files", drafts)):
        sources[field] = await _upload(client, display, paths)
    return sources


def _local(value: str, folder: Path) -> Path | None:
    """The file or folder a FROM names; None if there is none, so it is a model's name."""
    path = folder / _expanded(value)
    if not path.exists():
        if value.startswith(("./", "../", "/", "~")) or value.lower().endswith(".gguf"):
            raise CliError(f"no such file or folder: {value}")
        return None
    if not (path.is_file() or path.is_dir()):
        raise CliError(f"{value} is neither a file nor a folder")
    return path


def _expanded(value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # ~somebody whom the system does not know
        raise CliError(f"no such file or folder: {value}") from error


def _existing(value: str, folder: Path) -> Path:
    path = _local(value, folder)
    if path is None:
        raise CliError(f"no such file or folder: {value}")
    return path


def model_files(path: Path) -> dict[str, Path]:
    """The files of a model by their name inside it: one file, or of a folder the safetensors set, else its GGUF files.

    Raises CliError where a folder holds no model or a link leads out of it.
    """
    if not path.is_dir():
        return {path.name: path}
    try:
        names = model_file_names(path)
        if not any(name.endswith(".safetensors") for name in names):
            names = sorted(file.name for file in path.glob("*.gguf"))
        if not names:
            raise CliError("no Modelfile or safetensors files found")
        return {name: checked_path(path, name) for name in names}
    except RegistryError as error:
        raise CliError(str(error)) from error


async def _upload(client: Client, display: Display, files: Mapping[str, Path]) -> dict[str, str]:
    """Digest of each file; those the server does not have are sent."""
    digests = {}
    for name, path in files.items():
        digest = f"sha256:{await asyncio.to_thread(_sha256, path)}"
        digests[name] = digest
        if not await client.has_blob(digest):
            display.step(f"copying file {digest}")
            await client.upload(digest, path, _percentages(display, digest, path.stat().st_size))
    return digests


def _percentages(display: Display, digest: str, size: int) -> Callable[[int], None]:
    def show(sent: int) -> None:
        display.restate(f"copying file {digest} {100 if size == 0 else sent * 100 // size}%")

    return show


def _sha256(path: Path) -> str:
    total = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                total.update(block)
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from error
    return total.hexdigest()
