"""GGUF export: an MLX model folder becomes one GGUF file that llama.cpp and Ollama open; runs in a worker process.

For the architectures whose tensors differ from llama.cpp's in name and order only (`_ARCHITECTURES`). Quantized weights
keep their codes where ggml has a type for them: see `blocks`. One tensor is in memory at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from numpy.typing import NDArray

from omlx_registry.gguf.blocks import affine_rows, block_type, is_exact, mxfp4_rows
from omlx_registry.gguf.container import GgufError
from omlx_registry.gguf.layout import Layout
from omlx_registry.gguf.layouts import LAYOUTS
from omlx_registry.gguf.vocabulary import write_vocabulary
from omlx_registry.model_json import decode_object
from omlx_registry.weights import Quantization, quantization_of
from omlx_registry.weights_reader import MappedTensor, map_weights

_ARCHITECTURES: Final = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""GGUF architectures by the model_type of config.json."""
_QUANTIZED_PARTS: Final = ("scales", "biases")
_STEP: Final = 4096
"""Rows converted at a time."""

Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Output:
    """One tensor of the file: its GGUF name, ggml type, and the MLX tensors that it is made of."""

    name: str
    kind: str
    weight: MappedTensor
    scales: MappedTensor | None = None
    biases: MappedTensor | None = None
    quantization: Quantization | None = None
    heads: int = 0
    """> 0: rows are interleaved per head, as llama.cpp rotates them."""

    @property
    def nbytes(self) -> int:
        columns = self.weight.shape[-1]
        if self.quantization is not None:
            columns = columns * 32 // self.quantization.bits
        block, size = _block(self.kind)
        return math.prod(self.weight.shape[:-1]) * columns // block * size


def export_gguf(folder: Path, path: Path, report: Report) -> dict[str, Any]:
    """Write the model in `folder` as the new file `path`. `report` gets the tensors written so far and in all.

    Returns {"architecture", "notes"}. Raises GgufError.
    """
    config = decode_object((folder / "config.json").read_bytes(), "config.json")
    architecture = _ARCHITECTURES.get(str(config.get("model_type")))
    if architecture is None:
        raise GgufError(
            f"models of type {config.get('model_type')!r} cannot be written as GGUF; those of type "
            f"{', '.join(_ARCHITECTURES)} can"
        )
    outputs, notes = _plan(folder, config, LAYOUTS[architecture])
    writer = GGUFWriter(path, architecture)
    _write_keys(writer, config)
    factors = _rope_factors(writer, config)
    embedding = next((it for it in outputs if it.name == "token_embd.weight"), None)
    if embedding is None:
        raise GgufError("the model has no embedding")
    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.is_file():
        raise GgufError("the model has no tokenizer.json, from which a GGUF vocabulary is made")
    tokenizer = json.loads(tokenizer_path.read_bytes())
    write_vocabulary(writer, tokenizer, config, embedding.weight.shape[0])
    if template := _chat_template(folder):
        writer.add_chat_template(template)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    for output in outputs:
        columns = output.nbytes // math.prod(output.weight.shape[:-1])
        shape = (*output.weight.shape[:-1], columns)
        kind = GGMLQuantizationType[output.kind]
        writer.add_tensor_info(output.name, shape, np.dtype(np.uint8), output.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    try:
        if factors is not None:
            writer.write_tensor_data(factors)
        for done, output in enumerate(outputs):
            report(done, len(outputs))
            writer.write_tensor_data(_rows(output))
        report(len(outputs), len(outputs))
    finally:
        writer.close()
    return {"architecture": architecture, "notes": notes}


def _block(kind: str) -> tuple[int, int]:
    from gguf import GGML_QUANT_SIZES

    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return int(block), int(size)


def _plan(folder: Path, config: Mapping[str, Any], layout: Layout) -> tuple[list[_Output], list[str]]:
    tensors = map_weights(folder)
    names = {path: stem for stem, path in layout.top.items()}
    parts = {path: part for part, path in layout.parts.items()}
    rounded = 0
    outputs = []
    for name, tensor in tensors.items():
        path, _, leaf = name.rpartition(".")
        if leaf in _QUANTIZED_PARTS and f"{path}.weight" in tensors:
            continue
        if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.get("tie_word_embeddings")):
            continue
        stem, part = _stem(path, names, parts)
        if stem is None or leaf not in ("weight", "bias"):
            raise GgufError(f"the model has a tensor {name[:200]!r} that has no GGUF name")
        heads = 0
        if layout.interleaved and part in ("attn_q", "attn_k"):
            heads = int(config["num_attention_heads"])
            heads = heads if part == "attn_q" else int(config.get("num_key_value_heads") or heads)
        output = _output(f"{stem}.{leaf}", path, tensor, tensors, config, heads)
        if output.scales is not None and output.quantization is not None and output.kind != "MXFP4":
            biases = output.biases.floats() if output.biases else None
            rounded += not is_exact(output.kind, output.quantization, output.scales.floats(), biases)
        outputs.append(output)
    notes = [f"{rounded} tensors are rounded to Q8_0, which holds them almost exactly"] if rounded else []
    return outputs, notes


def _stem(path: str, names: Mapping[str, str], parts: Mapping[str, str]) -> tuple[str | None, str]:
    """The name of a module in GGUF, and which part of a layer it is."""
    if path in names:
        return names[path], ""
    layer, _, rest = path.removeprefix("model.layers.").partition(".")
    if not path.startswith("model.layers.") or not layer.isdecimal() or rest not in parts:
        return None, ""
    return f"blk.{layer}.{parts[rest]}", parts[rest]


def _output(
    name: str,
    path: str,
    weight: MappedTensor,
    tensors: Mapping[str, MappedTensor],
    config: Mapping[str, Any],
    heads: int,
) -> _Output:
    scales, biases = tensors.get(f"{path}.scales"), tensors.get(f"{path}.biases")
    if name.endswith(".weight") and scales is not None:
        quantization = quantization_of(path, config)
        if quantization is None:
            raise GgufError(f"config.json does not say how {path} is quantized")
        floats = biases.floats() if biases is not None else None
        numbers = np.zeros((1, 1), np.float32) if quantization.mode != "affine" else scales.floats()
        kind = block_type(quantization, numbers, floats)
        return _Output(name, kind, weight, scales, biases, quantization, heads)
    kind = "F32" if len(weight.shape) == 1 else weight.dtype
    if kind not in ("F32", "F16", "BF16"):
        raise GgufError(f"tensor {name!r} is of type {weight.dtype}, which cannot be written as GGUF")
    return _Output(name, kind, weight, heads=heads)


def _rows(output: _Output) -> NDArray[np.uint8]:
    """The whole tensor as ggml's bytes."""
    weight = output.weight
    if len(weight.shape) == 1:
        values = weight.floats()
        if output.heads:
            values = values[_interleaved(len(values), output.heads)]
        return np.ascontiguousarray(values).view(np.uint8)
    rows, done = np.empty((weight.shape[0], output.nbytes // weight.shape[0]), np.uint8), 0
    raw = weight.raw()
    scales = output.scales
    affine = (scales.floats(), output.biases.floats()) if scales and output.biases else None
    for start in range(0, len(raw), _STEP):
        piece = slice(start, start + _STEP)
        if scales is None:
            part = np.ascontiguousarray(raw[piece]).view(np.uint8)
        elif output.kind == "MXFP4":
            part = mxfp4_rows(raw[piece], np.asarray(scales.raw()[piece], np.uint8))
        else:
            assert affine is not None and output.quantization is not None
            part = affine_rows(output.kind, output.quantization, raw[piece], affine[0][piece], affine[1][piece])
        rows[done : done + len(part)] = part
        done += len(part)
    return rows[_interleaved(len(rows), output.heads)] if output.heads else rows


def _interleaved(count: int, heads: int) -> NDArray[np.int64]:
    """The MLX row of each row in the file."""
    order: NDArray[np.int64] = np.arange(count).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return order


def _write_keys(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        writer.add_context_length(int(config["max_position_embeddings"]))
        writer.add_embedding_length(hidden)
        writer.add_block_count(int(config["num_hidden_layers"]))
        writer.add_feed_forward_length(int(config["intermediate_size"]))
        writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    except (KeyError, TypeError, ValueError) as error:
        raise GgufError(f"config.json lacks a value that a GGUF file needs: {error}") from error
    head_dim = int(config.get("head_dim") or hidden // heads)
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(config.get("rope_theta") or 10_000.0))
    writer.add_vocab_size(int(config["vocab_size"]))


def _rope_factors(writer: GGUFWriter, config: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Write the rope scaling; returns Llama 3's tensor of factors. Raises GgufError for unsupported kinds."""
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return None
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in (None, "default"):
        return None
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(scaling["factor"]))
        return None
    if kind != "llama3":
        raise GgufError(f"rope scaling of kind {str(kind)[:50]!r} cannot be written as GGUF")
    head_dim = int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    original, factor = float(scaling["original_max_position_embeddings"]), float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelengths = 2 * np.pi * float(config["rope_theta"]) ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _chat_template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    path = folder / "tokenizer_config.json"
    template = decode_object(path.read_bytes(), path.name).get("chat_template") if path.is_file() else None
    return template if isinstance(template, str) else ""
