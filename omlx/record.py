"""The *record* of one HTTP request: who asked for what, and how long each stage of its way took.

The gate opens one per request and makes it the *current* one; the pool and the leases it hands out write into it,
and a `Listener` (the server's telemetry) hears of it as things happen. What log, metrics, traces and dashboard say
about requests all comes from here. Work that no request asked for gets a record nobody listens to.
"""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from typing import Literal, Protocol

from omlx.messages.request import Finish, GenerateRequest, Priority

PROMPTS = logging.getLogger("omlx.prompts")
"""Prompts go here and nowhere else; off unless `log_prompts` is set."""
PROMPTS.setLevel(logging.CRITICAL)
_SHOWN_CHARS = 20_000
_LONGEST_NAME = 200
"""Characters of a model's name, in the dashboard."""

Stage = Literal["arrived", "loading", "queued", "reading", "writing", "done"]


class Listener(Protocol):
    """Hears of a request's events. Durations in seconds."""

    def first_piece(self, record: RequestRecord, seconds: float) -> None:
        """The first piece of an answer is there, this long after the request arrived."""

    def gap(self, record: RequestRecord, seconds: float) -> None:
        """Another piece, this long after the one before."""

    def finished(self, record: RequestRecord, finish: Finish) -> None:
        """One generation of the request ended well."""

    def read(self, record: RequestRecord, tokens: int) -> None:
        """Texts of this many tokens were embedded or ranked."""


class _Nobody:
    def first_piece(self, record: RequestRecord, seconds: float) -> None: ...
    def gap(self, record: RequestRecord, seconds: float) -> None: ...
    def finished(self, record: RequestRecord, finish: Finish) -> None: ...
    def read(self, record: RequestRecord, tokens: int) -> None: ...


class RequestRecord:
    """See the module text. Times are of `time.monotonic`, durations in seconds, counts in tokens."""

    def __init__(self, id: str = "", *, listener: Listener | None = None) -> None:
        self.id = id
        self.listener: Listener = listener or _Nobody()
        self.method = self.path = self.route = self.dialect = self.key = ""
        self.traceparent = ""
        """The caller's own place in a trace, as W3C writes it; "" where there is none."""
        self.arrived_at = time.time()
        self.arrived = time.monotonic()
        self.priority: Priority | None = None
        """The class that its caller asked for, where one did."""
        self.deadline_s: float | None = None
        """Seconds from its arrival in which it must be done; None: as long as it takes."""
        self.num_ctx = 0
        """The context in tokens that its headers ask for; 0: none."""
        self.named = ""
        """The model's name as the request has it, whether there is such a model or not."""
        self.model = ""
        self.stage: Stage = "arrived"
        self.asked = self.acquired = self.first = self.ended = 0.0
        """When the model was asked for, when it was there, when the answer began, and the end; 0: not yet."""
        self.generations = self.prompt_tokens = self.cached_tokens = self.disk_tokens = self.completion_tokens = 0
        self.prompt_read: float | None = None
        """The part of a long prompt that has been read, 0 to 1; None: nothing of it yet, or the prompt is short."""
        self.queue_s = self.prefill_s = self.decode_s = 0.0
        self.cache_reason = self.cache_message = ""
        """Why not more of the prompt was cached, of the last generation."""
        self.status = 0
        self.error = ""
        self.left = False
        """The client closed the connection before its answer was complete."""

    @property
    def load_s(self) -> float:
        """How long the request waited for its model."""
        if not self.asked:
            return 0.0
        return (self.acquired or self.ended or time.monotonic()) - self.asked

    @property
    def seconds(self) -> float:
        """From arrival to the end, or until now."""
        return (self.ended or time.monotonic()) - self.arrived

    @property
    def deadline(self) -> float | None:
        """When it must be done, by `time.monotonic`; None: it has no deadline."""
        return None if self.deadline_s is None else self.arrived + self.deadline_s

    def names(self, model: object) -> None:
        """Remember what the request calls its model, for whoever looks at it later."""
        if isinstance(model, str):
            self.named = model[:_LONGEST_NAME]

    def asks_for(self, model: str) -> None:
        if not self.model:
            self.model, self.asked, self.stage = model, time.monotonic(), "loading"

    def has_model(self) -> None:
        if not self.acquired:
            self.acquired, self.stage = time.monotonic(), "queued"

    def reads(self, done: int, total: int) -> None:
        """`done` of the `total` tokens of the prompt have been read."""
        if not self.first:
            self.stage, self.prompt_read = "reading", done / max(total, 1)

    def begin(self, request: GenerateRequest) -> Generation:
        if PROMPTS.isEnabledFor(logging.INFO):
            text = request.raw_prompt
            if text is None:
                turns = [{"role": turn.role, "content": turn.content} for turn in request.messages]
                text = json.dumps(turns, ensure_ascii=False)
            PROMPTS.info("prompt: %s", text[:_SHOWN_CHARS])
        return Generation(self)

    def transcribe(self) -> Generation:
        return Generation(self)

    def read(self, tokens: int) -> None:
        """Texts were embedded or ranked."""
        self.prompt_tokens += tokens
        self.listener.read(self, tokens)


class Generation:
    """The timing of one generation; a request may run several side by side."""

    __slots__ = ("_last", "_record")

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._last = 0.0

    def piece(self) -> None:
        record, now = self._record, time.monotonic()
        if self._last:
            record.listener.gap(record, now - self._last)
        elif not record.first:
            record.first, record.stage = now, "writing"
            record.listener.first_piece(record, now - record.arrived)
        self._last = now

    def finish(self, finish: Finish) -> None:
        record = self._record
        record.generations += 1
        record.prompt_tokens += finish.prompt_tokens
        record.cached_tokens += finish.cached_tokens
        record.disk_tokens += finish.disk_tokens
        record.completion_tokens += finish.completion_tokens
        record.queue_s = max(record.queue_s, finish.queue_ns / 1e9)
        record.prefill_s = max(record.prefill_s, finish.prompt_ns / 1e9)
        record.decode_s = max(record.decode_s, finish.generation_ns / 1e9)
        record.cache_reason, record.cache_message = finish.cache_reason, finish.cache_message
        record.listener.finished(record, finish)


_current: ContextVar[RequestRecord | None] = ContextVar("omlx_record", default=None)


def current() -> RequestRecord:
    """The record of the request that the running task belongs to."""
    return _current.get() or RequestRecord()


def make_current(record: RequestRecord) -> None:
    """For this task and those it starts from now on."""
    _current.set(record)
