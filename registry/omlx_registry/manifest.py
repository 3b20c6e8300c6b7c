"""The manifest: which blobs make up a model. The JSON a store keeps per name, in Ollama's shape.

Layers are files of the model (weights, JSON, tokenizer: they have a file `name`) or texts around it (template, system
prompt, parameters, messages, licences). A manifest is *ours* when it has a weights layer; all others (GGUF models of an
Ollama that shares the folder) are foreign: never listed, never changed, their blobs never pruned.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from omlx_registry.errors import Damaged

MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE: Final = "application/vnd.docker.container.image.v1+json"

WEIGHTS: Final = "application/vnd.omlx.image.weights"
"""A safetensors shard. Not one of Ollama's types: its runners could not read it."""
FILE: Final = "application/vnd.ollama.image.json"
"""Any other file of the model folder: config.json, tokenizer.json, chat_template.jinja ..."""
ADAPTER: Final = "application/vnd.ollama.image.adapter"
DRAFT: Final = "application/vnd.ollama.image.draft"
TEMPLATE: Final = "application/vnd.ollama.image.template"
SYSTEM: Final = "application/vnd.ollama.image.system"
LICENSE: Final = "application/vnd.ollama.image.license"
PARAMS: Final = "application/vnd.ollama.image.params"
MESSAGES: Final = "application/vnd.ollama.image.messages"

FOLDERS: Final = {WEIGHTS: "", FILE: "", ADAPTER: "adapter/", DRAFT: "draft/"}
"""Where the files of a layer type lie in the materialized folder."""

_ANY_DIGEST = re.compile(rb"sha256[:-]([0-9a-fA-F]{64})")


class Layer(msgspec.Struct, frozen=True, omit_defaults=True, rename={"media_type": "mediaType", "parent": "from"}):
    """One blob in its role. `name` is the file name in the model folder, `parent` the model a layer came from."""

    media_type: str
    digest: str
    size: int
    parent: str = ""
    name: str = ""

    @property
    def path(self) -> str | None:
        """Relative path in the materialized folder; None for layers that are texts."""
        folder = FOLDERS.get(self.media_type)
        return None if folder is None or not self.name else folder + self.name


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What one name stands for."""

    schema_version: int
    media_type: str
    config: Layer
    layers: list[Layer]

    @property
    def is_ours(self) -> bool:
        return WEIGHTS in [layer.media_type for layer in self.layers]

    @property
    def size(self) -> int:
        """Bytes of all blobs, the config included."""
        return self.config.size + sum(layer.size for layer in self.layers)

    @property
    def digests(self) -> set[str]:
        return {self.config.digest, *(layer.digest for layer in self.layers)}

    def of_type(self, media_type: str) -> list[Layer]:
        return [layer for layer in self.layers if layer.media_type == media_type]


class ModelMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was derived from weights and configuration when the model was made, so that a listing opens no weights."""

    revision: int
    """Of the derivation; facts of another revision are derived anew."""
    fingerprint: str
    parameter_count: int
    capabilities: list[str]
    chat_template: str = ""
    """The model's own Jinja template, wherever its files keep it."""
    parent_model: str = ""
    source: str = ""
    """Where the model came from: `hf.co/org/repo@commit`, a folder, a package."""


class ImageConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The config blob: Ollama's fields and our `omlx`."""

    model_format: str = ""
    model_family: str = ""
    model_families: list[str] | None = None
    model_type: str = ""
    file_type: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    capabilities: list[str] = []
    """Given explicitly by whoever made the model; the derived ones are in `omlx`."""
    context_length: int = 0
    embedding_length: int = 0
    base_name: str = ""
    omlx: ModelMetadata | None = None


_decoder = msgspec.json.Decoder(Manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Raises Damaged where the bytes are no manifest."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"unreadable manifest: {error}") from error


def encode(value: Manifest | ImageConfig) -> bytes:
    return msgspec.json.encode(value)


def digests_in(data: bytes) -> set[str]:
    """Every digest the bytes mention, even where they are no manifest we understand: none of these may be pruned."""
    return {f"sha256:{match.decode().lower()}" for match in _ANY_DIGEST.findall(data)}
