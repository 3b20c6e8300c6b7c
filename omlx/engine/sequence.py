"""A *sequence* is one request inside the engine: its tokens, its limits and how far it has come.

`SequenceSpec` is what a caller hands in and `Output` what it gets back; both are plain data. `Sequence` is the
engine's own record; only the engine changes it. Nothing here touches MLX.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Rows
from typing import Any, Literal

import msgspec
from omlx_cache.keys import Media as CacheKey

from omlx.engine.detokenize import TextStream
from omlx.engine.guide import Guide
from omlx.engine.vision.media import PromptMedia
from omlx.messages.constraint import Grammar, ThinkLimit
from omlx.messages.request import FailureKind, FinishReason, Limits, Priority, Sampling, TokenLogprob, TokenUsage

Phase = Literal["waiting", "prefill", "decode", "done"]

UNBOUNDED_CONTEXTS = 10
"""`num_predict` -1 still ends after this many contexts' worth of tokens, for a model that never stops by itself."""


class EngineError(Exception):
    """A request that cannot run; `kind` says why, the message is a sentence for its user."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message


class SequenceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One generation: prompt token ids and everything that shapes the reply."""

    id: int
    tokens: list[int]
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    grammar: Grammar | None = None
    thinking: ThinkLimit | None = None
    """Limits how long it thinks."""
    logprobs: bool = False
    trace: str = ""
    """What the log calls it."""
    top_logprobs: int = 0
    """How many alternatives to report per token (0 to 20); needs `logprobs`."""
    priority: Priority = "interactive"
    boundaries: list[int] = []
    """Tokens after which later prompts are likely to part from this one, for the prefix store."""
    media: PromptMedia | None = None
    """The pictures among the tokens. Such a sequence is never cut to fit, nor does its context shift."""


class Output(msgspec.Struct, kw_only=True):
    """What one step has to say about one sequence. The last one of a sequence has `finish` or `failure`."""

    id: int
    text: str = ""
    tokens: list[int] = []
    """Newly generated ids, the one that ended the reply included."""
    logprobs: list[TokenLogprob] = []
    progress: tuple[int, int] | None = None
    """Prompt tokens (read, all) while a long prompt is read."""
    finish: FinishReason | None = None
    stop_string: str = ""
    """The stop string, where one ended the reply."""
    failure: tuple[FailureKind, str] | None = None
    usage: TokenUsage | None = None


class Sequence:
    """The engine's record of a request. `tokens` is prompt plus accepted reply; `cache` holds the first `position`."""

    __slots__ = (
        "alone",
        "arrived_ns",
        "cache",
        "cache_message",
        "cache_reason",
        "cached_tokens",
        "capture",
        "context",
        "disk_tokens",
        "first_token_ns",
        "generated",
        "guide",
        "id",
        "max_new",
        "mirostat_mu",
        "phase",
        "position",
        "prompt_length",
        "reading",
        "seed",
        "spec",
        "started_ns",
        "stops",
        "text",
        "tokens",
    )

    def __init__(self, spec: SequenceSpec, *, context: int, text: TextStream, guide: Guide | None, now_ns: int) -> None:
        """Raises EngineError where the prompt is empty, or leaves no room in its `context`: who makes prompts shortens
        them."""
        if not spec.tokens:
            raise EngineError("invalid", "the prompt is empty")
        if len(spec.tokens) >= context:
            raise EngineError(
                "too_long",
                f"the prompt has {len(spec.tokens)} tokens, more than the context of {context} leaves room for",
            )
        self.spec = spec
        self.id = spec.id
        self.context = context
        self.tokens = list(spec.tokens)
        self.prompt_length = len(self.tokens)
        self.max_new = generation_limit(spec.limits, context, self.prompt_length)
        self.seed = secrets.randbits(32) if spec.sampling.seed is None else spec.sampling.seed
        self.text = text
        self.guide = guide
        self.generated = 0
        self.alone = False
        """It shares no batch: one that it was in has failed."""
        self.position = 0
        self.cached_tokens = self.disk_tokens = 0
        self.cache_reason = self.cache_message = ""
        self.cache: list[Any] | None = None
        self.capture: Any = None
        self.reading: Any = None
        """What the prefix store reads for it from disk, ahead of its turn."""
        self.stops = [*spec.boundaries]
        """Where the prefix store makes restore points within the prompt."""
        self.mirostat_mu: Any = None
        self.phase: Phase = "waiting"
        self.arrived_ns = now_ns
        self.started_ns = 0
        self.first_token_ns = 0

    @property
    def sampling(self) -> Sampling:
        return self.spec.sampling

    @property
    def wants_logprobs(self) -> int | None:
        """Alternatives to report per token; None: no log probabilities."""
        return self.spec.top_logprobs if self.spec.logprobs else None

    @property
    def media_keys(self) -> Rows[CacheKey]:
        """The pictures, as the prefix store knows them."""
        return self.spec.media.keys if self.spec.media is not None else ()

    @property
    def delta(self) -> int:
        """What is added to the number of a token behind the prompt to get its position."""
        return self.spec.media.delta if self.spec.media is not None else 0

    @property
    def is_at_hand(self) -> bool:
        """Nothing of it is still on its way from disk."""
        return self.reading is None or self.reading.done

    @property
    def remaining(self) -> int:
        """Tokens that have yet to go through the model before the next one can be sampled."""
        return len(self.tokens) - self.position

    def accept(self, token: int, now_ns: int) -> None:
        """Take a sampled token into the sequence."""
        if self.first_token_ns == 0:
            self.first_token_ns = now_ns
        self.tokens.append(token)
        self.generated += 1

    def restart(self) -> None:
        """Have all its tokens computed again: what its caches held is lost, or is no longer its context."""
        self.phase, self.cache, self.capture, self.position = "waiting", None, None, 0

    @property
    def made_up(self) -> bool:
        """It warms the engine up; nobody asked for it, and nothing of it is kept."""
        return self.id < 0

    def usage(self, now_ns: int) -> TokenUsage:
        started = self.started_ns or now_ns
        first = self.first_token_ns or now_ns
        return TokenUsage(
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens,
            disk_tokens=self.disk_tokens,
            cache_reason=self.cache_reason,
            cache_message=self.cache_message,
            completion_tokens=self.generated,
            queue_ns=started - self.arrived_ns,
            prompt_ns=first - started,
            generation_ns=now_ns - first,
        )


def kept_tokens(limits: Limits, room: int) -> int:
    """How many first tokens survive truncation and shifting: at most half of the room, so that it always frees some."""
    keep = room if limits.num_keep < 0 else limits.num_keep
    return min(keep, room // 2)


def generation_limit(limits: Limits, context: int, prompt_length: int) -> int:
    """Most tokens this sequence may generate, by `num_predict` and `shift`."""
    room = max(context - prompt_length, 0)
    if limits.num_predict >= 0:
        return limits.num_predict if limits.shift else min(limits.num_predict, room)
    if limits.num_predict == -2 or not limits.shift:
        return room
    return UNBOUNDED_CONTEXTS * context


def shift(tokens: list[int], limits: Limits, context: int) -> list[int]:
    """The tokens that stay when the context is full: the kept first ones and the newer half of the rest."""
    keep = kept_tokens(limits, context)
    discard = max((context - keep) // 2, 1)
    return tokens[:keep] + tokens[keep + discard :]
