"""Mamba in GGUF files: the logits of the model it was made from, and llama.cpp's."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from omlx_registry.gguf.importer import import_gguf
from safetensors.numpy import load_file

from tests.registry import llama_cpp_peer
from tests.registry.test_gguf_families import logits
from tests.registry.test_gguf_peer import TEXTS, compare
from tests.registry.tiny_gguf import _add_vocabulary
from tests.support import tiny

CONFIG = {
    "vocab_size": tiny.VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "state_size": 16,
    "num_hidden_layers": 3,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 32,
    "max_position_embeddings": 512,
}
NAMES = {
    "norm.weight": "attn_norm.weight",
    "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight",
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.x_proj.weight": "ssm_x.weight",
    "mixer.dt_proj.weight": "ssm_dt.weight",
    "mixer.dt_proj.bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.out_proj.weight": "ssm_out.weight",
}
TOP = {"backbone.embeddings.weight": "token_embd.weight", "backbone.norm_f.weight": "output_norm.weight"}


def make(folder: Path, kind: str = "F32") -> tuple[Path, Path]:
    mlx, path = folder / "mlx", folder / "mamba.gguf"
    tiny.make(mlx, "mamba", CONFIG, taught=False)
    writer = GGUFWriter(path, "mamba")
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(3)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(128)
    writer.add_ssm_state_size(16)
    writer.add_ssm_time_step_rank(32)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_vocabulary(writer, mlx, "gpt-2")
    for name, values in load_file(mlx / "model.safetensors").items():
        if name not in TOP:
            _, _, layer, rest = name.split(".", 3)
            ours = f"blk.{layer}.{NAMES[rest]}"
        else:
            ours = TOP[name]
        values = -np.exp(values) if name.endswith("A_log") else values
        values = values.squeeze(-1) if name.endswith("conv1d.weight") else values
        small = values.ndim < 2 or any(it in ours for it in ("ssm_a", "ssm_conv1d"))
        type_ = GGMLQuantizationType["F32" if small else kind]
        writer.add_tensor(ours, quantize(np.ascontiguousarray(values), type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return mlx, path


@pytest.mark.parametrize(("kind", "error"), [("F32", 1e-4), ("Q8_0", 0.2)])
def test_import_gives_the_logits_of_the_original(kind: str, error: float, tmp_path: Path) -> None:
    original, path = make(tmp_path, kind)
    import_gguf(path, tmp_path / "imported", "keep", lambda done, total: None)
    found, wanted = logits(tmp_path / "imported"), logits(original)
    assert mx.abs(found - wanted).mean().item() < error * mx.abs(wanted).mean().item()


@pytest.mark.slow
@pytest.mark.skipif(not llama_cpp_peer.available(), reason="xllamacpp is not there: set OMLX_TEST_PEER")
def test_it_agrees_with_llama_cpp(tmp_path: Path) -> None:
    _, path = make(tmp_path)
    agreement, difference = compare(path, tmp_path / "out", TEXTS, TEXTS[:4])
    assert agreement > 0.95
    assert difference < 0.02
