"""The import of Ollama's models: each becomes a model of this store under its own name, manifest last.

A GGUF model is converted, an MLX model of Ollama's put together from its tensors; template, system prompt, parameters,
messages, licences and adapter come along. What has been imported is not imported again, so an import that was
interrupted goes on with the model at which it stopped. One model that cannot be imported does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.adapters import block_count, check_adapter, convert_adapter
from omlx_registry.assemble import Overrides, assemble, text_layers
from omlx_registry.catalog import resolve
from omlx_registry.create import take_folder
from omlx_registry.describe import read_config
from omlx_registry.errors import CreateError, Damaged, InvalidModel, NotFound, PullError, RegistryError, reason
from omlx_registry.gguf.encoders import without_encoder
from omlx_registry.manifest import ADAPTER, FILE, LICENSE, WEIGHTS, Layer
from omlx_registry.metadata import Files
from omlx_registry.model_files import is_safe_path
from omlx_registry.names import Name
from omlx_registry.ollama.store import OllamaModel, OllamaStore, UnreadableModel
from omlx_registry.spec import ImportStep, Progress
from omlx_registry.store import Store
from omlx_registry.worker_client import (
    ImportGguf,
    ImportTensors,
    InspectGguf,
    Job,
    JobResult,
    run_job,
)

_BYTES_PER_SECOND: Final = 100e6
"""Of a conversion, cautiously: one core does 130 (Q4_1) to 270 MB (Q8_0) a second of SmolLM2-135M."""
_COPIED_PER_SECOND: Final = 400e6
_FROM_OLLAMA: Final = "ollama:"

Pull = Callable[[str], AsyncGenerator[Progress]]


class ImportSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be imported, and how."""

    models: list[str] = []
    """Names, with or without tag; empty: all."""
    link: bool = False
    """Share files that can be used as they are, by hard link."""
    pull: bool = False
    """Fetch the MLX repository that the catalog has for a name, where it has one."""
    dry_run: bool = False
    verbose: bool = False
    """A line for each tensor that is converted."""


async def import_models(
    store: Store, ollama: OllamaStore, request: ImportSpec, pull: Pull
) -> AsyncGenerator[ImportStep]:
    """Import what the request asks for. `pull` fetches a model by name into `store`. Nothing is raised for a model."""
    found = await asyncio.to_thread(ollama.models)
    for model in found:
        if not _is_wanted(model.name, request.models):
            continue
        name = model.name.short
        try:
            async with aclosing(_import(store, ollama, model, request, pull)) as steps:
                async for step in steps:
                    yield msgspec.structs.replace(step, model=name)
        except RegistryError as error:
            hint = f"; `omlx pull {name}` fetches its MLX repository" if _in_catalog(model.name) else ""
            yield ImportStep(f"skipping {name}: {error.message}{hint}", model=name, outcome="refused")
        except OSError as error:
            yield ImportStep(f"skipping {name}: {reason(error, ollama.root)}", model=name, outcome="refused")
    for text in request.models:
        if not any(_is_wanted(model.name, [text]) for model in found):
            yield ImportStep(f"skipping {text}: Ollama has no such model", model=text, outcome="refused")


def _is_wanted(name: Name, wanted: list[str]) -> bool:
    spellings = {name.short.lower(), name.full.lower()}
    spellings |= {spelling.rpartition(":")[0] for spelling in spellings}
    return not wanted or any(text.lower() in spellings for text in wanted)


async def _import(
    store: Store, ollama: OllamaStore, model: OllamaModel | UnreadableModel, request: ImportSpec, pull: Pull
) -> AsyncGenerator[ImportStep]:
    if isinstance(model, UnreadableModel):
        raise InvalidModel(model.reason)
    name = model.name.short
    here = await asyncio.to_thread(_present, store, model)
    if here:
        yield ImportStep(here, outcome="present")
        return
    if request.pull and _in_catalog(model.name):
        if request.dry_run:
            yield ImportStep(f"{name}: its MLX repository is pulled", outcome="planned")
            return
        try:
            async with aclosing(pull(name)) as lines:
                async for line in lines:
                    yield _step(name, line)
        except PullError as error:
            yield ImportStep(f"note: {name} is converted instead: {error.message}")
        else:
            yield ImportStep(f"{name} is pulled", outcome="imported")
            return
    steps = _plan(store, ollama, model, request) if request.dry_run else _convert(store, ollama, model, request)
    async with aclosing(steps):
        async for step in steps:
            yield step


def _present(store: Store, model: OllamaModel) -> str:
    """The sentence for a model that is here already; "" for one that is not, or of which Ollama has a newer state.

    Raises InvalidName where the name is Ollama's own in a folder that both share.
    """
    name = model.name.short
    store.require_free(model.name)
    try:
        stored = store.get(model.name.full)
        facts = read_config(store, stored).omlx
    except (NotFound, Damaged, OSError, msgspec.MsgspecError):
        return ""
    source = facts.source if facts else ""
    if source == model.source:
        return f"{name} is here already"
    if source.startswith(_FROM_OLLAMA) and facts is not None and not facts.parent_model:
        return ""
    return f"{name} is here already, though not from Ollama: it stays as it is"


def _in_catalog(name: Name) -> bool:
    try:
        return name.repository is None and resolve(name) is not None
    except PullError:
        return False


def _step(name: str, line: Progress) -> ImportStep:
    """A line about a part of the work; what has a bar belongs to the model."""
    if not line.total:
        return ImportStep(f"{name}: {line.status}")
    return ImportStep(f"{name}: {line.status}", f"{name} {line.digest or line.status}", line.total, line.completed)


async def _run(name: str, job: Job, result: list[dict[str, Any]]) -> AsyncGenerator[ImportStep]:
    """The lines of a worker; `result` takes what it made. Raises CreateError."""
    async with aclosing(run_job(job)) as lines:
        async for line in lines:
            if isinstance(line, JobResult):
                result.append(line.result)
            else:
                yield _step(name, Progress(line.status, line.digest, line.total, line.completed))


async def _plan(
    store: Store, ollama: OllamaStore, model: OllamaModel, request: ImportSpec
) -> AsyncGenerator[ImportStep]:
    """What an import would do, without doing it; the content of large files is not verified."""
    name, size = model.name.short, model.size
    await asyncio.to_thread(ollama.overrides, model)
    await asyncio.to_thread(ollama.texts, model)
    ggufs = model.layers("model")
    if ggufs:
        paths = [ollama.path(layer) for layer in ggufs]
        result: list[dict[str, Any]] = []
        with store.workspace() as space:
            job = InspectGguf(str(_named(space / "source", paths)))
            async with aclosing(_run(name, job, result)) as steps:
                async for _ in steps:
                    pass
        for note in [*_notes(model), *result[0]["notes"]]:
            yield ImportStep(f"note: {name}: {note}")
        for text in result[0]["tensors"] if request.verbose else []:
            yield ImportStep(f"{name}: {text}")
        before, after = sum(layer.size for layer in ggufs), int(result[0]["bytes"])
        seconds, level = int(before / _BYTES_PER_SECOND), result[0]["quantization_level"]
        yield ImportStep(
            f"{name}: {_size(before)} of {level} become {_size(after)}, about {_time(seconds)}",
            outcome="planned", bytes=after, seconds=seconds,
        )  # fmt: skip
        return
    for layer in _tensor_layers(model):
        ollama.path(layer)
    seconds = int(size / _COPIED_PER_SECOND)
    yield ImportStep(f"{name}: {_size(size)}, about {_time(seconds)}", outcome="planned", bytes=size, seconds=seconds)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{max(1, round(seconds))} s"


def _notes(model: OllamaModel) -> list[str]:
    return [without_encoder("images")] if model.layers("projector") else []


def _tensor_layers(model: OllamaModel) -> list[Layer]:
    """The tensor layers of an MLX model. Raises InvalidModel where it has none."""
    layers = model.layers("tensor")
    if not layers:
        raise InvalidModel("it has no weights")
    return layers


async def _convert(
    store: Store, ollama: OllamaStore, model: OllamaModel, request: ImportSpec
) -> AsyncGenerator[ImportStep]:
    name = model.name.short
    yield ImportStep(f"importing {name}")
    overrides = await asyncio.to_thread(ollama.overrides, model)
    texts = await asyncio.to_thread(ollama.texts, model)
    new: set[str] = set()
    try:
        with store.working(), store.workspace() as space:
            before = await asyncio.to_thread(_made_before, store, model)
            if before is None:
                made: list[tuple[list[Layer], Overrides]] = []
                work = _weights(store, ollama, model, request, space, overrides, made)
                async with aclosing(work) as steps:
                    async for step in steps:
                        yield step
                layers, overrides = made[0]
                new |= {layer.digest for layer in layers}
            else:
                layers, level = before
                overrides = msgspec.structs.replace(overrides, quantization_level=level)
                yield ImportStep(f"{name}: its weights are here already")
            adapters = model.layers("adapter")
            if adapters:
                layers += await _adapter(store, ollama, adapters, layers, space)
                new |= {layer.digest for layer in layers if layer.media_type == ADAPTER}
            placed = await asyncio.to_thread(text_layers, store.blobs, texts)
            layers += [layer for layer, _ in placed]
            new |= {layer.digest for layer, fresh in placed if fresh}
            _, replaced = await asyncio.to_thread(assemble, store, model.name, layers, overrides)
            new |= replaced
    finally:
        # After a success the manifest mentions them, and they stay.
        await asyncio.shield(asyncio.to_thread(store.drop, new))
    yield ImportStep(f"{name} is imported", outcome="imported", bytes=sum(layer.size for layer in layers))


def _made_before(store: Store, model: OllamaModel) -> tuple[list[Layer], str] | None:
    """Layers and quantization of a model here that was made of the same weights; None where there is none."""
    for entry in store.entries():
        try:
            stored = store.read(entry)
            if not stored.manifest.is_ours:
                continue
            config = read_config(store, stored)
        except (Damaged, OSError, msgspec.MsgspecError):
            continue
        source = config.omlx.source if config.omlx else ""
        if not source.startswith(_FROM_OLLAMA) or source.rpartition(":")[2] != model.weights:
            continue
        layers = [layer for layer in stored.manifest.layers if layer.media_type in {WEIGHTS, FILE}]
        if all(store.blobs.size(layer.digest) == layer.size for layer in layers):
            return layers, config.file_type
    return None


async def _weights(
    store: Store,
    ollama: OllamaStore,
    model: OllamaModel,
    request: ImportSpec,
    space: Path,
    overrides: Overrides,
    made: list[tuple[list[Layer], Overrides]],
) -> AsyncGenerator[ImportStep]:
    """Convert or copy the weights; `made` takes the layers and what is known of the model."""
    name, folder = model.name.short, space / "model"
    ggufs = model.layers("model")
    sources = ggufs or _tensor_layers(model) + model.layers("json")
    check = _digests([ollama.path(layer) for layer in sources])
    if ggufs:
        for note in _notes(model):
            yield ImportStep(f"note: {name}: {note}")
        job: Job = ImportGguf(
            str(_named(space / "source", [ollama.path(it) for it in ggufs])), str(folder), check=check
        )
    else:
        files = {layer.name: str(ollama.path(layer)) for layer in model.layers("json")}
        if unsafe := next((path for path in files if not is_safe_path(path)), None):
            raise InvalidModel(f"its manifest names an unsafe path: {unsafe[:200]!r}")
        files = {path: source for path, source in files.items() if not path.endswith(".index.json")}
        blobs = [str(ollama.path(layer)) for layer in _tensor_layers(model)]
        job = ImportTensors(blobs, files, str(folder), request.link, check)
    result: list[dict[str, Any]] = []
    async with aclosing(_run(name, job, result)) as steps:
        async for step in steps:
            yield step
    for note in result[0].get("notes", []):
        yield ImportStep(f"note: {name}: {note}")
    for text in result[0].get("tensors", []) if request.verbose else []:
        yield ImportStep(f"{name}: {text}")
    if request.link and ggufs:
        yield ImportStep(f"note: {name} is converted: its files cannot be shared with Ollama")
    layers, _ = await asyncio.to_thread(take_folder, store, folder)
    level = str(result[0].get("quantization_level", ""))
    layers = [layer for layer in layers if layer.media_type != LICENSE]
    made.append((layers, msgspec.structs.replace(overrides, quantization_level=level)))


def _digests(paths: list[Path]) -> dict[str, str]:
    """The digest that each blob is named after, for a worker to verify."""
    return {str(path): path.name[7:] for path in paths}


def _named(folder: Path, paths: list[Path]) -> Path:
    """GGUF files under the names that the parts of a split file have; the path of the first."""
    folder.mkdir()
    count = len(paths)
    names = [f"model-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)] if count > 1 else ["model.gguf"]
    for name, path in zip(names, paths, strict=True):
        (folder / name).symlink_to(path.absolute())
    return folder / names[0]


async def _adapter(
    store: Store, ollama: OllamaStore, adapters: list[Layer], base: list[Layer], space: Path
) -> list[Layer]:
    if len(adapters) > 1:
        raise CreateError("it has several adapters, of which MLX models take one")
    config = Files(base, store.blobs).config()
    path = ollama.path(adapters[0])
    layers = await convert_adapter(store, path, config, space / "adapter", check=_digests([path]))
    await asyncio.to_thread(check_adapter, store, base, layers, block_count(config))
    return layers
