"""Every supported family: a GGUF file computes what the MLX model it was written from computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import mlx_lm
from omlx_registry.gguf.importer import import_gguf

from tests.registry.tiny_gguf import FAMILIES, make_pair

PROMPT = "Once upon a time there was a model that knew everything by heart."


def convert(path: Path, folder: Path, weights: str = "keep") -> dict[str, Any]:
    return import_gguf(path, folder, weights, lambda done, total: None)


def logits(folder: Path) -> mx.array:
    model, tokenizer = mlx_lm.load(str(folder))
    return model(mx.array([tokenizer.encode(PROMPT)])).astype(mx.float32)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_import_gives_the_logits_of_the_original(family: str, tmp_path: Path) -> None:
    original, path = make_pair(tmp_path, family)
    convert(path, tmp_path / "imported")
    assert mx.allclose(logits(tmp_path / "imported"), logits(original), rtol=1e-4, atol=1e-4).item()
