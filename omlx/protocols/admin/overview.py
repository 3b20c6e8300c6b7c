"""Wire structs of the dashboard: GET /api/omlx/overview, /history, /requests, the events stream, and pulls.

The docstring of a number names the metric that it is made of; a test holds them to it. Sizes in bytes, durations in
seconds, moments in Unix seconds.
"""

from __future__ import annotations

import msgspec

from omlx.protocols.admin.power import PowerStatus


class Kv(msgspec.Struct, frozen=True, kw_only=True):
    """The KV store of all loaded models."""

    ram_tokens: int
    """omlx_cached_tokens_total{tier="ram"}"""
    disk_tokens: int
    """omlx_cached_tokens_total{tier="disk"}"""
    prompt_tokens: int
    """omlx_prompt_tokens_total"""
    hit_rate: float | None
    """Growth of omlx_cached_tokens_total over that of omlx_prompt_tokens_total, in the last hour."""
    ram_bytes: int
    """omlx_kv_ram_bytes"""
    ram_limit: int
    """omlx_kv_ram_limit_bytes"""
    disk_bytes: int
    """omlx_kv_disk_bytes"""
    disk_limit: int
    """omlx_kv_disk_limit_bytes"""


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory."""

    name: str
    state: str
    """omlx_model_state"""
    size: int
    """omlx_model_memory_bytes"""
    running: int
    """omlx_requests_running"""
    waiting: int
    context_length: int
    weights: str
    pinned: bool
    expires_in: float | None
    """None: never, or not while it is used."""
    crashes: int


class PullRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pull that runs, or ended not long ago."""

    number: int
    name: str
    state: str
    """running, done, failed or cancelled."""
    status: str
    completed: int
    total: int
    error: str = ""


class Advice(msgspec.Struct, frozen=True):
    """A finding of `omlx doctor` about the running server that is worth a look. `state` is warn or fail."""

    name: str
    state: str
    text: str
    advice: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What the dashboard shows at a glance."""

    version: str
    uptime: float
    running: int
    """omlx_requests_running"""
    waiting: int
    """omlx_requests_waiting"""
    read_rate: float
    """Growth of omlx_read_tokens_total per second, now."""
    read_tokens: int
    """omlx_read_tokens_total"""
    generated_rate: float
    """Growth of omlx_generated_tokens_total per second, now."""
    generated_tokens: int
    """omlx_generated_tokens_total"""
    requests: int
    """omlx_http_requests_total, of those that asked for a model"""
    batch_fill: float | None
    """Growth of omlx_decoded_rows_total over that of omlx_decode_places_total, in the last hour."""
    batch_limit: int
    """omlx_batch_limit, the largest"""
    first_token_p50: float | None
    """Quantiles of what omlx_time_to_first_token_seconds has grown by in the last hour."""
    first_token_p95: float | None
    memory_used: int
    """omlx_memory_used_bytes"""
    memory_limit: int
    """omlx_memory_limit_bytes"""
    kv: Kv
    refused: int = 0
    """Growth of omlx_http_requests_total with the status 503, our own routes left out, in the last hour."""
    # No metric: it only tells when the list of models has to be asked for again.
    names_changed: int = 0
    power: PowerStatus = PowerStatus()
    models: list[ModelRow]
    pulls: list[PullRow]
    advice: list[Advice]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour in samples; all lists are equally long, the oldest first."""

    at: list[float]
    running: list[float]
    waiting: list[float]
    read_rate: list[float]
    generated_rate: list[float]
    memory: list[float]
    cached_share: list[float | None]
    """Part of the prompt tokens since the sample before that came from the KV store; None without prompts."""


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model. Times of stages that have not happened are None."""

    number: int
    id: str
    at: float
    route: str
    dialect: str
    key: str
    model: str
    stage: str
    status: int
    seconds: float
    load: float
    queue: float | None
    prefill: float | None
    decode: float | None
    first_token: float | None
    prompt_read: float | None
    """The part of a long prompt that has been read, 0 to 1; None: nothing of it yet, or the prompt is short."""
    prompt_tokens: int
    cached_tokens: int
    disk_tokens: int
    completion_tokens: int
    cache_reason: str
    cache_message: str
    error: str


class RequestList(msgspec.Struct, frozen=True):
    """GET /api/omlx/requests: the newest first."""

    requests: list[RequestRow]


class PullStart(msgspec.Struct):
    """POST /api/omlx/pulls: pull in the background; it goes on when the caller leaves."""

    model: str = ""


class PullStarted(msgspec.Struct, frozen=True):
    number: int
