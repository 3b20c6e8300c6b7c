"""Wire types of the Ollama API for models: to list, show, make, move and remove them, and the server's own version.

As for names, defaults and units see `omlx.protocols.ollama.wire`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from omlx.protocols.ollama.gojson import Go
from omlx.protocols.ollama.wire import Messages


# ---------------------------------------------------------------- requests
class _Named(msgspec.Struct, kw_only=True):
    """Requests that take the older `name` in place of `model`; empty means not given."""

    model: str = ""
    name: str = ""

    @property
    def wanted(self) -> str:
        return self.model or self.name


class ShowRequest(_Named, kw_only=True):
    system: str = ""
    verbose: bool = False
    options: dict[str, Any] = {}


class DeleteRequest(_Named, kw_only=True):
    pass


class PullRequest(_Named, kw_only=True):
    revision: str = ""
    """Ours: the branch, tag or commit of a repository; as in hf.co/ORG/NAME@REVISION."""
    insecure: bool = False
    stream: bool = True


class PushRequest(_Named, kw_only=True):
    insecure: bool = False
    stream: bool = True


class CopyRequest(msgspec.Struct, kw_only=True):
    source: str = ""
    destination: str = ""


def read_license(value: Any) -> list[str]:
    """One licence text or several."""
    if isinstance(value, str):
        return [value] if value else []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("license must be a string or a list of strings")
    return value


class ModelInfo(msgspec.Struct, kw_only=True):
    """What the maker of a model states about it."""

    capabilities: list[str] = []
    model_family: str = ""
    base_name: str = ""
    quantization_level: str = ""
    parameter_size: str = ""
    context_length: int = 0
    embedding_length: int = 0


class CreateRequest(_Named, kw_only=True):
    from_: str = msgspec.field(default="", name="from")
    files: dict[str, str] = {}
    adapters: dict[str, str] = {}
    draft: str = ""
    """Ours: a model by name, instead of `draft_files`."""
    draft_files: dict[str, str] = {}
    template: str = ""
    system: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    license: Annotated[list[str], Go(parse=read_license)] = []
    parameters: dict[str, Any] = {}
    messages: Messages = []
    quantize: str = ""
    quantization: str = ""
    draft_quantize: str = ""
    remote_host: str = ""
    info: ModelInfo = msgspec.field(default_factory=ModelInfo)
    stream: bool = True


# ---------------------------------------------------------------- responses
class ModelDetails(msgspec.Struct, omit_defaults=True, kw_only=True):
    parent_model: str
    format: str
    family: str
    families: list[str] | None
    parameter_size: str
    quantization_level: str
    context_length: int = 0
    embedding_length: int = 0


class ListedModel(msgspec.Struct, omit_defaults=True, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails
    capabilities: list[str] = []


class ListResponse(msgspec.Struct):
    models: list[ListedModel]


class ProcessModelResponse(msgspec.Struct, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class ProcessResponse(msgspec.Struct):
    models: list[ProcessModelResponse]


class ShowMessage(msgspec.Struct):
    role: str
    content: str


class ShowResponse(msgspec.Struct, omit_defaults=True, kw_only=True):
    license: str = ""
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    system: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    details: ModelDetails
    messages: list[ShowMessage] = []
    model_info: dict[str, Any]
    projector_info: dict[str, Any] = {}
    tensors: list[Any] = []
    capabilities: list[str] = []
    weights: str = ""
    """Ours: how the weights are held and why, while the model is loaded."""
    notes: list[str] = []
    """Ours: what a self-test has switched off."""
    repository: str = ""
    """Ours: the repository on Hugging Face that the model was pulled from, and the commit."""
    revision: str = ""
    modified_at: str


class StatusLine(msgspec.Struct, omit_defaults=True):
    """One line of pull, push or create; byte counts are 0 where the step has none."""

    status: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0


class VersionResponse(msgspec.Struct):
    version: str
    omlx_version: str


class CloudStatus(msgspec.Struct):
    disabled: bool
    source: str


class CloudStatusResponse(msgspec.Struct):
    cloud: CloudStatus
