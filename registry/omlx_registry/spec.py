"""Spec: everything a server needs to know about a stored model to serve it, as plain data.

Made by the registry from a manifest (see `describe`), handed to the pool and the API; it never changes once made.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


class Details(msgspec.Struct, frozen=True):
    """Ollama's `details`: always all six fields, empty where unknown (typed clients fail on a missing one)."""

    parent_model: str = ""
    format: str = "safetensors"
    family: str = ""
    families: list[str] | None = None
    parameter_size: str = ""
    """ "8.0B", "134.52M"."""
    quantization_level: str = ""
    """ "Q4_1", "int4", "BF16"."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it can be served. Sizes in bytes, lengths in tokens."""

    name: str
    """Short display name, always with tag: "smollm2:135m"."""
    full_name: str
    """ "registry.ollama.ai/library/smollm2:135m"."""
    digest: str
    """SHA-256 of the manifest file, 64 hex."""
    path: str
    """Folder with config.json, tokenizer.json, *.safetensors ...; guaranteed to be there in the answer of `resolve`."""
    fingerprint: str
    """Equal for models whose KV caches are interchangeable: weights, adapter, tokenizer, KV-relevant configuration."""
    size: int
    modified_at: datetime
    """Aware, in the local offset."""
    details: Details
    capabilities: list[str]
    """Of completion, tools, insert, vision, audio, thinking, embedding, rerank, transcription."""
    context_length: int = 0
    """What the model was trained for; 0 where its configuration does not say."""
    embedding_length: int = 0
    parameter_count: int = 0
    template: str | None = None
    """A Go template from a Modelfile; it replaces `chat_template`."""
    chat_template: str | None = None
    """The model's own Jinja template."""
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    licenses: list[str] = []
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    adapter_path: str | None = None
    """Folder of a LoRA adapter (adapter_config.json, *.safetensors) inside `path`."""
    draft_path: str | None = None
    """Folder of a draft model inside `path`."""
    source: str = ""
    """Where the model came from: `hf.co/org/repo@commit`, a package, a folder; "" where unknown."""


class ModelShow(msgspec.Struct, frozen=True):
    """What `show` prints beyond the spec."""

    spec: ModelSpec
    modelfile: str
    parameters_text: str
    template_text: str
    """The template in use: the Go one, else the model's own, else `{{ .Prompt }}`."""
    model_info: dict[str, Any]
    projector_info: dict[str, Any] | None = None
    tensors: list[dict[str, Any]] | None = None


class ModelFile(msgspec.Struct, frozen=True):
    """A file of a model: its path in the model's folder, bytes, and `sha256:` digest."""

    path: str
    size: int
    digest: str


class PulledModel(msgspec.Struct, frozen=True):
    """A model that was pulled from a repository, and whether the Hub has a newer revision of it."""

    name: str
    repository: str
    revision: str
    """The branch, tag or commit that a pull of the name fetches."""
    commit: str
    """What the model here was made of."""
    latest: str = ""
    """The commit that a pull would fetch now; "" where the Hub did not say."""
    error: str = ""

    @property
    def outdated(self) -> bool:
        return bool(self.latest) and self.latest != self.commit


class Progress(msgspec.Struct, omit_defaults=True):
    """One line of a pull or create, as Ollama streams it. Bytes."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


class ImportStep(Progress, omit_defaults=True):
    """One line of an import. Lines about one model name it; the last of these has an `outcome`.

    `bytes` it takes here and `seconds` it is going to take are stated with "planned".
    """

    model: str = ""
    outcome: Literal["", "imported", "present", "planned", "refused"] = ""
    bytes: int = 0
    seconds: int = 0


def human_parameters(count: int) -> str:
    """8030000000 → "8.0B", 7000000000 → "7B", 134515008 → "134.52M", 512000 → "512K"."""
    for unit, name, decimals in ((10**9, "B", 1), (10**6, "M", 2)):
        if count >= unit:
            return f"{count // unit}{name}" if count % unit == 0 else f"{count / unit:.{decimals}f}{name}"
    return f"{count / 1e3:.0f}K" if count >= 1_000 else str(count)
