"""A reply does not depend on what else the engine does: batched equals alone, token for token."""

from __future__ import annotations

import pytest

from omlx.messages.request import Sampling
from tests.engine.support import bare, engine, prompt, run, spec

BATCHABLE = [
    "llama", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss", "qwen3_next", "mamba2", "falcon_h1", "deepseek_v3", "lfm2",
    "nemotron_h", "jamba", "gemma3n",
]  # fmt: skip
LENGTHS = [1, 70, 5, 150, 33, 70]
NEW = [26, 10, 22, 16, 8, 14]


@pytest.mark.parametrize("architecture", [*BATCHABLE, "llama4"])
def test_batched_with_staggered_joins_and_leaves_equals_alone(architecture: str) -> None:
    machine = engine(architecture, endless=True)
    lengths = LENGTHS[:3] if architecture == "llama4" else LENGTHS
    specs = [spec(at, prompt(length, at), new=NEW[at]) for at, length in enumerate(lengths)]
    replies = run(machine, specs, every=5)
    for at, length in enumerate(lengths):
        assert replies.tokens[at] == bare(architecture, prompt(length, at), NEW[at]), f"{architecture}, request {at}"
    assert machine.max_batch == 1 if architecture == "llama4" else machine.max_batch >= 3


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_requests_that_start_together_and_have_equal_lengths_equal_alone(architecture: str) -> None:
    """Rows of equal length take the path without padding and masks, and leave it when one of another length joins."""
    specs = [spec(at, prompt(40, at), new=20) for at in range(4)] + [spec(4, prompt(90, 4), new=20)]
    replies = run(engine(architecture, endless=True), specs)
    for at in range(4):
        assert replies.tokens[at] == bare(architecture, prompt(40, at), 20)
    assert replies.tokens[4] == bare(architecture, prompt(90, 4), 20)


SAMPLED = [
    Sampling(seed=7),
    Sampling(seed=7, temperature=1.4, top_k=0, top_p=0.95),
    Sampling(seed=123456789012, temperature=1.0, top_k=200, min_p=0.02),
    Sampling(seed=3, temperature=1.0, typical_p=0.7),
    Sampling(
        seed=4, temperature=1.2, repeat_penalty=1.3, repeat_last_n=16, presence_penalty=0.5, frequency_penalty=0.3
    ),
    Sampling(seed=5, temperature=1.0, mirostat=2, mirostat_tau=4.0),
    Sampling(seed=5, temperature=1.0, mirostat=1, mirostat_tau=4.0),
    Sampling(seed=6, temperature=0.9, logit_bias={40: 3.0, 41: -100.0}),
    Sampling(temperature=0),
]


def test_a_seed_gives_the_same_reply_whatever_shares_the_batch() -> None:
    tokens = [prompt(20 + at, at) for at in range(len(SAMPLED))]
    alone = [
        run(engine(endless=True), [spec(0, tokens[at], sampling=sampling)]).tokens[0]
        for at, sampling in enumerate(SAMPLED)
    ]
    specs = [spec(at, tokens[at], sampling=sampling) for at, sampling in enumerate(SAMPLED)]
    for order in (specs, specs[::-1]):
        replies = run(engine(endless=True), order, every=3)
        for at in range(len(SAMPLED)):
            assert replies.tokens[at] == alone[at], SAMPLED[at]


def test_another_seed_gives_another_reply() -> None:
    replies = run(engine(endless=True), [spec(at, prompt(20), sampling=Sampling(seed=at)) for at in range(3)])
    assert len({tuple(tokens) for tokens in replies.tokens.values()}) == 3
