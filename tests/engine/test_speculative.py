"""A draft model changes how fast a lone reply comes, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omlx.engine.engine import Engine, EngineConfig
from omlx.engine.grammar import Grammar
from omlx.engine.loader import LoadedModel, LoadError
from omlx.engine.sequence import SequenceSpec
from omlx.engine.speculative import best_count, open_draft
from omlx.request import Limits, Sampling
from omlx.runner.protocol import LoadSpec
from tests.engine.support import Replies, bare, engine, loaded, prompt, run, spec, store_for
from tests.engine.test_limits import chat
from tests.support.lessons import STORY
from tests.support.tiny import tiny_model


def quick(model: LoadedModel) -> LoadedModel:
    """A draft that is said to be fast: tiny models all take equally long."""
    return msgspec.structs.replace(model, step_s=model.step_s / 50)


def drafted(architecture: str = "llama", draft: LoadedModel | None = None, **config: Any) -> Engine:
    """An endless model with a draft, by default itself."""
    model = loaded(architecture, endless=True)
    values: dict[str, Any] = {"num_ctx": 4096, "max_concurrent": 16} | config
    return Engine(model, EngineConfig(**values), draft=quick(draft or model))


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
    machine = Engine(model, EngineConfig(num_ctx=4096), draft=quick(model))
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
    machine = Engine(model, EngineConfig(num_ctx=4096), draft=quick(model))
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
        machine = Engine(model, EngineConfig(num_ctx=4096), store_for(model), draft=quick(model))
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


def test_a_broken_draft_ends_one_reply_and_is_not_asked_again() -> None:
    class Broken:
        layers = loaded("llama").model.layers

        def __call__(self, *_: object, **__: object) -> Any:
            raise RuntimeError("out of memory")

    machine = drafted()
    machine._speculator._draft.model = Broken()  # type: ignore[union-attr]
    replies = run(machine, [spec(0, prompt(20), new=20)])
    assert replies.ends[0].failure is not None
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
    return LoadSpec(name="tiny", path=path, fingerprint="test", num_ctx=4096, draft_path=str(tiny_model(draft)))


def test_the_number_of_guesses_follows_from_what_they_cost_and_how_often_they_are_right() -> None:
    cheap, dear = {"step_s": 7.0, "token_s": 0.03, "guess_s": 0.7}, {"step_s": 7.0, "token_s": 0.03, "guess_s": 7.0}
    assert best_count(0.9, 4, **cheap) == 4
    assert 0 < best_count(0.5, 16, **cheap) < best_count(0.9, 16, **cheap)
    assert best_count(0.05, 4, **cheap) == 0
    assert best_count(1.0, 4, **dear) == 0
    assert best_count(0.9, 0, **cheap) == 0
