"""Assembling: from blobs that are stored to a manifest that names them. The last step of every import and create.

Texts around the weights become layers of their own, facts are derived, the config blob is written, the manifest
last. Whoever assembles holds `Store.working()` from before its first blob until after this.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from omlx_registry.acceptance import accept
from omlx_registry.blobs import BlobStore
from omlx_registry.manifest import (
    CONFIG_TYPE,
    LICENSE,
    MANIFEST_TYPE,
    MESSAGES,
    PARAMS,
    SYSTEM,
    TEMPLATE,
    ImageConfig,
    Layer,
    Manifest,
    encode,
)
from omlx_registry.manifest_folder import ManifestFile
from omlx_registry.metadata import find_out
from omlx_registry.names import Name
from omlx_registry.spec import human_parameters
from omlx_registry.store import Store

_ONE_OF_A_KIND: Final = frozenset({TEMPLATE, SYSTEM, PARAMS, MESSAGES})
_parameters = msgspec.json.Decoder(dict[str, Any])
_messages = msgspec.json.Decoder(list[dict[str, str]])


class Texts(msgspec.Struct, frozen=True):
    """What surrounds the weights: the parts of a Modelfile that are text."""

    template: str | None = None
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    licenses: list[str] = []


class Overrides(msgspec.Struct, frozen=True):
    """What the maker of a model knows better than its files; "" or 0: derive it."""

    family: str = ""
    parameter_size: str = ""
    quantization_level: str = ""
    context_length: int = 0
    embedding_length: int = 0
    capabilities: list[str] = []
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    base_name: str = ""
    parent_model: str = ""
    source: str = ""


def text_layers(blobs: BlobStore, texts: Texts) -> list[tuple[Layer, bool]]:
    """Store the texts; each layer and whether its blob is new."""
    contents: list[tuple[str, bytes]] = []
    if texts.template is not None:
        contents.append((TEMPLATE, texts.template.encode()))
    if texts.system:
        contents.append((SYSTEM, texts.system.encode()))
    if texts.parameters:
        contents.append((PARAMS, msgspec.json.encode(texts.parameters)))
    if texts.messages:
        contents.append((MESSAGES, msgspec.json.encode(texts.messages)))
    contents += [(LICENSE, text.encode()) for text in texts.licenses]
    layers = []
    for media_type, data in contents:
        placed = blobs.put_bytes(data)
        layers.append((Layer(media_type, placed.digest, placed.size), placed.new))
    return layers


def read_texts(manifest: Manifest, blobs: BlobStore) -> Texts:
    """The texts of a stored model. Raises OSError or msgspec.MsgspecError where a blob is gone or broken."""
    data = {it.media_type: blobs.read(it.digest) for it in manifest.layers if it.media_type in _ONE_OF_A_KIND}
    template, parameters, messages = data.get(TEMPLATE), data.get(PARAMS), data.get(MESSAGES)
    return Texts(
        template=None if template is None else template.decode(errors="replace"),
        system=data.get(SYSTEM, b"").decode(errors="replace"),
        parameters={} if parameters is None else _parameters.decode(parameters),
        messages=[] if messages is None else _messages.decode(messages),
        licenses=[blobs.read(it.digest).decode(errors="replace") for it in manifest.layers if it.media_type == LICENSE],
    )


def assemble(store: Store, name: Name, layers: list[Layer], overrides: Overrides) -> tuple[ManifestFile, set[str]]:
    """Write the model. Returns it and the digests that the name does not need any more (see `Store.drop`).

    Raises InvalidModel where the layers make no model, Damaged where one of their blobs is gone.
    """
    templates = [layer for layer in layers if layer.media_type == TEMPLATE]
    accept(layers, store.blobs)
    template = store.blobs.read(templates[-1].digest).decode(errors="replace") if templates else None
    facts = find_out(
        layers,
        store.blobs,
        template=template,
        explicit_capabilities=overrides.capabilities,
        parent_model=overrides.parent_model,
        source=overrides.source,
    )
    family = overrides.family or facts.shape.family
    config = ImageConfig(
        model_format="safetensors",
        model_family=family,
        model_families=[family],
        model_type=overrides.parameter_size or human_parameters(facts.facts.parameter_count),
        file_type=overrides.quantization_level or facts.census.level,
        renderer=overrides.renderer,
        parser=overrides.parser,
        requires=overrides.requires,
        capabilities=overrides.capabilities,
        context_length=overrides.context_length or facts.shape.context_length,
        embedding_length=overrides.embedding_length or facts.shape.embedding_length,
        base_name=overrides.base_name,
        omlx=facts.facts,
    )
    data = encode(config)
    placed = store.blobs.put_bytes(data)
    return store.write(name, Manifest(2, MANIFEST_TYPE, Layer(CONFIG_TYPE, placed.digest, placed.size), layers))


def overrides_of(config: ImageConfig) -> Overrides:
    """What a model made from this one inherits."""
    return Overrides(
        family=config.model_family,
        parameter_size=config.model_type,
        quantization_level=config.file_type,
        context_length=config.context_length,
        embedding_length=config.embedding_length,
        capabilities=config.capabilities,
        renderer=config.renderer,
        parser=config.parser,
        requires=config.requires,
        base_name=config.base_name,
        parent_model=config.omlx.parent_model if config.omlx else "",
        source=config.omlx.source if config.omlx else "",
    )
