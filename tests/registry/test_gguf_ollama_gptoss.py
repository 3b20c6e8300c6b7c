"""gpt-oss as Ollama's own converter wrote it in 2025: other names, joined tensors, and a type number of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from omlx_registry.gguf.importer import import_gguf

from tests.registry.test_gguf_families import logits
from tests.registry.tiny_gguf import make_pair

_RENAMED = {"attn_output": "attn_out", "post_attention_norm": "ffn_norm"}


def as_ollama(source: Path, target: Path, *, joined: bool, stream: bool) -> None:
    """The file with Ollama's names. `joined`: q, k and v in one tensor, gate and up in one, row by row.

    `stream`: MXFP4 as a plain stream of codes, under the number 4.
    """
    reader = GGUFReader(source)
    writer = GGUFWriter(target, "gptoss")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "gpt-oss.rope.scaling.type"):
            continue
        name = field.name.replace("gpt-oss.", "gptoss.").replace("expert_feed_forward_length", "feed_forward_length")
        if field.name == "gpt-oss.feed_forward_length":
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    streams: list[str] = []

    def add(name: str, data: np.ndarray, kind: GGMLQuantizationType) -> None:
        if kind == GGMLQuantizationType.MXFP4 and stream:
            blocks = data.reshape(*data.shape[:-1], -1, 17)
            codes = np.concatenate([blocks[..., 1:] & 0x0F, blocks[..., 1:] >> 4], axis=-1)
            plain = codes[..., 0::2] | (codes[..., 1::2] << 4)
            data = np.concatenate([blocks[..., :1], plain], axis=-1).reshape(data.shape)
            streams.append(name)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)

    for name, tensor in tensors.items():
        block, _, leaf = name.rpartition(".")
        before, _, part = block.rpartition(".")
        if joined and part in ("attn_k", "attn_v", "ffn_up_exps"):
            continue
        if joined and part == "attn_q":
            parts = [tensors[f"{before}.{it}.{leaf}"].data for it in ("attn_q", "attn_k", "attn_v")]
            add(f"{before}.attn_qkv.{leaf}", np.concatenate(parts), tensor.tensor_type)
        elif joined and part == "ffn_gate_exps":
            gate, up = tensor.data, tensors[f"{before}.ffn_up_exps.{leaf}"].data
            pairs = np.stack([gate, up], axis=2)
            shape = (gate.shape[0], -1) if leaf == "bias" else (gate.shape[0], -1, gate.shape[-1])
            add(f"{before}.ffn_gate_up_exps.{leaf}", pairs.reshape(shape), tensor.tensor_type)
        elif part == "attn_sinks":
            add(f"{before}.attn_sinks", tensor.data, tensor.tensor_type)
        else:
            add(f"{before}.{_RENAMED.get(part, part)}.{leaf}".lstrip("."), tensor.data, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _renumber(target, streams)


def _renumber(path: Path, names: list[str]) -> None:
    """Type 4 for these tensors: the gguf package does not write it."""
    data = bytearray(path.read_bytes())
    for name in names:
        at = data.index(name.encode()) + len(name)
        at += 4 + 8 * int.from_bytes(data[at : at + 4], "little")
        assert int.from_bytes(data[at : at + 4], "little") == 39
        data[at : at + 4] = (4).to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(("joined", "stream"), [(False, False), (True, False), (True, True)])
def test_it_is_the_model_that_llama_cpp_s_file_holds(joined: bool, stream: bool, tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "gpt-oss", lambda name: "MXFP4" if name.endswith("exps.weight") else "F32")
    as_ollama(path, tmp_path / "ollama.gguf", joined=joined, stream=stream)
    for name, folder in ((path.name, "expected"), ("ollama.gguf", "found")):
        import_gguf(tmp_path / name, tmp_path / folder, "keep", lambda done, total: None)
    expected, found = (mx.load(str(tmp_path / it / "model.safetensors")) for it in ("expected", "found"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert mx.array_equal(found[name], value).item(), name
    assert mx.allclose(logits(tmp_path / "found"), logits(tmp_path / "expected"), rtol=1e-4, atol=1e-4).item()


def test_its_experts_may_be_dequantized(tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, "gpt-oss", lambda name: "MXFP4" if name.endswith("exps.weight") else "F32")
    as_ollama(path, tmp_path / "ollama.gguf", joined=True, stream=True)
    import_gguf(path, tmp_path / "expected", "f32", lambda done, total: None)
    import_gguf(tmp_path / "ollama.gguf", tmp_path / "found", "f32", lambda done, total: None)
    expected, found = (mx.load(str(tmp_path / it / "model.safetensors")) for it in ("expected", "found"))
    assert all(mx.array_equal(found[name], value).item() for name, value in expected.items())
