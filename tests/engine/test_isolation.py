"""A fault in any part of a step ends the request that causes it and no other: all others get the reply they have alone.

Faults are injected into the real engine: what raises is the code named, and only where the culprit takes part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from omlx_cache.capture import Capture
from omlx_cache.layout import CacheLayout
from omlx_cache.store import PrefixStore

from omlx.engine import caches
from omlx.engine.batch import Batch
from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel
from omlx.engine.prefix_dedup import PrefixDedup
from omlx.engine.sampling import Sampler
from omlx.engine.sequence import Sequence
from omlx.engine.vision.media import PromptMedia
from omlx.messages.constraint import Grammar
from omlx.messages.failures import running_failed
from omlx.messages.load_spec import EngineConfig
from omlx.messages.request import Limits, Sampling
from tests.engine.support import Replies, bare, engine, loaded, prompt, run, spec, store_for
from tests.support.zoo import build

CULPRIT = 2
NEW = 12
LENGTHS = [30, 9, 21, 44]
CULPRITS = [[LENGTHS[CULPRIT]], [LENGTHS[CULPRIT] - 1]]
"""Its cache when it joins: whole, or without the last token where that is left to the first decode step."""
Patch = pytest.MonkeyPatch


class Injected(Exception):
    pass


def specs(*, grammar: bool = False) -> list[Any]:
    source = Grammar(kind="regex", source="[a-z ]{60}")
    return [
        spec(at, prompt(length, at), new=NEW, **({"grammar": source} if grammar and at == CULPRIT else {}))
        for at, length in enumerate(LENGTHS)
    ]


def assert_others_are_right(replies: Replies, *, culprit_fails: bool = True) -> None:
    for at, length in enumerate(LENGTHS):
        if at != CULPRIT or not culprit_fails:
            assert replies.ends[at].failure is None, f"request {at}"
            assert replies.tokens[at] == bare("llama", prompt(length, at), NEW), f"request {at}"
    if culprit_fails:
        failure = replies.ends[CULPRIT].failure
        assert failure == ("internal", running_failed(Injected()))


def fails_for_culprit(
    monkeypatch: Patch, owner: Any, name: str, concerns: Callable[..., bool], *, times: int = 10**6
) -> None:
    """Let a function raise where `concerns` says that the culprit takes part, at most so many times."""
    original, left = getattr(owner, name), [times]

    def broken(*args: Any, **kwargs: Any) -> Any:
        if left[0] and concerns(*args, **kwargs):
            left[0] -= 1
            raise Injected(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)


class Broken:
    """Stands in for `whole`; one of its methods raises."""

    def __init__(self, whole: Any, method: str) -> None:
        self._whole, self._method = whole, method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            raise Injected(name)
        return getattr(self._whole, name)


def is_culprit(item: Any) -> bool:
    return isinstance(item, Sequence) and item.id == CULPRIT


def test_admitting(monkeypatch: Patch) -> None:
    machine = Engine(
        loaded("llama", endless=True),
        EngineConfig(context_length=4096, max_concurrent_requests=16),
        store_for(loaded("llama")),
    )
    fails_for_culprit(monkeypatch, PrefixDedup, "attach", lambda _, newcomer, ahead: is_culprit(newcomer))
    assert_others_are_right(run(machine, specs()))


@pytest.mark.parametrize("name", ["read_ahead", "lookup", "begin", "tick"])
def test_a_store_that_fails_ends_nobody(monkeypatch: Patch, name: str) -> None:
    machine = Engine(
        loaded("llama", endless=True),
        EngineConfig(context_length=4096, max_concurrent_requests=16),
        store_for(loaded("llama")),
    )
    fails_for_culprit(monkeypatch, PrefixStore, name, lambda *_, **__: True)
    assert_others_are_right(run(machine, specs()), culprit_fails=False)


class Faulty:
    """A model that raises where `concerns(tokens, cache)`."""

    def __init__(self, concerns: Callable[[mx.array, Any], bool]) -> None:
        self.model = loaded("llama").model
        self.layers = self.model.layers
        self.concerns = concerns

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        # As a real failure would, it comes when some layers have taken the tokens in.
        found: mx.array = self.model(tokens, cache=cache)
        if self.concerns(tokens, cache):
            raise Injected("forward")
        return found

    def engine(self) -> Engine:
        model: LoadedModel = msgspec.structs.replace(loaded("llama", endless=True), model=self)
        return Engine(model, EngineConfig(context_length=4096, max_concurrent_requests=16))


def test_prefill() -> None:
    start = prompt(LENGTHS[CULPRIT], CULPRIT)[:4]
    machine = Faulty(lambda tokens, cache: start in tokens[:, :4].tolist()).engine()
    assert_others_are_right(run(machine, specs()))


def test_a_decode_step_that_fails_for_one_row() -> None:
    """The fourth token of the culprit's reply is one that the model fails on, in whatever batch it is."""
    poison = bare("llama", prompt(LENGTHS[CULPRIT], CULPRIT), NEW)[3]
    others = [bare("llama", prompt(length, at), NEW) for at, length in enumerate(LENGTHS) if at != CULPRIT]
    assert not any(poison in tokens for tokens in others)
    machine = Faulty(lambda tokens, cache: poison in tokens[:, -1].tolist()).engine()
    replies = run(machine, specs())
    assert_others_are_right(replies)
    assert replies.tokens[CULPRIT] == bare("llama", prompt(LENGTHS[CULPRIT], CULPRIT), NEW)[:4]


@pytest.mark.parametrize("step", [1, 4])
def test_a_step_that_fails_only_with_several_rows_ends_nobody(step: int) -> None:
    count = [0]

    def concerns(tokens: mx.array, cache: Any) -> bool:
        count[0] += tokens.shape[0] > 1
        return tokens.shape[0] > 1 and count[0] >= step

    assert_others_are_right(run(Faulty(concerns).engine(), specs()), culprit_fails=False)


def test_sampled_rows_draw_the_same_tokens_after_a_failed_step() -> None:
    sampled = [
        spec(at, prompt(20, at), new=10, sampling=Sampling(temperature=1.0, seed=at, repeat_penalty=1.2))
        for at in range(3)
    ]
    count = [0]

    def third(tokens: mx.array, cache: Any) -> bool:
        count[0] += tokens.shape[0] > 1
        return tokens.shape[0] > 1 and count[0] == 3

    assert run(Faulty(third).engine(), sampled).tokens == run(engine(endless=True), sampled).tokens


def test_sampling(monkeypatch: Patch) -> None:
    fails_for_culprit(monkeypatch, Sampler, "__init__", lambda self, rows, *_: any(map(is_culprit, rows)))
    assert_others_are_right(run(engine(endless=True), specs()))


@pytest.mark.parametrize("part", ["text", "guide"])
def test_host_work_of_one_row(part: str) -> None:
    machine = engine(endless=True)
    for one in specs(grammar=True):
        machine.add(one)
    sequence = machine._known[CULPRIT]
    if part == "text":
        sequence.text = Broken(sequence.text, "feed")  # type: ignore[assignment]
    else:
        sequence.guide = Broken(sequence.guide, "mask_into")  # type: ignore[assignment]
    assert_others_are_right(run(machine, []))


@pytest.mark.parametrize("times", [1, 10**6])
def test_joining(monkeypatch: Patch, times: int) -> None:
    """Who cannot join a batch runs in one of its own; the batch stays as it was."""

    def concerns(parts: Any) -> bool:
        return len(parts) > 1 and any(lengths in CULPRITS for _, lengths in parts)

    fails_for_culprit(monkeypatch, caches, "join", concerns, times=times)
    assert_others_are_right(run(engine(endless=True), specs(), every=2), culprit_fails=False)


def test_joining_even_alone(monkeypatch: Patch) -> None:
    concerns = lambda parts: any(lengths in CULPRITS for _, lengths in parts)  # noqa: E731
    fails_for_culprit(monkeypatch, caches, "join", concerns)
    assert_others_are_right(run(engine(endless=True), specs(), every=2))


@pytest.mark.parametrize("times", [1, 2])
def test_leaving(monkeypatch: Patch, times: int) -> None:
    """A row that leaves a batch takes none with it: the others are computed again."""
    fails_for_culprit(monkeypatch, caches, "leave", lambda *_: True, times=times)
    limits = [Limits(num_predict=count) for count in (12, 3, 7, 12)]
    wanted = [spec(at, prompt(length, at), limits=limits[at]) for at, length in enumerate(LENGTHS)]
    replies = run(engine(endless=True), wanted)
    for at, length in enumerate(LENGTHS):
        assert replies.tokens[at] == bare("llama", prompt(length, at), limits[at].num_predict)


def test_shifting_out_of_a_batch_that_fails(monkeypatch: Patch) -> None:
    wanted = [spec(at, prompt(20, at), limits=Limits(num_ctx=32, num_predict=40)) for at in range(2)]
    expected = run(engine(endless=True), wanted).tokens
    fails_for_culprit(monkeypatch, caches, "leave", lambda *_: True, times=1)
    assert run(engine(endless=True), wanted).tokens == expected


@pytest.mark.parametrize("place", ["places_of", "stack", "finish", "after_chunk"])
def test_capturing(monkeypatch: Patch, place: str) -> None:
    machine = Engine(
        loaded("llama", endless=True),
        EngineConfig(context_length=4096, max_concurrent_requests=16),
        store_for(loaded("llama")),
    )
    owner: Any = {"places_of": Batch, "stack": CacheLayout}.get(place, Capture)
    fails_for_culprit(monkeypatch, owner, place, lambda *_: True)
    assert_others_are_right(run(machine, specs()), culprit_fails=False)


def test_ending_a_row_whose_text_fails() -> None:
    machine = engine(endless=True)
    for one in specs():
        machine.add(one)
    sequence = machine._known[CULPRIT]
    sequence.text = Broken(sequence.text, "flush")  # type: ignore[assignment]
    replies = Replies()
    for _ in range(3):
        replies.take(machine.step())
    machine.end(CULPRIT)
    while machine.has_work:
        replies.take(machine.step())
    assert_others_are_right(replies)


def test_prompts_of_one_token_join_models_that_remember_tokens() -> None:
    """longcat_flash_ngram keeps the last tokens of a prompt: one of a single token has fewer, and cannot be joined."""
    network = build("longcat_flash_ngram")
    model = msgspec.structs.replace(
        loaded("llama", endless=True), model=network, layout=CacheLayout(network), can_batch=True
    )
    lengths = [12, 20, 1, 9]

    def answers(concurrent: int) -> dict[int, list[int]]:
        machine = Engine(model, EngineConfig(context_length=4096, max_concurrent_requests=concurrent))
        return run(machine, [spec(at, prompt(length, at), new=8) for at, length in enumerate(lengths)], every=2).tokens

    assert answers(4) == answers(1)


def test_a_layout_that_the_store_does_not_know_means_no_store() -> None:
    network = build("deepseek_v41")
    layout = CacheLayout(network)
    assert not layout.supported
    model = msgspec.structs.replace(loaded("llama", endless=True), model=network, layout=layout, can_batch=False)
    tokens = {
        stored: run(
            Engine(model, EngineConfig(context_length=4096), store_for(model) if stored else None),
            [spec(at, prompt(20, at), new=6) for at in range(3)],
        )
        for stored in (False, True)
    }
    assert all(end.failure is None for end in tokens[True].ends.values())
    assert tokens[True].tokens == tokens[False].tokens


def test_tokens_behind_a_prompt_with_pictures_have_positions_when_it_is_computed_again() -> None:
    media = PromptMedia([], 5, whole=False, rotary=True)
    media.delta = -2  # what pictures take less than their tokens
    assert media.positions_of(3, 8).tolist() == [[3, 4, 3, 4, 5]] * 3
    assert media.positions_of(6, 7).tolist() == [[4]] * 3
    assert media.positions_of(0, 5).tolist() == [[0, 1, 2, 3, 4]] * 3
