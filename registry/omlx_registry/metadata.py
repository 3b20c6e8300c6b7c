"""Facts: what is found out once about a model's files and kept in its config blob.

Reading headers, tokenizer and configuration of a model takes milliseconds to a second; a listing of a thousand
models has no time for that. So it is done when a manifest is written, and again only when `REVISION` says the rules
changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.architecture import ModelShape, fingerprint, shape_of
from omlx_registry.blobs import BlobStore
from omlx_registry.capabilities import derive_capabilities, fill_in_the_middle_tokens
from omlx_registry.errors import InvalidModel
from omlx_registry.manifest import ADAPTER, FILE, WEIGHTS, Layer, ModelMetadata
from omlx_registry.model_json import decode_object
from omlx_registry.sanitized_folder import read_bytes
from omlx_registry.templates import ChatTemplates, chat_templates
from omlx_registry.thinking import is_marker_token
from omlx_registry.tokenizer_limits import check_size
from omlx_registry.weights import Census, TensorHeader, read_header, take_census

REVISION: Final = 4
"""Raise it when capabilities, counting or the fingerprint are derived in another way than before."""

_TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
)
POOLING_FILES: Final = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json")


class _SpecialToken(msgspec.Struct):
    content: str


class _TokenizerTokens(msgspec.Struct):
    added_tokens: list[_SpecialToken] = []


class Findings(msgspec.Struct, frozen=True):
    """Facts and the figures that go into the config blob beside them."""

    facts: ModelMetadata
    shape: ModelShape
    census: Census


class Files:
    """The files of a model by their names, read from blobs."""

    def __init__(self, layers: list[Layer], blobs: BlobStore) -> None:
        self._layers = {layer.name: layer for layer in layers if layer.media_type in {WEIGHTS, FILE} and layer.name}
        self._blobs = blobs

    def __contains__(self, name: str) -> bool:
        return name in self._layers

    @property
    def names(self) -> list[str]:
        return sorted(self._layers)

    def path(self, name: str) -> Path:
        return self._blobs.path(self._layers[name].digest)

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object; {} where there is no such file. Raises InvalidModel where it is something else."""
        if name not in self._layers:
            return {}
        return decode_object(read_bytes(self.path(name), name), name)

    def config(self) -> dict[str, Any]:
        return self.json("config.json")

    def tensors(self) -> list[TensorHeader]:
        shards = sorted(name for name, layer in self._layers.items() if layer.media_type == WEIGHTS)
        return [tensor for name in shards for tensor in read_header(self.path(name), name)]

    def text(self, name: str) -> str | None:
        """A file of texts; None where there is none of this name."""
        return self.path(name).read_text(encoding="utf-8", errors="replace") if name in self else None

    def chat_templates(self) -> ChatTemplates:
        """Raises InvalidModel where a configuration that should have them is no JSON object."""
        try:
            return chat_templates(self.text)
        except ValueError as error:
            raise InvalidModel(str(error)) from error

    def special_tokens(self) -> set[str]:
        """Those tokens of the tokenizer that say something about the model's abilities."""
        if "tokenizer.json" not in self:
            return set()
        check_size("tokenizer.json", self._layers["tokenizer.json"].size)
        try:
            tokenizer = msgspec.json.decode(self.path("tokenizer.json").read_bytes(), type=_TokenizerTokens)
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
    templates = files.chat_templates()
    census = take_census(files.tensors(), config)
    capabilities = derive_capabilities(
        config,
        template=template,
        chat_template=templates.text or None,
        tokens=files.special_tokens(),
        pooling=any(name in files for name in POOLING_FILES),
        explicit=explicit_capabilities,
    )
    facts = ModelMetadata(
        revision=REVISION,
        fingerprint=fingerprint(config, _weight_digests(layers), _tokenizer_digests(layers)),
        parameter_count=census.parameter_count,
        capabilities=capabilities,
        chat_template=templates.default or "",
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
