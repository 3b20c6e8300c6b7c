"""Nomic's embedder equals a float64 forward written down anew, alone and in a batch; what is not it is refused."""

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
from safetensors.numpy import load_file, save_file

from omlx.engine.encode.embed import load_embedder, normalised
from omlx.engine.encode.rows import Encoder
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.support.tiny_encoder import spell, write_speller

WIDTH, HEADS, INNER, LAYERS = 32, 4, 64, 2
CONFIG: dict[str, Any] = {
    "model_type": "nomic_bert",
    "architectures": ["NomicBertModel"],
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 48,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "n_embd": WIDTH,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_layer": LAYERS,
    "n_positions": 8192,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 96,
}
TEXTS = ["hello world", "a", "the quick brown fox jumps over it, twice.", "no?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nomic")
    write_speller(path)
    chance = np.random.default_rng(5)

    def some(*shape: int, around: float = 0.0) -> Any:
        return (around + 0.3 * chance.standard_normal(shape)).astype(np.float32)

    tensors = {
        "embeddings.word_embeddings.weight": some(96, WIDTH),
        "embeddings.token_type_embeddings.weight": some(2, WIDTH),
        "emb_ln.weight": some(WIDTH, around=1.0),
        "emb_ln.bias": some(WIDTH),
    }
    for layer in range(LAYERS):
        at = f"encoder.layers.{layer}."
        tensors |= {
            at + "attn.Wqkv.weight": some(3 * WIDTH, WIDTH),
            at + "attn.out_proj.weight": some(WIDTH, WIDTH),
            at + "mlp.fc11.weight": some(INNER, WIDTH),
            at + "mlp.fc12.weight": some(INNER, WIDTH),
            at + "mlp.fc2.weight": some(WIDTH, INNER),
            at + "norm1.weight": some(WIDTH, around=1.0),
            at + "norm1.bias": some(WIDTH),
            at + "norm2.weight": some(WIDTH, around=1.0),
            at + "norm2.bias": some(WIDTH),
        }
    save_file(tensors, str(path / "model.safetensors"))
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def load(folder: Path) -> Encoder:
    asked = LoadSpec(
        name="nomic", path=str(folder), fingerprint="", engine=EngineConfig(context_length=64), kind="embed"
    )
    return load_embedder(asked, lambda done, total: None)[0]


def reference(folder: Path, tokens: list[int]) -> Any:
    tensors = {name: value.astype(np.float64) for name, value in load_file(str(folder / "model.safetensors")).items()}

    def norm(name: str, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * tensors[name + ".weight"] + tensors[name + ".bias"]

    def turn(x: Any) -> Any:
        half = x.shape[-1] // 2
        angles = np.arange(len(tokens))[:, None] / 1000.0 ** (np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)], -1
        )

    table = "embeddings.{}_embeddings.weight"
    x = norm("emb_ln", tensors[table.format("word")][tokens] + tensors[table.format("token_type")][0])
    for layer in range(LAYERS):
        at = f"encoder.layers.{layer}."
        joined = x @ tensors[at + "attn.Wqkv.weight"].T
        q, k, v = (part.reshape(len(x), HEADS, -1).transpose(1, 0, 2) for part in np.split(joined, 3, -1))
        weights = turn(q) @ turn(k).transpose(0, 2, 1) / np.sqrt(WIDTH // HEADS)
        weights = np.exp(weights - weights.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(x.shape)
        x = norm(at + "norm1", x + mixed @ tensors[at + "attn.out_proj.weight"].T)
        gate = x @ tensors[at + "mlp.fc12.weight"].T
        inner = x @ tensors[at + "mlp.fc11.weight"].T * gate / (1 + np.exp(-gate))
        x = norm(at + "norm2", x + inner @ tensors[at + "mlp.fc2.weight"].T)
    vector = x.mean(0)
    return vector / np.linalg.norm(vector)


def test_vectors_are_those_of_a_float64_forward(folder: Path) -> None:
    embedder = load(folder)
    together = normalised(embedder.compute(embedder.rows(TEXTS, truncate=True)))
    for text, vector in zip(TEXTS, together, strict=True):
        alone = normalised(embedder.compute(embedder.rows([text], truncate=True)))[0]
        rows = embedder.rows([text], truncate=True)
        assert float(reference(folder, rows[0].tokens) @ vector) > 1 - 1e-6
        assert np.abs(alone - vector).max() < 1e-5
    assert embedder.rows(["hello world"], truncate=True)[0].tokens == spell("hello world")


def test_a_text_is_cut_where_its_positions_end(folder: Path) -> None:
    assert len(load(folder).rows(["x" * 500], truncate=True)[0].tokens) == 48


@pytest.mark.parametrize(
    "change", [{"activation_function": "gelu"}, {"num_experts": 8}, {"rotary_emb_interleaved": True}, {"prenorm": True}]
)
def test_what_is_another_network_is_refused(folder: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(LoadError, match="not supported"):
        load(tmp_path)
