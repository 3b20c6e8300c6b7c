"""Wire structs of oMLX's own routes under /api/omlx: status, aliases, search, pins, care of the store."""

from __future__ import annotations

import msgspec

from omlx.protocols.admin.power import PowerStatus


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory. Sizes in bytes, counts of requests and sequences."""

    name: str
    state: str
    pinned: bool
    pid: int
    size: int
    weights: str
    context_length: int
    running: int
    waiting: int
    max_batch: int
    """Most sequences decoded in one step since the load."""
    steps: int
    crashes: int
    stalled: bool = False
    """It has work and does none."""
    mean_batch: float = 0.0
    """Sequences per decode step since the load; 0 before the first."""
    decode_steps: int = 0
    guessed: int = 0
    """Tokens guessed by a draft model or from the text, and how many were right."""
    accepted: int = 0
    lookups: int = 0
    """Prompts looked up in the KV store, and how many were found there at least in part."""
    hits: int = 0
    tokens_looked_up: int = 0
    tokens_from_ram: int = 0
    tokens_from_disk: int = 0
    off: list[str] = []
    """What a self-test has switched off."""
    other_names: list[str] = []
    """Further names of the same model: requests to them share its memory and its batches."""
    same_weights: list[str] = []
    """Other models in memory with the same weights, each with a copy of its own; prompts cached on SSD are shared."""


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What models live in. Bytes."""

    device: str = ""
    ram: int = 0
    available: int = 0
    device_memory: int = 0
    """0 without a GPU, and until the first runner has said what there is."""
    used: int = 0
    """By the server and all its processes, or by MLX on the GPU: whichever is nearer to its cap."""
    cap: int = 0
    hot: int = 0
    """RAM for cached prefixes, all models together."""
    short: bool = False
    """New requests are held back until memory is free again."""


class StatusResponse(msgspec.Struct, frozen=True, kw_only=True):
    """GET /api/omlx/status."""

    version: str
    waiting: int
    """Requests that wait: for a load, for room, or for a place in a model's batch."""
    models: list[ModelStatus]
    pinned: list[str]
    pin_warning: str = ""
    """A sentence where the pins leave too little for other models."""
    pid: int = 0
    """The server's process."""
    places: int = 0
    """Requests of one model that run at once."""
    memory: MemoryStatus = MemoryStatus()
    power: PowerStatus = PowerStatus()


class PinResponse(msgspec.Struct):
    """Answer to POST /api/omlx/pin."""

    warning: str = ""


class ContextResponse(msgspec.Struct, frozen=True):
    """GET /api/omlx/context?model=NAME. Tokens."""

    num_ctx: int
    """What a request gets that asks for none."""
    max_num_ctx: int
    """The most that there is memory for; 0: not known."""


class AliasRequest(msgspec.Struct):
    """POST /api/omlx/aliases: let `name` mean `target`; an empty target forgets the name."""

    name: str = ""
    target: str = ""


class AliasResponse(msgspec.Struct):
    """GET /api/omlx/aliases."""

    aliases: dict[str, str]


class SearchHit(msgspec.Struct, frozen=True):
    repository: str
    downloads: int
    size: int = 0


class SearchResponse(msgspec.Struct):
    """GET /api/omlx/search?q=TEXT&limit=N."""

    models: list[SearchHit]


class PulledState(msgspec.Struct, frozen=True):
    """A model that was pulled, at `commit`; a pull would fetch `latest` now ("" where the Hub did not say: `error`)."""

    name: str
    repository: str
    revision: str
    commit: str
    latest: str
    outdated: bool
    error: str = ""


class OutdatedResponse(msgspec.Struct):
    """GET /api/omlx/outdated: every model that was pulled from Hugging Face, newest first."""

    models: list[PulledState]


class PinRequest(msgspec.Struct):
    """POST /api/omlx/pin: a pinned model is never unloaded to make room and does not expire."""

    model: str = ""
    pinned: bool = True


class ImportRequest(msgspec.Struct):
    """POST /api/omlx/import. `source`: "huggingface" (and LM Studio), or "ollama", of which `folder` is the store where
    it is not at a usual place.

    The rest is for Ollama's models. `models`: which; empty: all. `link`: share files that can be used as they are.
    `prefer`: "pull" fetches the MLX repository of a name where the catalog has one. `dry_run`: only tell what would be
    done. `verbose`: a line for each tensor.
    """

    source: str = "huggingface"
    folder: str = ""
    models: list[str] = []
    link: bool = False
    prefer: str = "convert"
    dry_run: bool = False
    verbose: bool = False


class ImportableResponse(msgspec.Struct):
    """GET /api/omlx/importable: the models of an Ollama on this machine, and their bytes."""

    ollama_models: int
    ollama_bytes: int


class ExportedFile(msgspec.Struct):
    """A file of a model: path in its folder, bytes, `sha256:` digest."""

    path: str
    size: int
    digest: str


class ExportResponse(msgspec.Struct):
    """GET /api/omlx/export?model=: the Modelfile of a folder that holds the files, and the files. Their bytes:
    GET /api/omlx/export/file?model=&path=.
    """

    modelfile: str
    files: list[ExportedFile]


class PruneRequest(msgspec.Struct):
    """POST /api/omlx/prune. `now`: also files that were uploaded a moment ago; `partial`: also downloads that could be
    continued; `dry_run`: only tell what would be removed.
    """

    now: bool = False
    partial: bool = False
    dry_run: bool = False


class PruneResponse(msgspec.Struct, frozen=True):
    """POST /api/omlx/prune. `busy`: nothing was removed because a model is being made."""

    removed: int
    freed: int
    busy: bool


class VerifyRequest(msgspec.Struct):
    """POST /api/omlx/verify: hash every file again; `repair` drops what is corrupt."""

    repair: bool = False


class DamagedBlob(msgspec.Struct, frozen=True):
    digest: str
    reason: str
    models: list[str]


class VerifyResponse(msgspec.Struct, frozen=True):
    checked: int
    bytes: int
    damaged: list[DamagedBlob]
    repaired: bool
