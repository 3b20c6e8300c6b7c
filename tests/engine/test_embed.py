"""Embedding: vectors are those of the trained model, whatever else is in the batch, and wrong poolings are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
blas.prepare()

import numpy as np
from mlx_vlm.embedding_loader import load_embedding_model
from tokenizers import Tokenizer

from omlx.engine.encode.embed import chat_embedder, known_pooling, load_embedder, normalised, read_pooling
from omlx.engine.encode.rows import BadTokens, Encoder, EncodeRow, TooLong, pad
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.engine.support import loaded
from tests.support.precision import noise, on_gpu, within
from tests.support.tiny import tiny_model
from tests.support.tiny_encoder import CONFIGS, WIDTH, Reference, make_encoder, quantize_encoder

TEXTS = ["hello world", "a", "", "the quick brown fox jumps over it, twice.", "no?", "hello there world 42"]


def load(folder: Path, num_ctx: int = 64, **fields: Any) -> Encoder:
    config = EngineConfig(context_length=num_ctx)
    spec = LoadSpec(name="tiny", path=str(folder), fingerprint="", kind="embed", engine=config, **fields)
    return load_embedder(spec, lambda done, total: None)[0]


def embed(embedder: Encoder, texts: list[str]) -> Any:
    return normalised(embedder.compute(embedder.rows(texts, truncate=True)))


@pytest.mark.parametrize("model_type", CONFIGS)
def test_the_tokens_of_a_text_give_the_row_of_the_text(model_type: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, model_type)
    embedder = load(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()  # the files carry the padding and truncation of a training
    tokenizer.no_truncation()
    for text in TEXTS:
        (row,) = embedder.rows([text], truncate=True)
        for special in (False, True):
            tokens = tokenizer.encode(text, add_special_tokens=special).ids
            assert embedder.rows([tokens], truncate=True) == [row]
    long = tokenizer.encode("hello " * 100, add_special_tokens=False).ids
    assert embedder.rows(["a", long, "b"], truncate=True) == embedder.rows(["a", "hello " * 100, "b"], truncate=True)
    with pytest.raises(TooLong):
        embedder.rows([long], truncate=False)
    with pytest.raises(BadTokens):
        embedder.rows([[0, 10_000_000]], truncate=True)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("bert"), "bert")


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_text_gets_the_same_vector_alone_and_padded_among_others(model_type: str, tmp_path: Path) -> None:
    embedder = load(make_encoder(tmp_path, model_type))
    together = embed(embedder, TEXTS)
    alone = np.concatenate([embed(embedder, [text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=within(2e-6))
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert together.dtype == np.float32
    # The texts are told apart, so that equality means something.
    assert np.abs(together @ together.T - np.eye(len(TEXTS))).max() < 0.999


@pytest.mark.parametrize(
    ("pooling", "flags"),
    [
        ("mean", {}),
        ("mean", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}),
        ("mean", {"pooling_mode_mean_tokens": False, "pooling_mode_mean_sqrt_len_tokens": True}),
        ("cls", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
        ("max", {"pooling_mode_max_tokens": True}),
        ("lasttoken", {"pooling_mode": "lasttoken"}),
    ],
)
def test_vectors_are_pooled_as_the_model_was_trained(pooling: str, flags: dict[str, Any], tmp_path: Path) -> None:
    folder = make_encoder(tmp_path, "bert", pooling={"word_embedding_dimension": WIDTH, **flags})
    embedder, reference = load(folder), Reference(folder)
    rows = embedder.rows(TEXTS, truncate=True)
    wanted = np.stack([reference.embed(row.tokens, pooling) for row in rows])
    np.testing.assert_allclose(normalised(embedder.compute(rows)), wanted, atol=within(2e-6))


@pytest.mark.parametrize(
    "flags",
    [
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "attention"},
    ],
)
def test_a_pooling_that_cannot_be_done_is_refused(flags: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="pooling"):
        load(make_encoder(tmp_path, "bert", pooling=flags))


def test_the_pooling_is_found_where_modules_json_says(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert", pooling={"pooling_mode": "cls"})
    (tmp_path / "1_Pooling").rename(tmp_path / "2_Pool")
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "2_Pool"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert read_pooling(tmp_path) == "cls"


@pytest.mark.parametrize(
    ("name", "model_type", "pooling"),
    [
        ("bge-m3:567m", "xlm_roberta", "cls"),
        ("hf.co/mlx-community/snowflake-arctic-embed-l-bf16:latest", "bert", "cls"),
        ("all-minilm:22m", "bert", "mean"),
        ("qwen3-embedding:0.6b", "qwen3_embedding", "lasttoken"),
    ],
)
def test_a_conversion_without_its_pooling_file_is_pooled_as_its_family_is(
    name: str, model_type: str, pooling: str
) -> None:
    assert known_pooling(name, model_type) == pooling


@pytest.mark.parametrize("model_type", ["bert", "qwen3"])
def test_a_quantized_model_embeds_the_same_however_it_is_held(model_type: str, tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "whole", model_type, config={"hidden_size": 64, "intermediate_size": 128})
    quantize_encoder(folder, tmp_path / "small")
    whole = embed(load(folder), TEXTS)
    dense, small = (embed(load(tmp_path / "small", weights=held), TEXTS) for held in ("auto", "quantized"))
    # A GPU holds the dense weights in bfloat16, and multiplies the others as they are.
    np.testing.assert_allclose(dense, small, atol=noise("bfloat16") if on_gpu() else 1e-4)
    assert (whole * small).sum(axis=1).min() > 0.95


def test_an_activation_that_the_network_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="relu"):
        load(make_encoder(tmp_path, "bert", config={"hidden_act": "relu"}))


def test_a_folder_that_is_no_embedder_says_so(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LoadError, match="tiny cannot be loaded: No safetensors"):
        load(tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_a_causal_embedder_ignores_padding_as_its_masked_forward_does(pooling: str, tmp_path: Path) -> None:
    embedder = load(make_encoder(tmp_path, "qwen3", pooling={"pooling_mode": pooling}))
    rows = embedder.rows(TEXTS, truncate=True)
    batch = pad(rows, 0)
    network = load_embedding_model(tmp_path)
    network.pooling_config = {"pooling_mode": pooling}
    masked = network(batch.tokens, attention_mask=batch.mask).text_embeds
    np.testing.assert_allclose(normalised(embedder.compute(rows)), np.array(masked), atol=within(2e-6))


def in_parts(embedder: Encoder, row: EncodeRow, size: int) -> Any:
    parts = embedder.begin(row)
    assert parts is not None
    while (numbers := parts.read(size)) is None:
        assert parts.left
    assert parts.left == 0
    return numbers


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_causal_embedder_reads_long_texts_in_parts(pooling: str, size: int, tmp_path: Path) -> None:
    embedder = load(make_encoder(tmp_path, "qwen3", pooling={"pooling_mode": pooling}))
    rows = embedder.rows(["the quick brown fox jumps over it, twice. no?"], truncate=True)
    np.testing.assert_allclose(in_parts(embedder, rows[0], size), embedder.compute(rows), atol=within(1e-4))


def test_an_encoder_reads_its_texts_whole(bert: Path) -> None:
    embedder = load(bert)
    assert embedder.begin(embedder.rows(["hello"], truncate=True)[0]) is None


def test_a_generator_may_be_declared_an_embedder() -> None:
    embedder = load(tiny_model("llama"))
    together = embed(embedder, TEXTS)
    alone = np.concatenate([embed(embedder, [text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=within(2e-5))


def test_long_texts_are_cut_between_their_special_tokens(bert: Path) -> None:
    embedder = load(bert, num_ctx=16)
    (row,) = embedder.rows(["a" * 100], truncate=True)
    assert (len(row.tokens), row.tokens[0], row.tokens[-1]) == (16, 2, 3)
    (exact,) = embedder.rows(["a" * 14], truncate=False)
    assert len(exact.tokens) == 16
    with pytest.raises(TooLong):
        embedder.rows(["short", "a" * 15], truncate=False)


@pytest.mark.parametrize(
    ("model_type", "trained", "num_ctx", "limit"),
    [("bert", None, 4096, 64), ("bert", 20, 4096, 20), ("bert", None, 30, 30), ("xlm-roberta", None, 4096, 63)],
)
def test_a_row_is_never_longer_than_context_positions_and_training_allow(
    model_type: str, trained: int | None, num_ctx: int, limit: int, tmp_path: Path
) -> None:
    embedder = load(make_encoder(tmp_path, model_type, max_seq_length=trained), num_ctx=num_ctx)
    rows = embedder.rows(["b" * 500], truncate=True)
    assert len(rows[0].tokens) == limit
    assert np.isfinite(embedder.compute(rows)).all()


def test_dimensions_cut_and_normalise_again() -> None:
    vectors = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(normalised(vectors), np.array([[3 / 13, 4 / 13, 12 / 13], [0, 0, 0]]), rtol=1e-6)
    np.testing.assert_allclose(normalised(vectors, 2), np.array([[0.6, 0.8], [0, 0]]), rtol=1e-6)
    assert normalised(vectors, 3).shape == normalised(vectors, 99).shape == (2, 3)


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3", "gemma3_text", "mamba2", "qwen3_next", "llama4", "gemma3n", "mamba"]
)
def test_a_chat_model_embeds_by_the_mean_of_its_states(architecture: str) -> None:
    model = loaded(architecture)
    embedder = chat_embedder(model, lambda text, most: model.text_tokenizer.encode(text).ids, 64)
    together = embed(embedder, TEXTS)
    alone = np.concatenate([embed(embedder, [text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=within(2e-5))
    rows = embedder.rows(["the quick brown fox jumps over it"], truncate=True)
    np.testing.assert_allclose(in_parts(embedder, rows[0], 7), embedder.compute(rows), atol=within(2e-5))
    with pytest.raises(TooLong):
        embedder.rows(["never gonna give you up " * 50], truncate=False)
