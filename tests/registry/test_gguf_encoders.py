"""Embedders in GGUF files, as most of Ollama's are: the vectors of the model they were made from, and llama.cpp's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omlx.engine import blas

blas.prepare()

import numpy as np
from omlx_registry.gguf.container import GgufError, GgufFile
from omlx_registry.gguf.importer import import_gguf
from omlx_registry.gguf.models import plan_model
from tokenizers import Tokenizer

from omlx.engine.encode.embed import load_embedder, normalised
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.registry import llama_cpp_peer
from tests.registry.tiny_gguf_encoders import CORPUS, KINDS, make_embedder

TEXTS = [*CORPUS, "fox", "  What   costs, what!? ÅNGSTRÖM\n and\ttabs", "unknown ☃ sign, 1234"]


def vectors(folder: Path) -> np.ndarray:
    spec = LoadSpec(
        name="guest", path=str(folder), fingerprint="", kind="embed", engine=EngineConfig(context_length=64)
    )
    embedder = load_embedder(spec, lambda done, total: None)[0]
    rows = embedder.rows(TEXTS, truncate=True)
    return normalised(np.concatenate([embedder.compute([row]) for row in rows]))


def convert(path: Path, folder: Path, weights: str = "keep") -> None:
    import_gguf(path, folder, weights, lambda done, total: None)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_embedder_gives_the_vectors_of_the_original(kind: str, pooling: str, tmp_path: Path) -> None:
    original, path = make_embedder(tmp_path, kind, pooling=pooling)
    convert(path, tmp_path / "imported")
    ours, theirs = (Tokenizer.from_file(str(it / "tokenizer.json")) for it in (tmp_path / "imported", original))
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text).ids, text
    assert json.loads((tmp_path / "imported" / "1_Pooling" / "config.json").read_text()) == {"pooling_mode": pooling}
    np.testing.assert_allclose(vectors(tmp_path / "imported"), vectors(original), atol=2e-5)


@pytest.mark.parametrize("weights", ["keep", "q8_0", "f16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_embedder_stays_near(kind: str, weights: str, tmp_path: Path) -> None:
    original, path = make_embedder(tmp_path, kind, type_of=lambda name: "Q8_0")
    convert(path, tmp_path / "imported", weights)
    stored = json.loads((tmp_path / "imported" / "config.json").read_text())
    assert ("quantization" in stored) == (weights != "f16")
    cosine = (vectors(tmp_path / "imported") * vectors(original)).sum(axis=1)
    assert cosine.min() > 0.999


@pytest.mark.slow
@pytest.mark.skipif(not llama_cpp_peer.available(), reason="xllamacpp is not there: set OMLX_TEST_PEER")
@pytest.mark.parametrize("kind", KINDS)
def test_an_embedder_agrees_with_llama_cpp(kind: str, tmp_path: Path) -> None:
    _, path = make_embedder(tmp_path, kind)
    convert(path, tmp_path / "imported")
    ids, theirs = llama_cpp_peer.embed(path, TEXTS)
    tokenizer = Tokenizer.from_file(str(tmp_path / "imported" / "tokenizer.json"))
    for text, expected in zip(TEXTS, ids, strict=True):
        assert tokenizer.encode(text).ids == expected, text
    cosine = (vectors(tmp_path / "imported") * normalised(np.array(theirs, np.float32))).sum(axis=1)
    assert cosine.min() > 0.9999


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokenizer.ggml.model": "gpt2"}, "BERT models with a tokenizer of kind 'gpt2' cannot be imported"),
        ({"bert.pooling_type": 4}, "holds no embedder"),
    ],
)
def test_what_is_no_embedder_of_ours_is_refused(change: dict[str, object], sentence: str, tmp_path: Path) -> None:
    _, path = make_embedder(tmp_path, "bert")
    with GgufFile(path) as file, pytest.raises(GgufError, match=sentence):
        plan_model(file.metadata | change, file.tensors, lambda name: None, [])
