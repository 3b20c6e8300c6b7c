"""The vectorised sampler against the definition of each filter, row by row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.engine import blas

blas.prepare()

import mlx.core as mx

from omlx.engine.sampling import Sampler, top_candidates, uniform
from omlx.messages.request import Sampling
from tests.engine.support import engine, prompt, run, spec

VOCABULARY = 1000


def row(sampling: Sampling, tokens: list[int] | None = None, seed: int = 1) -> Any:
    return SimpleNamespace(
        sampling=sampling, seed=seed, tokens=tokens or [], context=4096, mirostat_mu=None, wants_logprobs=None
    )


def draws(sampling: Sampling, logits: np.ndarray[Any, Any], count: int = 400, **other: Any) -> list[int]:
    """Tokens that many seeds sample from the same logits."""
    rows = [row(sampling, seed=seed, **other) for seed in range(count)]
    wide = mx.broadcast_to(mx.array(logits.astype(np.float32))[None], (count, len(logits)))
    return [int(token) for token in Sampler(rows, [0] * count, len(logits))(wide).tokens.tolist()]  # type: ignore[union-attr]


def softmax(values: Any) -> Any:
    weights = np.exp(values - np.max(values))
    return weights / weights.sum()


LOGITS = np.random.default_rng(0).normal(0, 2.5, VOCABULARY)
ORDER = np.argsort(-LOGITS)


def allowed(sampling: Sampling) -> set[int]:
    """The candidates that survive, by the definitions, in llama.cpp's order."""
    ids = ORDER[: sampling.top_k] if sampling.top_k > 0 else ORDER
    if sampling.typical_p < 1:
        p = softmax(LOGITS[ids])
        surprise = -np.log(p)
        by_typicality = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
        count = int(np.searchsorted(np.cumsum(p[by_typicality]), sampling.typical_p)) + 1
        ids = ids[np.sort(by_typicality[:count])]
    if sampling.top_p < 1:
        p = softmax(LOGITS[ids])
        ids = ids[: int(np.searchsorted(np.cumsum(p), sampling.top_p)) + 1]
    if sampling.min_p > 0:
        p = softmax(LOGITS[ids])
        ids = ids[p >= sampling.min_p * p.max()]
    return {int(token) for token in ids}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=3.0, top_k=5, top_p=1.0),
        Sampling(temperature=3.0, top_k=0, top_p=0.5),
        Sampling(temperature=3.0, top_k=0, top_p=1.0, min_p=0.2),
        Sampling(temperature=3.0, top_k=40, top_p=0.8, min_p=0.1),
        Sampling(temperature=3.0, top_k=100, top_p=1.0, typical_p=0.4),
        Sampling(temperature=3.0, top_k=0, top_p=0.9, typical_p=0.6),
        Sampling(temperature=3.0, top_k=5000, top_p=0.6),
    ],
)
def test_only_candidates_that_every_filter_leaves_are_drawn_and_all_of_them_are(sampling: Sampling) -> None:
    drawn, candidates = set(draws(sampling, LOGITS, 3000)), allowed(sampling)
    assert drawn <= candidates
    assert len(drawn) >= 0.75 * min(len(candidates), 40)


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    sampling = Sampling(temperature=0.7, top_k=8, top_p=1.0)
    drawn = draws(sampling, LOGITS, 8000)
    expected = softmax(LOGITS[ORDER[:8]] / 0.7)
    for token, share in zip(ORDER[:8], expected, strict=True):
        assert abs(drawn.count(int(token)) / 8000 - share) < 0.02


def test_penalties_follow_their_definitions() -> None:
    tokens = [3, 5, 5, 9, 7]
    sampling = Sampling(temperature=0, repeat_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.3, repeat_last_n=4)
    expected = LOGITS.copy()
    for token in {5, 9, 7}:  # the last four tokens
        expected[token] = expected[token] / 1.5 if expected[token] > 0 else expected[token] * 1.5
        expected[token] -= 0.4 + 0.3 * tokens[-4:].count(token)
    from omlx.engine.penalties import Penalties

    penalties = Penalties.of([row(sampling, tokens), row(Sampling(), tokens)], VOCABULARY)
    assert penalties is not None
    logits = mx.array(np.stack([LOGITS, LOGITS]).astype(np.float32))
    changed = np.array(penalties(logits, None))
    np.testing.assert_allclose(changed[0], expected, rtol=1e-5)
    np.testing.assert_allclose(changed[1], LOGITS, rtol=1e-6)
    # The next token pushes the oldest one (the first 5) out of the window.
    changed = np.array(penalties(logits, mx.array([11, 11])))
    again = LOGITS.copy()
    for token in (5, 9, 7, 11):
        again[token] = again[token] / 1.5 if again[token] > 0 else again[token] * 1.5
        again[token] -= 0.7
    np.testing.assert_allclose(changed[0], again, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 3, 64, -1])
def test_penalties_kept_on_the_device_equal_penalties_of_the_whole_reply(window: int) -> None:
    """Tokens the host has not read yet count as well: a reply equals one made token by token by new engines."""
    sampling = Sampling(temperature=0, repeat_penalty=1.8, repeat_last_n=window)
    whole = run(engine(endless=True), [spec(0, prompt(9), new=12, sampling=sampling)]).tokens[0]
    tokens = prompt(9)
    for _ in range(12):
        tokens += run(engine(endless=True), [spec(0, tokens, new=1, sampling=sampling)]).tokens[0]
    assert tokens[9:] == whole


def test_logit_bias_forbids_and_forces() -> None:
    best = int(ORDER[0])
    assert set(draws(Sampling(temperature=0, logit_bias={best: -100.0}), LOGITS, 3)) == {int(ORDER[1])}
    assert set(draws(Sampling(temperature=1.0, logit_bias={7: 100.0}), LOGITS, 50)) == {7}


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_steers_towards_its_surprise(version: int) -> None:
    logits = mx.array(np.random.default_rng(1).normal(0, 3, (1, VOCABULARY)).astype(np.float32))
    probability = softmax(np.array(logits)[0])
    for tau in (1.0, 3.0):
        sampler = Sampler([row(Sampling(temperature=1.0, mirostat=version, mirostat_tau=tau))], [0], VOCABULARY)
        surprise = [-np.log2(probability[sampler(logits).tokens.item()]) for _ in range(250)]
        assert abs(float(np.mean(surprise[50:])) - tau) < 0.8


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(2, 5000), st.integers(0, 10_000))
def test_top_candidates_are_the_largest_in_order(count: int, vocabulary: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(3, vocabulary)).astype(np.float32)
    found, ids = (np.array(part) for part in top_candidates(mx.array(values), count))
    expected = -np.sort(-values, axis=-1)[:, :count]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.take_along_axis(values, ids.astype(np.int64), axis=-1), expected)


def test_random_numbers_are_a_function_of_seed_and_place_and_are_uniform() -> None:
    seeds = np.array([5, 6], np.uint64)
    numbers = uniform(seeds, np.array([0, 0], np.uint64), 10_000)
    later = uniform(seeds[1:], np.array([37], np.uint64), 5)
    np.testing.assert_array_equal(numbers[1:, 37:42], later)
    assert (numbers >= 0).all() and (numbers < 1).all()
    np.testing.assert_allclose(np.histogram(numbers, 10, (0, 1))[0] / 20_000, 0.1, atol=0.01)
    assert abs(np.corrcoef(numbers)[0, 1]) < 0.05


def test_log_probabilities_are_the_models_own_and_come_with_every_token() -> None:
    sampling = Sampling(temperature=1.0, seed=3, repeat_penalty=1.5)
    specs = [
        spec(0, prompt(9), new=5, sampling=sampling, logprobs=True, top_logprobs=3),
        spec(1, prompt(9, 1), new=5),
        spec(2, prompt(9, 2), new=5, logprobs=True),
    ]
    replies = run(engine(endless=True), specs, every=2)
    entries = [entry for output in replies.outputs if output.id == 0 for entry in output.logprobs]
    assert len(entries) == 5
    for entry in entries:
        values = [alternative.logprob for alternative in entry.top]
        assert values == sorted(values, reverse=True) and len(values) == 3
        assert entry.logprob <= values[0] + 1e-6
        assert sum(np.exp(values)) <= 1.0001
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    assert not any(output.logprobs for output in replies.outputs if output.id == 1)
    assert all(not entry.top for output in replies.outputs if output.id == 2 for entry in output.logprobs)
