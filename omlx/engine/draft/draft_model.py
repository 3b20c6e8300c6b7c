"""A small model of the same family that guesses tokens, one after the other."""

from __future__ import annotations

import logging

import mlx.core as mx

from omlx.engine import caches
from omlx.engine.draft.drafter import Position
from omlx.engine.latency import LatencyModel
from omlx.engine.loader import LoadedModel, load_model
from omlx.engine.sampling import Sampler
from omlx.engine.sequence import Sequence
from omlx.engine.tensors import launch
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

log = logging.getLogger(__name__)

_BEHIND = 16
"""Tokens that the draft may lack and reads together with its first guess; more are read before, beside plain steps."""
_ALIKE = 0.99
"""Share of the token texts that must agree: makers rename a few reserved ones."""


def can_check(model: LoadedModel) -> bool:
    """Whether a model's caches can take back the tokens of wrong guesses."""
    return caches.can_trim(caches.new(model.model))


def open_draft(spec: LoadSpec, model: LoadedModel, *, processes: int = 1, measure: bool = True) -> LoadedModel | None:
    """The draft model that `spec` names, loaded; None where there is none or `model` cannot use one (the log says why).

    Raises LoadError where it cannot be loaded, or has another vocabulary than `model`.
    """
    if spec.draft_path is None:
        return None
    if processes > 1:
        log.warning("the draft model is not used: this model is spread over several processes")
        return None
    draft = _load(spec, spec.draft_path, model, measure=measure) if can_check(model) else None
    if draft is None or not can_check(draft):
        log.warning("the draft model is not used: guesses need plain full-attention caches, in both models")
        return None
    return draft


def _load(spec: LoadSpec, path: str, model: LoadedModel, *, measure: bool) -> LoadedModel:
    draft = load_model(
        LoadSpec(
            name=f"the draft model of {spec.name}",
            path=path,
            fingerprint="",
            engine=spec.engine,
            weights=spec.weights,
            trust_remote_code=spec.trust_remote_code,
        ),
        measure=measure,
    )
    ours, theirs = (one.text_tokenizer.get_vocab(with_added_tokens=True) for one in (model, draft))
    agreeing = sum(theirs.get(text) == token for text, token in ours.items())
    if agreeing < _ALIKE * max(len(ours), len(theirs)):
        raise LoadError(
            f"the draft model of {spec.name} has another vocabulary ({agreeing} of {len(ours)} tokens agree): "
            "a draft must come from the same family of models"
        )
    return draft


class DraftModel:
    """A drafter that runs `draft`, which `open_draft` has returned, for `model`.

    `max_gap_s`: the longest prefill at once when it catches up.
    """

    by_text = False

    def __init__(self, draft: LoadedModel, model: LoadedModel, max_gap_s: float) -> None:
        self.guess_s = draft.step_s
        self._draft = draft
        self._width = min(model.vocabulary, draft.vocabulary)
        self._chunk = LatencyModel(draft.step_s, draft.token_s).within(max_gap_s)
        self._cache = caches.new(draft.model)
        self._held: list[int] = []
        """Tokens in the cache."""
        self._sampler: tuple[Sequence, Sampler] | None = None

    def follow(self, tokens: list[int]) -> None:
        same = _common(self._held, tokens)
        caches.trim(self._cache, len(self._held) - same)
        del self._held[same:]

    def catch_up(self, tokens: list[int]) -> bool:
        start = len(self._held)
        if len(tokens) - start <= _BEHIND:
            return True
        chunk = tokens[start : start + self._chunk]
        self._draft.model(mx.array(chunk, dtype=mx.int32)[None], cache=self._cache)
        launch(*caches.arrays(self._cache))
        self._held += chunk
        return False

    def guess(self, position: Position, count: int) -> mx.array:
        row = position.row
        if self._sampler is None or self._sampler[0] is not row:
            self._sampler = (row, Sampler([row], [position.sampled], self._width))
        sampler = self._sampler[1]
        sampler.seek([position.sampled])
        start = len(self._held)
        ahead = position.ahead if position.unknown else position.ahead[:-1]
        behind = row.tokens[start:] + ahead[max(start - len(row.tokens), 0) :]
        self._held += behind
        tokens = mx.concatenate([mx.array(behind, dtype=mx.int32), position.newest]) if behind else position.newest
        guesses: list[mx.array] = []
        for _ in range(count):
            logits = self._draft.model(tokens[None], cache=self._cache)[:, -1, : self._width]
            tokens = sampler(logits).tokens
            launch(tokens)
            guesses.append(tokens)
        return mx.concatenate(guesses)

    def keep(self, tokens: list[int], count: int) -> None:
        # It has read the token before its guesses, and its own guesses but the last.
        kept = tokens[:count]
        caches.trim(self._cache, count - len(kept))
        self._held += kept

    def forget(self) -> None:
        self._cache, self._held = caches.new(self._draft.model), []


def _common(first: list[int], second: list[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
