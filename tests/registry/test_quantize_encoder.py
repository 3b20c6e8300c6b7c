"""Encoders quantize and cast: the result loads, pools as before and gives nearly the vectors of full precision."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine import blas

blas.prepare()

from omlx_registry.quantize_model import quantize_model

from omlx.engine.encode.embed import load_embedder, normalised
from omlx.engine.encode.rerank import load_reranker
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.registry.tiny_gguf_encoders import make_embedder
from tests.support.tiny_encoder import make_encoder

TEXTS = ["hello world", "a", "the quick brown fox jumps over it, twice.", "no?", "hello there world 42"]


def vectors(folder: Path) -> np.ndarray:
    spec = LoadSpec(name="tiny", path=str(folder), fingerprint="", engine=EngineConfig(context_length=64), kind="embed")
    embedder = load_embedder(spec, lambda done, total: None)[0]
    return np.array(normalised(embedder.compute(embedder.rows(TEXTS, truncate=True))))


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize(("name", "least"), [("f16", 0.999), ("bf16", 0.98), ("q8_0", 0.98)])
def test_an_encoder_is_cast_and_quantized(model_type: str, name: str, least: float, tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 128}
    source = make_encoder(tmp_path / "source", model_type, pooling={"pooling_mode_cls_token": True}, config=wide)
    result = quantize_model(source, tmp_path / "made", name, lambda *report: None)
    assert "1_Pooling/config.json" in result["files"]
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert ("quantization" in config) == (name == "q8_0")
    size = (tmp_path / "made" / "model.safetensors").stat().st_size
    assert size < 0.6 * (source / "model.safetensors").stat().st_size
    assert (vectors(source) * vectors(tmp_path / "made")).sum(axis=1).min() > least


@pytest.mark.parametrize(("name", "least"), [("f16", 0.999), ("bf16", 0.98), ("q8_0", 0.98)])
def test_nomics_encoder_is_cast_and_quantized(name: str, least: float, tmp_path: Path) -> None:
    source, _ = make_embedder(tmp_path / "source", "nomic-bert")
    quantize_model(source, tmp_path / "made", name, lambda *report: None)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert ("quantization" in config) == (name == "q8_0")
    size = (tmp_path / "made" / "model.safetensors").stat().st_size
    assert size < 0.6 * (source / "model.safetensors").stat().st_size
    assert (vectors(source) * vectors(tmp_path / "made")).sum(axis=1).min() > least


def test_a_reranker_is_quantized(tmp_path: Path) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 128}
    mx.random.seed(1)  # a random network may amplify rounding by far more than a trained one
    source = make_encoder(tmp_path / "source", "bert", ranks=True, config=wide)
    quantize_model(source, tmp_path / "made", "q8_0", lambda *report: None)
    pairs = [("hello", "hello world"), ("hello", "a cat"), ("no?", "the quick brown fox")]

    def scores(folder: Path) -> np.ndarray:
        spec = LoadSpec(
            name="tiny", path=str(folder), fingerprint="", engine=EngineConfig(context_length=64), kind="rerank"
        )
        reranker = load_reranker(spec, lambda done, total: None)[0]
        return np.array(reranker.compute(reranker.rows(pairs, truncate=True)))

    np.testing.assert_allclose(scores(tmp_path / "made"), scores(source), atol=0.1)
