"""Load checks: what a model's code cannot do in a batch or from the store is found before any request runs."""

from __future__ import annotations

from typing import Any

import pytest
from omlx_cache.layout import CacheLayout

from omlx.engine import load_checks
from omlx.engine.model_adapters import adapt
from omlx.messages.load_checks import LoadChecks
from tests.support.tiny import VOCABULARY
from tests.support.zoo import build

ADAPTED = ["afm7", "gemma2", "gpt_bigcode"]


def checked(model: Any) -> LoadChecks:
    return load_checks.run(load_checks.CheckedModel(model, CacheLayout(model), VOCABULARY), "these versions")


@pytest.mark.parametrize("architecture", ADAPTED)
def test_a_model_that_does_not_take_padding_is_found(architecture: str) -> None:
    found = checked(build(architecture))
    assert "batching" in found.off and "cache" not in found.off
    assert "its requests run one at a time" in found.notes[0]


@pytest.mark.parametrize("architecture", ADAPTED)
def test_with_its_adapter_it_runs_in_batches(architecture: str) -> None:
    model = build(architecture)
    adapt(model)
    assert checked(model).off == ()


def test_a_prompt_that_is_masked_otherwise_than_its_cache_is_found() -> None:
    model = build("plamo3")
    assert checked(model).off == ("joint prefill", "cache")
    adapt(model)
    assert checked(model).off == ()


def test_a_cache_of_an_unknown_class_means_no_batch_and_no_store() -> None:
    found = checked(build("deepseek_v41"))
    assert found.off == ("batching", "joint prefill", "cache")
    assert "LayerCache" in found.notes[2]


def test_what_was_found_holds_for_the_same_versions_and_checks() -> None:
    found = checked(build("qwen3"))
    assert load_checks.known(found, "these versions")
    assert not load_checks.known(found, "other versions")
    fewer = LoadChecks(basis="these versions", seconds=0.1, findings=found.findings[:1])
    assert not load_checks.known(fewer, "these versions")
