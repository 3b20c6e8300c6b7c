"""A draft model changes how fast a lone reply comes, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from omlx_cache.store import PrefixStore

from omlx.engine.draft.controller import SpeculationController
from omlx.engine.draft.draft_model import open_draft
from omlx.engine.engine import Engine
from omlx.engine.loader import LoadedModel
from omlx.engine.sequence import SequenceSpec
from omlx.messages.constraint import Grammar
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Limits, Sampling
from tests.engine.support import Replies, bare, engine, loaded, prompt, run, spec, store_for
from tests.engine.test_limits import chat
from tests.support.lessons import STORY
from tests.support.tiny import tiny_model


class Timed:
    """A model whose forwards take no real time, but move a clock on: tiny models all take equally long."""

    def __init__(self, model: Any, clock: Clock, step_s: float) -> None:
        self._model, self._clock, self._step_s = model, clock, step_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: Any, **other: Any) -> Any:
        self._clock.now += self._step_s * (1 + tokens.shape[1] / 100)
        return self._model(tokens, **other)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def with_draft(
    model: LoadedModel, draft: LoadedModel, store: PrefixStore | None = None, *, guess_s: float = 0.02, **config: Any
) -> tuple[Engine, Clock]:
    """An engine whose model takes a second a step and its draft `guess_s`, and the clock that shows it."""
    clock = Clock()
    target = msgspec.structs.replace(model, model=Timed(model.model, clock, 1.0))
    guesser = msgspec.structs.replace(draft, model=Timed(draft.model, clock, guess_s), step_s=0.02)
    values: dict[str, Any] = {"context_length": 4096, "max_concurrent_requests": 16} | config
    return Engine(target, EngineConfig(**values), store, draft=guesser, clock=clock), clock


def drafted(architecture: str = "llama", draft: LoadedModel | None = None) -> Engine:
    """An endless model with a quick draft, by default itself."""
    model = loaded(architecture, endless=True)
    return with_draft(model, draft or model)[0]


def share(machine: Engine) -> float:
    assert machine.guesses is not None
    guessed, accepted = machine.guesses
    return accepted / max(guessed, 1)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_a_model_that_is_its_own_draft_is_always_right_and_says_what_it_says_alone(architecture: str) -> None:
    machine = drafted(architecture)
    replies = run(machine, [spec(0, prompt(30), new=60)])
    assert replies.tokens[0] == bare(architecture, prompt(30), 60)
    assert share(machine) == 1
    assert machine.steps < 25, "several tokens a step"


def test_a_draft_that_knows_nothing_is_seldom_right_and_the_reply_is_the_same() -> None:
    machine = drafted(draft=loaded("qwen3"))
    replies = run(machine, [spec(0, prompt(30), new=80)])
    assert replies.tokens[0] == bare("llama", prompt(30), 80)
    assert machine.guesses is not None
    assert machine.guesses[0] > 0
    assert share(machine) < 0.5


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(seed=7),
        Sampling(seed=8, temperature=1.3, top_k=0, top_p=0.95),
        Sampling(seed=9, temperature=1.0, logit_bias={40: 4.0}),
        Sampling(seed=9, temperature=1.0, repeat_penalty=1.3),
        Sampling(seed=9, temperature=1.0, mirostat=2),
    ],
)
@pytest.mark.parametrize("other", [False, True])
def test_a_sampled_reply_is_the_one_without_a_draft(sampling: Sampling, other: bool) -> None:
    alone = run(engine(endless=True), [spec(0, prompt(25), sampling=sampling, new=70)])
    machine = drafted(draft=loaded("qwen3") if other else None)
    assert run(machine, [spec(0, prompt(25), sampling=sampling, new=70)]).tokens == alone.tokens
    assert machine.guesses is not None
    assert (machine.guesses[0] > 0) == (sampling.repeat_penalty == 1 and not sampling.mirostat)


def test_rounds_end_when_a_second_sequence_joins_and_come_back_when_it_leaves() -> None:
    for draft in (None, loaded("qwen3")):
        machine = drafted(draft=draft)
        seen: list[int] = []

        def watch(step: int, replies: Replies, machine: Engine = machine, seen: list[int] = seen) -> None:
            assert machine.guesses is not None
            seen.append(machine.guesses[0])
            if step == 8:
                machine.add(spec(1, prompt(50, 1), new=12))
                machine.add(spec(2, prompt(7, 2), new=6, sampling=Sampling(seed=1, repeat_penalty=1.2)))

        replies = run(machine, [spec(0, prompt(30), new=150)], after_step=watch)
        assert replies.tokens[0] == bare("llama", prompt(30), 150)
        assert replies.tokens[1] == bare("llama", prompt(50, 1), 12)
        assert machine.max_batch == 3
        assert 0 < seen[7] == seen[14] < seen[-1]


def test_limits_hold_to_the_token() -> None:
    for new in (1, 2, 5, 7):
        replies = run(drafted(), [spec(0, prompt(20), new=new)])
        assert replies.tokens[0] == bare("llama", prompt(20), new)
        assert replies.ends[0].finish == "length"
    for limits in (Limits(num_ctx=50, shift=False), Limits(num_ctx=50, num_predict=120)):
        with_draft, without = (
            run(machine, [spec(0, prompt(30), limits=limits)]) for machine in (drafted(), engine(endless=True))
        )
        assert with_draft.tokens == without.tokens
        assert with_draft.ends[0].finish == without.ends[0].finish == "length"


@pytest.mark.parametrize("stop", [["snow fell"], ["e sta"], []])
def test_stop_strings_and_end_tokens_inside_a_round(stop: list[str]) -> None:
    model = loaded("llama", taught=True)
    machine, _ = with_draft(model, model)
    replies = run(machine, [spec(0, chat("story"), limits=Limits(stop=stop))])
    assert replies.text[0] == (STORY[: STORY.index(stop[0])] if stop else STORY)
    assert replies.ends[0].finish == "stop"
    assert share(machine) == 1


def test_logprobs_are_those_of_plain_decoding() -> None:
    asked: list[SequenceSpec] = [spec(0, prompt(20), new=20, logprobs=True, top_logprobs=3)]
    with_draft, without = (run(machine, asked) for machine in (drafted(), engine(endless=True)))
    pairs = [
        [(one.token, round(one.logprob, 3), [other.token for other in one.top]) for output in replies.outputs
         for one in output.logprobs]
        for replies in (with_draft, without)
    ]  # fmt: skip
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 20


def test_a_constrained_reply_takes_plain_steps() -> None:
    model = loaded("llama", taught=True)
    machine, _ = with_draft(model, model)
    replies = run(machine, [spec(0, chat("story"), new=40, grammar=Grammar(kind="regex", source="[a-z]{8}"))])
    assert len(replies.text[0]) == 8
    assert machine.guesses == (0, 0)


def test_a_cancelled_reply_leaves_the_next_one_unharmed() -> None:
    machine = drafted()
    machine.add(spec(0, prompt(30), new=500))
    for _ in range(6):
        machine.step()
    machine.cancel(0)
    replies = run(machine, [spec(1, [*prompt(30), 9, 9], new=40)])
    assert replies.tokens == {1: bare("llama", [*prompt(30), 9, 9], 40)}
    assert share(machine) == 1


def test_what_a_reply_leaves_in_the_store_is_right() -> None:
    """The caches hold guesses beyond the reply's end when a stop string ends it; none of them may be kept."""
    model = loaded("llama", endless=True)
    full = bare("llama", prompt(100), 90)
    for new in (40, 41, 42, 43):
        machine, _ = with_draft(model, model, store_for(model))
        first = run(machine, [spec(0, prompt(100), new=new)])
        again = run(machine, [spec(1, prompt(100) + first.tokens[0] + [5], new=30)])
        assert first.tokens[0] == full[:new]
        assert again.tokens[1] == bare("llama", prompt(100) + full[:new] + [5], 30)
        usage = again.ends[1].usage
        assert usage is not None
        assert usage.cached_tokens > 100


def test_models_whose_caches_cannot_take_tokens_back_do_without(caplog: pytest.LogCaptureFixture) -> None:
    for model, draft in (("gemma3_text", "llama"), ("llama", "gemma3_text")):
        caplog.clear()
        assert open_draft(load_spec(draft), loaded(model), measure=False) is None
        assert "guesses need plain full-attention caches" in caplog.text
    assert open_draft(load_spec("llama"), loaded("llama"), processes=2) is None
    assert "spread over several processes" in caplog.text


def test_a_broken_draft_ends_no_reply_and_is_not_asked_again() -> None:
    class Broken:
        layers = loaded("llama").model.layers

        def __call__(self, *_: object, **__: object) -> Any:
            raise RuntimeError("out of memory")

    machine = drafted()
    machine._decoding.speculator._drafter._draft.model = Broken()  # type: ignore[union-attr]
    assert run(machine, [spec(0, prompt(20), new=20)]).tokens[0] == bare("llama", prompt(20), 20)
    assert machine.guesses is None
    assert run(machine, [spec(1, prompt(20), new=20)]).tokens[1] == bare("llama", prompt(20), 20)


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    model, asked = loaded("llama"), load_spec("qwen3")
    draft = open_draft(asked, model, measure=False)
    assert draft is not None
    assert draft.vocabulary == model.vocabulary
    strange = msgspec.structs.replace(model, text_tokenizer=Strange())
    with pytest.raises(LoadError, match=r"the draft model of tiny has another vocabulary \(0 of 3 tokens agree\)"):
        open_draft(asked, strange, measure=False)


class Strange:
    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        return {"a": 10, "b": 11, "c": 12}


def load_spec(draft: str) -> LoadSpec:
    path = str(tiny_model("llama"))
    return LoadSpec(
        name="tiny",
        path=path,
        fingerprint="test",
        engine=EngineConfig(context_length=4096),
        draft_path=str(tiny_model(draft)),
    )


class Weather:
    """A world in which guesses are right by chance, steps take a set time, and a controller decides what to do."""

    def __init__(self, right: float, guess_s: float, fixed_s: float = 0.0, expected_s: float = 0.02) -> None:
        self.right, self.guess_s, self.fixed_s = right, guess_s, fixed_s
        self.clock = Clock()
        self.controller = SpeculationController(expected_s, self.clock)
        self.chance = random.Random(1)
        self.sizes: list[int] = []

    def run(self, tokens: int, most: int = 8) -> float:
        """Speed of a reply of so many tokens, of plain decoding's."""
        self.controller.start()
        begun, made = self.clock.now, 0
        while made < tokens:
            count = self.controller.guesses(most, tokens - made)
            self.sizes.append(count)
            noise = self.chance.uniform(0.95, 1.05)
            if not count:
                self.clock.now += noise
                self.controller.plain()
                made += 1
                continue
            self.clock.now += noise * (1 + self.fixed_s + count * self.guess_s)
            right = next((at for at in range(count) if self.chance.random() >= self.right), count)
            self.controller.round(count, right)
            made += right + 1
        return made / (self.clock.now - begun)


@pytest.mark.parametrize(("right", "guess_s", "fixed_s"), [
    (0.0, 0.1, 0.0), (0.0, 1.0, 1.0), (0.3, 0.5, 0.0), (0.7, 1.0, 0.0), (0.9, 1.0, 1.0), (0.9, 0.6, 2.0),
])  # fmt: skip
@pytest.mark.parametrize("expected_s", [0.01, 0.6])
def test_a_draft_that_does_not_pay_costs_a_few_percent(
    right: float, guess_s: float, fixed_s: float, expected_s: float
) -> None:
    weather = Weather(right, guess_s, fixed_s, expected_s)
    assert weather.run(600) > 0.94
    assert weather.run(2000) > 0.97
    assert min(weather.run(300) for _ in range(10)) > 0.94


@pytest.mark.parametrize(
    ("right", "guess_s", "gain"), [(0.9, 0.1, 2.5), (0.9, 0.5, 1.15), (0.6, 0.1, 1.5), (1, 0.02, 5)]
)
def test_a_draft_that_pays_is_used(right: float, guess_s: float, gain: float) -> None:
    weather = Weather(right, guess_s)
    assert weather.run(1000) > gain


def test_a_draft_that_begins_to_guess_well_is_found_out_and_one_that_ceases_to_is_left() -> None:
    weather = Weather(0.05, 0.1)
    weather.run(1000)
    weather.right = 0.9
    assert weather.run(4000) > 1.7
    assert weather.sizes[-20:].count(0) == 0
    weather.right = 0.05
    assert weather.run(4000) > 0.97
    assert weather.sizes[-20:].count(0) == 20


def test_a_slow_first_step_is_not_what_rounds_are_measured_by() -> None:
    """The first step of a shape compiles; a draft that costs as much as the model would look cheap beside that."""
    weather = Weather(0.9, 1.0)
    weather.controller.start()
    weather.controller.plain()
    weather.clock.now += 100
    weather.controller.plain()
    for _ in range(2):
        weather.clock.now += 1
        weather.controller.plain()
    begun = weather.clock.now
    made = 0
    while made < 400:
        count = weather.controller.guesses(4, 400)
        weather.clock.now += 1 + count
        if count:
            weather.controller.round(count, count - 1)
        else:
            weather.controller.plain()
        made += max(count, 1)
    assert made / (weather.clock.now - begun) > 0.94


def test_the_number_of_guesses_follows_from_what_they_cost() -> None:
    """Several positions at once may be dear from some number on."""
    cheap, dear = Weather(0.9, 0.05), Weather(0.9, 0.3)
    cheap.run(1000)
    dear.run(1000)
    assert 0 < dear.sizes[-20] < cheap.sizes[-20] == 8


def test_a_draft_of_the_engine_that_is_slow_costs_a_few_percent() -> None:
    """The engine tells the controller when what ended."""
    model = loaded("llama", endless=True)
    for guess_s, gain in ((1.0, 0.94), (0.02, 2.0)):
        machine, clock = with_draft(model, model, guess_s=guess_s)
        replies = run(machine, [spec(0, prompt(30), new=200)])
        assert replies.tokens[0] == bare("llama", prompt(30), 200)
        assert 200 * 1.01 / clock.now > gain
