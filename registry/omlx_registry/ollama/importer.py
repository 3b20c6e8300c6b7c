"""The import of Ollama's models: each becomes a model of this store under its own name, manifest last.

A GGUF model is converted; an MLX model of Ollama is assembled from its tensors. Template, system prompt, parameters,
messages, licences and adapter are imported with it. Models that are already imported are skipped, so an interrupted
import resumes at the model where it stopped. A model that cannot be imported does not stop the others.
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
from omlx_registry.loadable import prepare_checks, require_loadable_folder
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
"""A low estimate for conversions: one core converts 130 (Q4_1) to 270 MB (Q8_0) a second of SmolLM2-135M."""
_COPIED_PER_SECOND: Final = 400e6
_FROM_OLLAMA: Final = "ollama:"

Pull = Callable[[str], AsyncGenerator[Progress]]


class ImportSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an import."""

    models: list[str] = []
    """Names, with or without tag; empty: all."""
    link: bool = False
    """Hard-link files that need no change."""
    pull: bool = False
    """Fetch a model's MLX repository if the catalog has one."""
    dry_run: bool = False
    verbose: bool = False
    """Report each converted tensor."""


async def import_models(
    store: Store, ollama: OllamaStore, request: ImportSpec, pull: Pull
) -> AsyncGenerator[ImportStep]:
    """Import the requested models. `pull` fetches a model by name into `store`. Errors of models become steps."""
    models = await asyncio.to_thread(ollama.models)
    for model in models:
        if not _is_requested(model.name, request.models):
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
        if not any(_is_requested(model.name, [text]) for model in models):
            yield ImportStep(f"skipping {text}: Ollama has no such model", model=text, outcome="refused")


def _is_requested(name: Name, requested: list[str]) -> bool:
    spellings = {name.short.lower(), name.full.lower()}
    spellings |= {spelling.rpartition(":")[0] for spelling in spellings}
    return not requested or any(text.lower() in spellings for text in requested)


async def _import(
    store: Store, ollama: OllamaStore, model: OllamaModel | UnreadableModel, request: ImportSpec, pull: Pull
) -> AsyncGenerator[ImportStep]:
    if isinstance(model, UnreadableModel):
        raise InvalidModel(model.reason)
    name = model.name.short
    reason_to_skip = await asyncio.to_thread(_present, store, model)
    if reason_to_skip:
        yield ImportStep(reason_to_skip, outcome="present")
        return
    if request.pull and _in_catalog(model.name):
        if request.dry_run:
            yield ImportStep(f"{name}: would pull its MLX repository", outcome="planned")
            return
        try:
            async with aclosing(pull(name)) as lines:
                async for line in lines:
                    yield _step(name, line)
        except PullError as error:
            yield ImportStep(f"note: {name} cannot be pulled and is converted: {error.message}")
        else:
            yield ImportStep(f"{name} is pulled", outcome="imported")
            return
    steps = _plan(store, ollama, model, request) if request.dry_run else _convert(store, ollama, model, request)
    async with aclosing(steps):
        async for step in steps:
            yield step


def _present(store: Store, model: OllamaModel) -> str:
    """The reason to skip a model that is already here; "" if it is missing or has changed in Ollama.

    Raises InvalidName if the name is Ollama's own in a shared folder.
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
        return f"{name} is already here"
    if source.startswith(_FROM_OLLAMA) and facts is not None and not facts.parent_model:
        return ""
    return f"{name} already exists here and was not imported from Ollama: it is kept"


def _in_catalog(name: Name) -> bool:
    try:
        return name.repository is None and resolve(name) is not None
    except PullError:
        return False


def _step(name: str, line: Progress) -> ImportStep:
    """A progress line as a step of the model's import; a line with a total gets a progress bar."""
    if not line.total:
        return ImportStep(f"{name}: {line.status}")
    return ImportStep(f"{name}: {line.status}", f"{name} {line.digest or line.status}", line.total, line.completed)


async def _run(name: str, job: Job, result: list[dict[str, Any]]) -> AsyncGenerator[ImportStep]:
    """The progress of a worker job; appends its result to `result`. Raises CreateError."""
    async with aclosing(run_job(job)) as lines:
        async for line in lines:
            if isinstance(line, JobResult):
                result.append(line.result)
            else:
                yield _step(name, Progress(line.status, line.digest, line.total, line.completed))


async def _plan(
    store: Store, ollama: OllamaStore, model: OllamaModel, request: ImportSpec
) -> AsyncGenerator[ImportStep]:
    """A dry run. The content of large files is not verified."""
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
                yield ImportStep(f"{name}: its weights are already here")
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
        # After a success the manifest references them, so they are kept.
        await asyncio.shield(asyncio.to_thread(store.drop, new))
    yield ImportStep(f"{name} is imported", outcome="imported", bytes=sum(layer.size for layer in layers))


def _made_before(store: Store, model: OllamaModel) -> tuple[list[Layer], str] | None:
    """Layers and quantization of a local model with the same weights; None if there is none."""
    for entry in store.manifests.entries():
        try:
            stored = store.manifests.read(entry)
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
    """Convert or copy the weights; appends the layers and the model's overrides to `made`."""
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
    prepare_checks(store)
    result: list[dict[str, Any]] = []
    async with aclosing(_run(name, job, result)) as steps:
        async for step in steps:
            yield step
    for note in result[0].get("notes", []):
        yield ImportStep(f"note: {name}: {note}")
    for text in result[0].get("tensors", []) if request.verbose else []:
        yield ImportStep(f"{name}: {text}")
    if request.link and ggufs:
        yield ImportStep(f"note: {name} is converted, so its files cannot be shared with Ollama")
    await require_loadable_folder(store, folder, overrides.capabilities)
    layers, _ = await asyncio.to_thread(take_folder, store, folder)
    level = str(result[0].get("quantization_level", ""))
    layers = [layer for layer in layers if layer.media_type != LICENSE]
    made.append((layers, msgspec.structs.replace(overrides, quantization_level=level)))


def _digests(paths: list[Path]) -> dict[str, str]:
    """The digest in the name of each blob, for the worker to verify."""
    return {str(path): path.name[7:] for path in paths}


def _named(folder: Path, paths: list[Path]) -> Path:
    """Link GGUF files under the names of a split file; returns the path of the first."""
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
        raise CreateError("it has several adapters; MLX models support one")
    config = Files(base, store.blobs).config()
    path = ollama.path(adapters[0])
    layers = await convert_adapter(store, path, config, space / "adapter", check=_digests([path]))
    await asyncio.to_thread(check_adapter, store, base, layers, block_count(config))
    return layers
