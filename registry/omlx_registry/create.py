"""Creating: a new model from a local one or from uploaded files, with texts, parameters, an adapter, quantized or not.

`plan_texts` decides how the request and the base model's texts combine; `create` does the work and reports it in
Ollama's status lines. Weights are never copied: a derived model names the blobs of its base.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.acceptance import accept
from omlx_registry.adapters import block_count, check_adapter, convert_adapter
from omlx_registry.assemble import Overrides, Texts, assemble, overrides_of, read_texts, text_layers
from omlx_registry.blobs import canonical_digest
from omlx_registry.describe import read_config
from omlx_registry.errors import CreateError, Damaged, InvalidDigest, InvalidModel, ModelfileError, reason
from omlx_registry.folders import file_layers, model_file_names
from omlx_registry.loadable import prepare_checks, require_loadable
from omlx_registry.lora import adapter_layers
from omlx_registry.manifest import ADAPTER, DRAFT, FILE, FOLDERS, LICENSE, WEIGHTS, Layer
from omlx_registry.manifest_folder import ManifestFile
from omlx_registry.metadata import Files, find_out
from omlx_registry.model_files import is_safe_path
from omlx_registry.modelfile import SEMVER, check_backend
from omlx_registry.names import Name
from omlx_registry.options import stops_excess
from omlx_registry.quantize import recipe, require_unquantized
from omlx_registry.spec import Progress
from omlx_registry.store import Store
from omlx_registry.templates import CheckChat, special_tokens
from omlx_registry.worker_client import ImportGguf, Job, JobProgress, Quantize, run_job

LONG_WORK: Final = "0000000000000000000"
"""The digest Ollama gives to lines about converting and quantizing."""
_MOST_ENTRIES = {
    "files": 10_000, "adapters": 10_000, "draft_files": 10_000, "parameters": 1000, "messages": 10_000, "license": 1000
}  # fmt: skip
"""Of the lists that a request may bring: each is read again whenever the model is shown or loaded."""


class Info(msgspec.Struct, frozen=True):
    """What the maker of a model may state about it."""

    capabilities: list[str] = []
    model_family: str = ""
    base_name: str = ""
    quantization_level: str = ""
    parameter_size: str = ""
    context_length: int = 0
    embedding_length: int = 0


class CreateSpec(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """What to make. Empty fields keep what the base model has.

    Exactly one of `source` (a model name, Ollama's `from`) and `files` (relative name → digest of an uploaded blob) is
    needed; with both, the files are the weights and the model gives the texts.
    """

    model: str
    source: str = ""
    files: dict[str, str] = {}
    adapters: dict[str, str] = {}
    draft: str = ""
    """A model whose files become the draft model; instead of `draft_files`."""
    draft_files: dict[str, str] = {}
    template: str = ""
    system: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    license: str | list[str] = []
    parameters: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    quantize: str = ""
    draft_quantize: str = ""
    remote_host: str = ""
    info: Info = Info()


def check_request(request: CreateSpec) -> None:
    """Refuse what is wrong before any work is done. Raises CreateError with Ollama's texts."""
    if request.remote_host:
        raise CreateError("bad remote: this server runs no remote models")
    if not request.source and not request.files:
        raise CreateError("neither 'from' or 'files' was specified")
    for field, most in _MOST_ENTRIES.items():
        entries = getattr(request, field)
        if not isinstance(entries, str) and len(entries) > most:
            raise CreateError(f"{field} may hold at most {most:,} entries")
    for path, digest in {**request.files, **request.adapters, **request.draft_files}.items():
        if not is_safe_path(path):
            raise CreateError("file path must be relative")
        try:
            canonical_digest(digest)
        except InvalidDigest as error:
            raise CreateError(error.message) from error
    for message in request.messages:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content", ""), str):
            raise CreateError("a message needs a role and a content")
    if request.requires and not SEMVER.fullmatch(request.requires):
        raise CreateError("requires must be a valid semver (e.g. 0.14.0)")
    if (backend := request.parameters.get("distributed")) is not None:
        try:
            check_backend(backend)
        except ModelfileError as error:
            raise CreateError(str(error)) from error
    stops = request.parameters.get("stop")
    if isinstance(stops, list) and (excess := stops_excess(stops)):
        # With more of them no request for the model could be served.
        raise CreateError(excess)
    if request.quantize:
        recipe(request.quantize)
    if request.draft_quantize:
        if not (request.draft or request.draft_files):
            raise CreateError("--draft-quantize requires a DRAFT model")
        recipe(request.draft_quantize)


def plan_texts(request: CreateSpec, base: Texts) -> Texts:
    """Template, system and messages replace; parameters merge (null removes one); licences add up. Pure."""
    licenses = [request.license] if isinstance(request.license, str) else list(request.license)
    merged = {**base.parameters, **request.parameters}
    messages = [{"role": it["role"], "content": it.get("content", "")} for it in request.messages]
    return Texts(
        template=request.template or base.template,
        system=request.system or base.system,
        parameters={key: value for key, value in merged.items() if value is not None},
        messages=messages or base.messages,
        licenses=list(dict.fromkeys([*base.licenses, *(text for text in licenses if text)])),
    )


def plan_overrides(request: CreateSpec, base: Overrides) -> Overrides:
    """The statements of the request win over what the base model says about itself. Pure."""
    info = request.info
    return msgspec.structs.replace(
        base,
        family=info.model_family or base.family,
        parameter_size=info.parameter_size or base.parameter_size,
        quantization_level=info.quantization_level or base.quantization_level,
        context_length=max(info.context_length, 0) or base.context_length,
        embedding_length=info.embedding_length or base.embedding_length,
        capabilities=list(dict.fromkeys([*info.capabilities, *base.capabilities])),
        renderer=request.renderer or base.renderer,
        parser=request.parser or base.parser,
        requires=request.requires.removeprefix("v") or base.requires,
        base_name=info.base_name or base.base_name,
    )


class _Making(msgspec.Struct):
    """A model in the making: what is known of it so far."""

    layers: list[Layer] = []
    texts: Texts = Texts()
    overrides: Overrides = Overrides()
    new: set[str] = set()


async def create(
    store: Store, name: Name, request: CreateSpec, *, source: str = "", check_chat: CheckChat | None = None
) -> AsyncGenerator[Progress]:
    """Make the model; a base or draft model that the request names is here. The last status is `writing manifest`.

    `source`: where the files come from, kept in the manifest. `check_chat` refuses the Jinja templates of new files,
    where no TEMPLATE takes their place.

    Raises CreateError, NotFound, InvalidModel, Damaged; then nothing is listed, and blobs made on the way are removed.
    Inner generators are closed at once on any way out, so that a worker has ended before its folder is removed.
    """
    made = _Making(overrides=Overrides(source=source))
    replaced: set[str] = set()
    files, adapters, drafts = (
        {path: canonical_digest(digest) for path, digest in given.items()}
        for given in (request.files, request.adapters, request.draft_files)
    )
    request = msgspec.structs.replace(request, files=files, adapters=adapters, draft_files=drafts)
    try:
        with store.working(), store.workspace() as space:
            # Looked up only now: from here on nobody removes the blobs that the new model shares.
            if request.source:
                _begin_with(store, store.get(request.source), made)
            if request.draft:
                layers = store.get(request.draft).manifest.layers
                drafted = {layer.name: layer.digest for layer in layers if layer.media_type in {WEIGHTS, FILE}}
                request = msgspec.structs.replace(request, draft_files=drafted)
            if request.files:
                prepare_checks(store)
                async with aclosing(_take_files(store, request.files, made, space / "converted")) as lines:
                    async for progress in lines:
                        yield progress
            if request.quantize:
                async with aclosing(_quantize(store, made, request.quantize, space / "quantized")) as lines:
                    async for progress in lines:
                        yield progress
            async with aclosing(_add_extras(store, request, made, space)) as lines:
                async for progress in lines:
                    yield progress
            if request.files:
                stated = plan_overrides(request, made.overrides).capabilities
                await require_loadable(store, made.layers, space / "loads", stated)
            for layer in made.layers:
                yield _layer_line(layer, new=layer.digest in made.new)
            texts = plan_texts(request, made.texts)
            if check_chat is not None and request.files and not texts.template:
                await asyncio.to_thread(_check_chat, Files(made.layers, store.blobs), check_chat)
            for layer, new in await asyncio.to_thread(text_layers, store.blobs, texts):
                made.layers.append(layer)
                made.new |= {layer.digest} if new else set()
                yield _layer_line(layer, new=new)
            yield Progress("writing manifest")
            overrides = plan_overrides(request, made.overrides)
            _, replaced = await asyncio.to_thread(assemble, store, name, made.layers, overrides)
            # What was uploaded to be converted is not needed any more.
            replaced |= {*files.values(), *adapters.values(), *drafts.values()}
    except InvalidModel as error:
        raise CreateError(error.message) from error
    finally:
        # After a success the new ones are mentioned by the manifest, and stay.
        await asyncio.shield(asyncio.to_thread(store.drop, made.new | replaced))


def _check_chat(files: Files, check: CheckChat) -> None:
    try:
        check(files.chat_templates(), special_tokens(files.json("tokenizer_config.json")))
    except ValueError as error:
        raise CreateError(str(error)) from error


def _layer_line(layer: Layer, *, new: bool) -> Progress:
    return Progress(f"{'creating new' if new else 'using existing'} layer {layer.digest}")


def _begin_with(store: Store, base: ManifestFile, made: _Making) -> None:
    try:
        made.texts = read_texts(base.manifest, store.blobs)
        made.overrides = msgspec.structs.replace(
            overrides_of(read_config(store, base)), parent_model=base.entry.name.short
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise Damaged(f"model '{base.entry.name.short}' is damaged: {reason(error, store.root)}") from error
    made.layers = [layer for layer in base.manifest.layers if layer.media_type in FOLDERS]


async def _take_files(store: Store, files: Mapping[str, str], made: _Making, folder: Path) -> AsyncGenerator[Progress]:
    """The uploaded files as layers in place of the base model's; a GGUF file is converted first."""
    # Other weights: what the base model says about its own figures does not hold for them.
    made.overrides = msgspec.structs.replace(
        made.overrides, family="", parameter_size="", quantization_level="", context_length=0, embedding_length=0
    )
    gguf = [path for path, digest in files.items() if _is_gguf(store, path, digest)]
    if len(gguf) > 1:
        raise CreateError("only one GGUF file is supported")
    if gguf:
        async with aclosing(_convert(ImportGguf(str(store.blobs.path(files[gguf[0]])), str(folder)), made)) as lines:
            async for progress in lines:
                yield progress
        layers, new = await asyncio.to_thread(take_folder, store, folder)
        made.new |= new
    elif any(path.endswith(".safetensors") for path in files):
        yield Progress("converting model")
        layers = file_layers(store.blobs, files)
    else:
        raise CreateError("unknown type: a model is a GGUF file, or config.json and *.safetensors files")
    licenses = [layer for layer in layers if layer.media_type == LICENSE]
    made.layers = [layer for layer in layers if layer.media_type != LICENSE]
    if licenses and not made.texts.licenses:
        texts = [store.blobs.path(layer.digest).read_text(errors="replace") for layer in licenses]
        made.texts = msgspec.structs.replace(made.texts, licenses=texts)


async def _convert(job: Job, made: _Making) -> AsyncGenerator[Progress]:
    async with aclosing(run_job(job)) as steps:
        async for step in steps:
            if isinstance(step, JobProgress):
                yield Progress(step.status, LONG_WORK if step.total else "", step.total, step.completed)
            else:
                for note in step.result.get("notes", []):
                    yield Progress(f"note: {note}")
                level = str(step.result.get("quantization_level", ""))
                made.overrides = msgspec.structs.replace(made.overrides, quantization_level=level)


async def _quantize(store: Store, made: _Making, name: str, folder: Path) -> AsyncGenerator[Progress]:
    """The weights anew in another precision. Only full-precision models: rounding twice would spoil them."""
    if any(layer.media_type == ADAPTER for layer in made.layers):
        raise CreateError("a model with an adapter cannot be quantized: quantize its base model")
    if made.overrides.quantization_level:
        require_unquantized(made.overrides.quantization_level)
    await asyncio.to_thread(accept, made.layers, store.blobs)  # before a library reads any of it
    source = folder.with_name(f"{folder.name}-source")
    await asyncio.to_thread(store.views.materialize_layers, made.layers, source)
    async with aclosing(_convert(Quantize(str(source), str(folder), name), made)) as lines:
        async for progress in lines:
            yield progress
    extras = [layer for layer in made.layers if layer.media_type not in {WEIGHTS, FILE}]
    layers, new = await asyncio.to_thread(take_folder, store, folder)
    made.layers = [layer for layer in layers if layer.media_type != LICENSE] + extras
    made.new |= new
    yield Progress("verifying conversion")


async def _add_extras(store: Store, request: CreateSpec, made: _Making, space: Path) -> AsyncGenerator[Progress]:
    """Adapter and draft model."""
    if request.adapters:
        yield Progress("converting adapter")
        _require_blobs(store, request.adapters)
        config = Files(made.layers, store.blobs).config()
        blocks = block_count(config)
        if len(request.adapters) == 1 and _is_gguf(store, *next(iter(request.adapters.items()))):
            path = store.blobs.path(next(iter(request.adapters.values())))
            layers = await convert_adapter(store, path, config, space / "adapter")
        else:
            layers = await asyncio.to_thread(adapter_layers, store.blobs, request.adapters, blocks)
        await asyncio.to_thread(check_adapter, store, made.layers, layers, blocks)
        made.layers = [layer for layer in made.layers if layer.media_type != ADAPTER] + layers
        made.new |= {layer.digest for layer in layers} - set(request.adapters.values())
    if request.draft_files:
        _require_blobs(store, request.draft_files)
        draft = _Making()
        async with aclosing(_take_files(store, request.draft_files, draft, space / "draft")) as lines:
            async for progress in lines:
                yield progress
        if request.draft_quantize:
            async with aclosing(_quantize(store, draft, request.draft_quantize, space / "draft-quantized")) as lines:
                async for progress in lines:
                    yield progress
        await require_loadable(store, draft.layers, space / "draft-loads")
        await asyncio.to_thread(find_out, draft.layers, store.blobs, template=None, explicit_capabilities=[])
        layers = [Layer(DRAFT, layer.digest, layer.size, name=layer.name) for layer in draft.layers]
        made.layers = [layer for layer in made.layers if layer.media_type != DRAFT] + layers
        made.new |= draft.new


def take_folder(store: Store, folder: Path) -> tuple[list[Layer], set[str]]:
    """Move a folder that a worker wrote into blobs."""
    placed = {name: store.blobs.put_file(folder / name, "move") for name in model_file_names(folder)}
    layers = file_layers(store.blobs, {name: blob.digest for name, blob in placed.items()})
    return layers, {blob.digest for blob in placed.values() if blob.new}


def _is_gguf(store: Store, path: str, digest: str) -> bool:
    """By content, not by name. Raises CreateError where the blob is absent or only called GGUF."""
    _require_blobs(store, {path: digest})
    with store.blobs.path(digest).open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF":
        return True
    if path.lower().endswith(".gguf"):
        raise CreateError("supplied file was not in GGUF format")
    return False


def _require_blobs(store: Store, files: Mapping[str, str]) -> None:
    for path, digest in files.items():
        if not store.blobs.has(digest):
            raise CreateError(f"blob {digest} of {path} is not there: upload it first")


CheckTemplate = Callable[[str], object]
"""Raises ValueError with the reason where a Go template cannot be used."""
