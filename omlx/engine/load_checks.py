"""Load checks: does what the engine does with a model's caches give what the model computes for one prompt alone?

The engine joins caches of prompts of different length to a padded batch, and the prefix store takes caches apart and
refills fresh ones. Whether a model's code takes that cannot be seen from its classes, so it is tried with random
tokens when the model is loaded: about 200 tokens in 35 forwards. `CHECKS` lists the checks; what they find is kept
by the server (`omlx.messages.load_checks`), so that a model is checked once per version of the libraries.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import mlx.core as mx
from omlx_cache.adapters.table import layer_caches
from omlx_cache.layout import CacheLayout
from omlx_cache.store import PrefixStore, StoreConfig

from omlx.engine import caches
from omlx.engine.ranks import SOLO, Ranks
from omlx.messages.load_checks import LoadCheck, LoadChecks

log = logging.getLogger(__name__)

_LONG, _SHORT = 37, 5
"""Tokens of the two prompts: far enough apart that padding which is looked at changes the answer."""
_STEPS = 3
_MOST_ROWS = 16
_BLOCK = 16
_EXACT, _ROUNDED = 2e-3, 0.1
"""Largest relative error of logits in float32, and in 16 bits, where two nearly equal experts may change places."""
_NOISE = 8
"""So many times the error of a batch without padding counts as rounding too."""
_LARGEST = 0.3
"""No error above this is rounding."""
_TRIES = 2
"""A check has failed where it fails on other random tokens too."""


class CheckedModel(NamedTuple):
    """The model that is checked: `model(tokens[B, n], cache=…)` gives logits [B, n, vocabulary]."""

    model: Any
    layout: CacheLayout
    vocabulary: int


class _Failed(Exception):
    """The check has failed; the message is a clause for the user."""


Check = Callable[[CheckedModel, random.Random], None]


def run(
    subject: CheckedModel, basis: str, ranks: Ranks = SOLO, progress: Callable[[], None] = lambda: None
) -> LoadChecks:
    """Make all checks, and say `progress` before each.

    They take about as long as 35 decode steps. A check passes where it does on every rank.
    """
    begun = time.perf_counter()
    findings = []
    for name, check in CHECKS.items():
        progress()
        # Ranks that disagree about a second try would wait for each other for ever.
        tries = _TRIES if ranks.size == 1 else 1
        results = ranks.gather(_made(name, check, subject, tries), LoadCheck)
        findings.append(next((one for one in results if not one.passed), results[0]))
    return LoadChecks(basis=basis, seconds=round(time.perf_counter() - begun, 3), findings=findings)


def known(checks: LoadChecks, basis: str) -> bool:
    """Whether these checks say all that `run` would."""
    return checks.basis == basis and [finding.name for finding in checks.findings] == list(CHECKS)


def _made(name: str, check: Check, subject: CheckedModel, tries: int) -> LoadCheck:
    detail = ""
    for seed in range(tries):
        try:
            check(subject, random.Random(seed))  # noqa: S311 - no secret
        except _Failed as failure:
            detail = str(failure)
        except Exception:
            log.info("the load check %s ended with an error", name, exc_info=True)
            detail = "the model's code does not support it"
        else:
            return LoadCheck(name=name, passed=True)
    return LoadCheck(name=name, passed=False, detail=detail)


# ---------------------------------------------------------------- the checks
def check_batch(subject: CheckedModel, source: random.Random) -> None:
    """Rows of unequal length, decoded together, get the logits that each gets alone.

    Two rows, and as many as the model has key/value heads: a mask that falls on the wrong axis fits by chance then.
    """
    if not caches.can_batch(caches.new(subject.model)):
        raise _Failed("its caches cannot be joined")
    prompts = [_random(subject, source, count) for count in (_LONG, _SHORT)]
    following = [_random(subject, source, _STEPS + 1) for _ in prompts]
    read = [_prefilled(subject.model, prompt) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    orders = [[index % 2 for index in range(rows)] for rows in sorted({2, *_head_counts(read[0])})]
    together = [_decoded_together(subject.model, read, lengths, following, order) for order in orders]
    # In 16 bits a batch rounds otherwise than a single row, with padding or without.
    plain = [] if _is_exact(read[0]) else _decoded_together(subject.model, read, lengths, following, [0, 0])
    alone = [_decoded(subject.model, tokens, cache) for cache, tokens in zip(read, following, strict=True)]
    limit = _limit(read[0], max((_error(row, alone[0]) for row in plain), default=0.0))
    for order, rows in zip(orders, together, strict=True):
        worst = max(_error(row, alone[index]) for row, index in zip(rows, order, strict=True))
        if not worst <= limit:  # not a number is an error too
            raise _Failed(f"{len(order)} requests in one batch are not answered as alone")


def check_restore(subject: CheckedModel, source: random.Random) -> None:
    """A prompt whose beginning comes from the prefix store gets the logits that it gets when it is computed."""
    if not subject.layout.supported:
        raise _Failed(subject.layout.reason)
    config = StoreConfig(fingerprint="load check", hot_bytes=1 << 34, block_size=_BLOCK, snapshot_every=_BLOCK)
    store = PrefixStore(subject.layout, config)
    prompt = _random(subject, source, _LONG)
    branch = [*prompt[: _LONG // 2], *_random(subject, source, _SHORT)]
    following = _random(subject, source, _STEPS)
    try:
        for tokens in (prompt, prompt, branch):
            cached, logits = _served(subject, store, tokens, following)
            if cached:
                cache = caches.new(subject.model)
                computed = _forward(subject.model, [*tokens, *following], cache)[len(tokens) - 1 :]
                if not _error(logits, computed) <= _limit(cache, 0.0):
                    raise _Failed("a prompt that begins in the cache is not answered as one that is computed")
    finally:
        store.close()


def check_prefill(subject: CheckedModel, source: random.Random) -> None:
    """Prompts in one forward get the logits that each gets alone: from their start, and further on."""
    cache = caches.new(subject.model)
    for fresh in (True, False):
        padding = caches.padding(cache, fresh=fresh)
        if padding is None:
            raise _Failed("its caches cannot be joined")
        before = [[] if fresh else _random(subject, source, count) for count in (_LONG, _SHORT, _LONG)]
        prompts = [_random(subject, source, count if padding else _LONG) for count in (_LONG, _SHORT, _LONG // 2)]
        following = _random(subject, source, _STEPS)
        held = [_prefilled(subject.model, tokens) if tokens else caches.new(subject.model) for tokens in before]
        rows = _prefilled_together(subject.model, held, before, prompts)
        for row, head, prompt in zip(rows, before, prompts, strict=True):
            alone = _prefilled(subject.model, [*head, *prompt])
            actual, expected = (_decoded(subject.model, following, one) for one in (row, alone))
            if not _error(actual, expected) <= _limit(alone, 0.0):
                raise _Failed("prompts in one forward are not answered as alone")


CHECKS: dict[str, Check] = {"batch": check_batch, "prefill": check_prefill, "restore": check_restore}
"""By name, which `omlx.messages.selftest.RESTS_ON` maps to the feature that rests on it. In this order."""


# ---------------------------------------------------------------- forwards
def _random(subject: CheckedModel, source: random.Random, count: int) -> list[int]:
    return [source.randrange(subject.vocabulary) for _ in range(count)]


def _forward(model: Any, tokens: list[int], cache: caches.Caches) -> mx.array:
    """The logits [n, V] behind each of `tokens`; the caches hold them then."""
    logits = model(mx.array([tokens]), cache=cache)[0]
    mx.eval(logits, *caches.arrays(cache))
    result: mx.array = logits.astype(mx.float32)
    return result


def _prefilled(model: Any, tokens: list[int]) -> caches.Caches:
    cache = caches.new(model)
    _forward(model, tokens, cache)
    return cache


def _prefilled_together(
    model: Any, held: list[caches.Caches], before: list[list[int]], prompts: list[list[int]]
) -> list[caches.Caches]:
    """Caches of rows that hold `before` and whose `prompts` have gone through one forward."""
    lengths, counts = [len(tokens) for tokens in before], [len(tokens) for tokens in prompts]
    width = max(counts)
    together = caches.gather(model, list(zip(held, lengths, strict=True)))
    caches.make_room(together, width)
    model(mx.array([tokens + [0] * (width - len(tokens)) for tokens in prompts]), cache=together)
    caches.advance(together, width)
    mx.eval(*caches.arrays(together))
    return caches.split(together, lengths, counts)


def _decoded(model: Any, tokens: list[int], cache: caches.Caches) -> mx.array:
    """The logits [n, V] behind each of `tokens`, fed one by one: a decode step looks at caches in its own way."""
    return mx.concatenate([_forward(model, [token], cache) for token in tokens])


def _decoded_together(
    model: Any, read: list[caches.Caches], lengths: list[int], following: list[list[int]], order: list[int]
) -> list[mx.array]:
    """Logits [steps, V] of rows in one batch; `order` says which prompt each row has. The last step is without row 0
    where that leaves any row of its kind.
    """
    joined = caches.join([(read[index], [lengths[index]]) for index in order])
    steps, held = [], [lengths[index] for index in order]
    for number in range(_STEPS):
        tokens = mx.array([[following[index][number]] for index in order])
        caches.make_room(joined, 1)
        logits = model(tokens, cache=joined)[:, -1]
        caches.advance(joined, 1)
        held = [length + 1 for length in held]
        mx.eval(logits, *caches.arrays(joined))
        steps.append(logits.astype(mx.float32))
    kept = list(range(1, len(order)))
    joined = caches.leave(joined, held, kept)
    tokens = mx.array([[following[order[index]][_STEPS]] for index in kept])
    last = model(tokens, cache=joined)[:, -1].astype(mx.float32)
    rows = [mx.stack([logits[index] for logits in steps]) for index in range(len(order))]
    return [rows[0], *(mx.concatenate([rows[index], last[index - 1][None]]) for index in kept)]


def _served(subject: CheckedModel, store: PrefixStore, tokens: list[int], following: list[int]) -> tuple[int, mx.array]:
    """Tokens that came from the store, and the logits [1 + steps, V] behind `tokens` and each that follows."""
    match = store.lookup(tokens)
    capture = store.begin(tokens, match=match)
    position, cache = match.cached_tokens, match.caches
    rows: list[mx.array] = []
    while position < len(tokens):
        end = min(len(tokens), capture.chunk_end(position, len(tokens)))
        rows = [_forward(subject.model, tokens[position:end], cache)[-1:]]
        position = end
        capture.after_chunk(cache, position)
    rows.append(_decoded(subject.model, following, cache))
    capture.finish(cache, [*tokens, *following])
    return match.cached_tokens, mx.concatenate(rows)


# ---------------------------------------------------------------- comparing
def _head_counts(cache: caches.Caches) -> set[int]:
    """Numbers of key/value heads that may be the number of rows of a batch."""
    keys = [getattr(leaf, "keys", None) for leaf in layer_caches(cache)]
    counts = {int(array.shape[1]) for array in keys if isinstance(array, mx.array)}
    return {count for count in counts if 2 <= count <= _MOST_ROWS}


def _error(actual: mx.array, expected: mx.array) -> float:
    """Relative error of logits [n, V]: the median of the rows, since an error of the code is in every one."""
    errors = []
    for one, other in zip(actual, expected, strict=False):
        scale = mx.linalg.norm(other - mx.mean(other))
        errors.append(float(mx.linalg.norm(one - other) / mx.maximum(scale, 1e-9)))
    return median(errors)


def _limit(cache: caches.Caches, noise: float) -> float:
    """The largest error that is rounding, for a model that computes in the precision of its caches."""
    return min(max(_EXACT if _is_exact(cache) else _ROUNDED, _NOISE * noise), _LARGEST)


def _is_exact(cache: caches.Caches) -> bool:
    return all(array.dtype == mx.float32 for array in caches.arrays(cache))
