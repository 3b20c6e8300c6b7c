"""Ollama's store: the folder in which an Ollama keeps its models; it is only read, never written.

    manifests/<host>/<namespace>/<model>/<tag>   one manifest each
    blobs/sha256-<hex>                           content

Nothing in it is trusted. Names that are no model names are left out, manifests and texts have a largest size, and the
bytes of a blob count only if they have the digest that the manifest states; so it does not matter where a symbolic link
leads.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.assemble import Overrides, Texts
from omlx_registry.blobs import canonical_digest
from omlx_registry.errors import Damaged, InvalidDigest, InvalidModel
from omlx_registry.manifest import Layer, Manifest, decode_manifest
from omlx_registry.names import Name, name_from_path
from omlx_registry.options import stops_excess

_PREFIX: Final = "application/vnd.ollama.image."
_MOST_MODELS: Final = 10_000
_MOST_MANIFEST: Final = 16 << 20
"""Bytes: a manifest of an MLX model has an entry for each tensor."""
_MOST_TEXT: Final = 4 << 20
_MOST_LAYERS: Final = 100_000
_MOST_MESSAGES: Final = 10_000


class OllamaModel(msgspec.Struct, frozen=True):
    """A model of the store. `digest`: SHA-256 of its manifest, 64 hex."""

    name: Name
    digest: str
    manifest: Manifest

    def layers(self, *kinds: str) -> list[Layer]:
        """Layers of these kinds ("model", "template", ...), in the manifest's order."""
        return [it for it in self.manifest.layers if it.media_type.removeprefix(_PREFIX) in kinds]

    @property
    def weights(self) -> str:
        """What identifies the weights: equal for names that differ only in their texts."""
        digests = [layer.digest for layer in self.layers("model", "tensor", "json")]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    @property
    def source(self) -> str:
        """What the imported model says about where it came from."""
        return f"ollama:{self.digest}:{self.weights}"

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.manifest.layers)


class UnreadableModel(msgspec.Struct, frozen=True):
    """A name whose manifest cannot be read."""

    name: Name
    reason: str


class _Config(msgspec.Struct):
    """What of the config blob is used."""

    model_format: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    remote_host: str = ""
    remote_model: str = ""


class OllamaStore:
    """The store in one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def models(self) -> list[OllamaModel | UnreadableModel]:
        """What the store lists, in the order of names. What is no model's path is left out."""
        found: list[OllamaModel | UnreadableModel] = []
        for path in sorted((self.root / "manifests").glob("*/*/*/*"))[:_MOST_MODELS]:
            name = name_from_path((*path.parts[-4:-1], path.name))
            if name is None:
                continue
            try:
                found.append(_read_manifest(name, path))
            except Damaged as error:
                found.append(UnreadableModel(name, error.message))
        return found

    def path(self, layer: Layer) -> Path:
        """The file of a layer, by size the right one. Raises InvalidModel; its content has to be verified."""
        try:
            path = self.root / "blobs" / canonical_digest(layer.digest).replace(":", "-")
        except InvalidDigest as error:
            raise InvalidModel(f"its manifest is damaged: {layer.digest[:100]!r} is not a digest") from error
        short = path.name[7:19]
        try:
            status = path.stat()
        except OSError as error:
            raise InvalidModel(f"blob {short} is missing from Ollama's store: restore it with `ollama pull`") from error
        if not stat.S_ISREG(status.st_mode):
            raise InvalidModel(f"blob {short} of Ollama's store is not a file")
        if status.st_size != layer.size:
            raise InvalidModel(
                f"blob {short} of Ollama's store has {status.st_size:,} bytes instead of {layer.size:,}: "
                "restore it with `ollama pull`"
            )
        return path

    def read(self, layer: Layer) -> bytes:
        """The verified bytes of a text or configuration. Raises InvalidModel."""
        path = self.path(layer)
        if layer.size > _MOST_TEXT:
            raise InvalidModel(f"a text of {layer.size:,} bytes ({layer.media_type}) is too long")
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_TEXT + 1)
        except OSError as error:
            raise InvalidModel(f"blob {path.name[7:19]} of Ollama's store cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != path.name[7:]:
            raise InvalidModel(damaged(path.name[7:]))
        return data

    def overrides(self, model: OllamaModel) -> Overrides:
        """The model's configuration. Raises InvalidModel, also for a model that runs on Ollama's servers."""
        try:
            config = msgspec.json.decode(self.read(model.manifest.config), type=_Config)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidModel(f"its configuration is damaged: {error}") from error
        if config.remote_host or config.remote_model:
            raise InvalidModel("it runs on Ollama's servers only: there is nothing to import")
        return Overrides(renderer=config.renderer, parser=config.parser, requires=config.requires, source=model.source)

    def texts(self, model: OllamaModel) -> Texts:
        """Template, system prompt, parameters, messages and licences. Raises InvalidModel."""
        texts = {
            kind: self.read(layers[-1]).decode("utf-8", "replace")
            for kind in ("template", "system", "params", "messages")
            if (layers := model.layers(kind))
        }
        if "template" not in texts and (prompt := model.layers("prompt")):
            texts["template"] = self.read(prompt[-1]).decode("utf-8", "replace")
        return Texts(
            template=texts.get("template"),
            system=texts.get("system", ""),
            parameters=_parameters(texts["params"]) if "params" in texts else {},
            messages=_messages(texts["messages"]) if "messages" in texts else [],
            licenses=[self.read(it).decode("utf-8", "replace") for it in model.layers("license")],
        )


def damaged(digest: str) -> str:
    """The error for a blob that does not match its digest (hex)."""
    return f"blob {digest[:12]} of Ollama's store is damaged: restore it with `ollama rm` and `ollama pull`"


def _read_manifest(name: Name, path: Path) -> OllamaModel:
    """Raises Damaged."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_MANIFEST:
                raise Damaged("its manifest is not a regular file, or is too large")
            data = file.read(_MOST_MANIFEST + 1)
    except OSError as error:
        raise Damaged(f"its manifest cannot be read: {error.strerror}") from error
    manifest = decode_manifest(data)
    if len(manifest.layers) > _MOST_LAYERS:
        raise Damaged(f"its manifest names {len(manifest.layers):,} layers")
    return OllamaModel(name, hashlib.sha256(data).hexdigest(), manifest)


def _parameters(text: str) -> dict[str, Any]:
    try:
        parameters = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidModel(f"its parameters are damaged: {error}") from error
    stops = parameters.get("stop")
    if isinstance(stops, list) and (excess := stops_excess(stops)):
        raise InvalidModel(f"its parameters cannot be used: {excess}")
    return parameters


def _messages(text: str) -> list[dict[str, str]]:
    try:
        messages = msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidModel(f"its messages are damaged: {error}") from error
    decoded = [{"role": str(it.get("role", "")), "content": str(it.get("content", ""))} for it in messages]
    if len(decoded) > _MOST_MESSAGES:
        raise InvalidModel(f"it has {len(decoded):,} messages; the limit is {_MOST_MESSAGES:,}")
    return decoded
