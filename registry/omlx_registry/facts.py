"""Facts: what is found out once about a model's files and kept in its config blob.

Reading headers, tokenizer and configuration of a model takes milliseconds to a second; a listing of a thousand models
has no time for that. So it is done when a manifest is written, and again only when `REVISION` says the rules changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.architecture import Shape, fingerprint, shape_of
from omlx_registry.blobs import BlobStore
from omlx_registry.capabilities import derive_capabilities, fill_in_the_middle_tokens
from omlx_registry.errors import InvalidModel
from omlx_registry.manifest import ADAPTER, FILE, WEIGHTS, Facts, Layer
from omlx_registry.thinking import is_marker_token
from omlx_registry.weights import Census, Tensor, read_header, take_census

REVISION: Final = 3
"""Raise it when capabilities, counting or the fingerprint are derived in another way than before."""

_TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
)
_POOLING_FILES: Final = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json")


class _AddedToken(msgspec.Struct):
    content: str


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class Findings(msgspec.Struct, frozen=True):
    """Facts and the figures that go into the config blob beside them."""

    facts: Facts
    shape: Shape
    census: Census


class Files:
    """The files of a model by their names, read from blobs."""

    def __init__(self, layers: list[Layer], blobs: BlobStore) -> None:
        self._layers = {layer.name: layer for layer in layers if layer.media_type in {WEIGHTS, FILE} and layer.name}
        self._blobs = blobs

    def __contains__(self, name: str) -> bool:
        return name in self._layers

    def path(self, name: str) -> Path:
        return self._blobs.path(self._layers[name].digest)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object; {} where there is no such file. Raises InvalidModel where it is something else."""
        if name not in self._layers:
            return {}
        try:
            return msgspec.json.decode(self.path(name).read_bytes(), type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidModel(f"{name} is no JSON object: {error}") from error

    def config(self) -> dict[str, Any]:
        return self.json("config.json")

    def tensors(self) -> list[Tensor]:
        shards = sorted(name for name, layer in self._layers.items() if layer.media_type == WEIGHTS)
        return [tensor for name in shards for tensor in read_header(self.path(name), name)]

    def chat_template(self) -> str | None:
        """The Jinja template: chat_template.jinja, else the entry of tokenizer_config.json or chat_template.json."""
        if "chat_template.jinja" in self:
            return self.path("chat_template.jinja").read_text(encoding="utf-8", errors="replace")
        for name in ("tokenizer_config.json", "chat_template.json", "processor_config.json"):
            found = _template(self.json(name).get("chat_template"), "default")
            if found is not None:
                return found
        return None

    def tool_template(self) -> str | None:
        """The Jinja template for conversations with tools, where there is one of its own."""
        if "chat_template.jinja" in self:
            return None
        entry = self.json("tokenizer_config.json").get("chat_template")
        return None if isinstance(entry, str) else _template(entry, "tool_use")

    def special_tokens(self) -> set[str]:
        """Those tokens of the tokenizer that say something about the model's abilities."""
        if "tokenizer.json" not in self:
            return set()
        try:
            tokenizer = msgspec.json.decode(self.path("tokenizer.json").read_bytes(), type=_Tokenizer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidModel(f"tokenizer.json is damaged: {error}") from error
        known = fill_in_the_middle_tokens()
        texts = (token.content for token in tokenizer.added_tokens)
        return {text for text in texts if text in known or is_marker_token(text)}


def find_out(
    layers: list[Layer],
    blobs: BlobStore,
    *,
    template: str | None,
    explicit_capabilities: list[str],
    parent_model: str = "",
    source: str = "",
) -> Findings:
    """Read a model's files and derive what there is to know. Raises InvalidModel where they are no model."""
    files = Files(layers, blobs)
    if "config.json" not in files:
        raise InvalidModel("no config.json: this is no MLX or safetensors model")
    config = files.config()
    chat_template = files.chat_template()
    census = take_census(files.tensors(), config)
    capabilities = derive_capabilities(
        config,
        template=template,
        chat_template="\n".join(text for text in (chat_template, files.tool_template()) if text) or None,
        tokens=files.special_tokens(),
        pooling=any(name in files for name in _POOLING_FILES),
        explicit=explicit_capabilities,
    )
    facts = Facts(
        revision=REVISION,
        fingerprint=fingerprint(config, _weight_digests(layers), _tokenizer_digests(layers)),
        parameter_count=census.parameter_count,
        capabilities=capabilities,
        chat_template=chat_template or "",
        parent_model=parent_model,
        source=source,
    )
    return Findings(facts, shape_of(config), census)


def _weight_digests(layers: list[Layer]) -> list[str]:
    relevant = [layer for layer in layers if layer.media_type in {WEIGHTS, ADAPTER}]
    return [layer.digest for layer in sorted(relevant, key=lambda layer: (layer.media_type != WEIGHTS, layer.name))]


def _tokenizer_digests(layers: list[Layer]) -> list[str]:
    by_name = {layer.name: layer.digest for layer in layers if layer.media_type == FILE}
    return [by_name.get(name, "") for name in _TOKENIZER_FILES]


def _template(entry: object, name: str) -> str | None:
    """A template, or the one of this name of several (`[{"name", "template"}]` or `{name: template}`)."""
    if isinstance(entry, str):
        return entry or None
    named: Mapping[str, Any] = {}
    if isinstance(entry, list):
        named = {str(item.get("name")): item.get("template") for item in entry if isinstance(item, Mapping)}
    elif isinstance(entry, Mapping):
        named = entry
    chosen = named.get(name)
    return chosen if isinstance(chosen, str) and chosen else None
