"""Weights as their files describe them: safetensors headers, read without loading a tensor.

A *header* is the JSON at the start of a safetensors file (eight bytes little-endian length, then that many bytes):
tensor name → dtype, shape, offsets. From it follow the parameter count and the quantization level. Quantized weights
are counted as what they stand for: MLX packs 32/bits of them into one U32 beside `scales` and `biases`, which are no
parameters of the model.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.errors import InvalidModel

_MAX_HEADER: Final = 100_000_000
"""The limit of the safetensors format itself."""
_BUFFERS: Final = (".inv_freq", ".num_batches_tracked", ".position_ids", ".g_idx", ".qzeros", ".weight_shape")
_BITS: Final = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Of one element, by the format's names."""
_DTYPE_LEVELS: Final = {"F8_E4M3": "FP8", "F8_E5M2": "FP8"}


class TensorHeader(msgspec.Struct, frozen=True):
    """One tensor of a safetensors file. `dtype` as the format spells it: F32, F16, BF16, U32, U8 ..."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class _Described(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Quantization(msgspec.Struct, frozen=True):
    """How one module's weights are packed, in MLX's words. `mode`: affine, mxfp4, mxfp8, nvfp4."""

    group_size: int
    bits: int
    mode: str = "affine"

    def as_config(self) -> dict[str, Any]:
        """As config.json has it."""
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    @property
    def text(self) -> str:
        return f"int{self.bits}" if self.mode == "affine" else self.mode


class Census(msgspec.Struct, frozen=True):
    """What counting the tensors of a model gave."""

    parameter_count: int
    level: str
    """`int4`, `mxfp4`, `BF16`, `int4+int6` where two kinds share the work."""


def read_header(path: Path, label: str = "") -> list[TensorHeader]:
    """The tensors of a file, sorted by name. Raises InvalidModel where it is no safetensors file.

    `label` is what to call the file in an error, where its path (a blob's) says nothing to the user.
    """
    label = label or path.name
    try:
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= _MAX_HEADER:
                raise InvalidModel(f"{label} is no safetensors file")
            raw = file.read(length)
            if len(raw) != length:
                raise InvalidModel(f"{label} is truncated")
            data_bytes = file.seek(0, SEEK_END) - len(start) - length
        entries = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        described = {name: msgspec.json.decode(entry, type=_Described) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModel(f"{label} is no safetensors file: {error}") from error
    for name, entry in described.items():
        _check_extent(label, name, entry, data_bytes)
    return [TensorHeader(name, entry.dtype, entry.shape) for name, entry in sorted(described.items())]


def _check_extent(label: str, name: str, entry: _Described, data_bytes: int) -> None:
    """Raises InvalidModel where a tensor's bytes are not there, or not as many as its shape needs."""
    begin, end = entry.data_offsets
    tensor = f"tensor {name[:200]!r}"
    if min(begin, end - begin, *entry.shape, 0) < 0:
        raise InvalidModel(f"{label} is damaged: {tensor} has no valid place or shape")
    if end > data_bytes:
        raise InvalidModel(f"{label} is truncated: {tensor} ends {end - data_bytes:,} bytes behind its end")
    bits = _BITS.get(entry.dtype)
    if bits is not None and (end - begin) * 8 != prod(entry.shape) * bits:
        raise InvalidModel(f"{label} is damaged: {tensor} has another number of bytes than its shape needs")


def take_census(tensors: Iterable[TensorHeader], config: Mapping[str, Any]) -> Census:
    """Count parameters and name the quantization that most of them have. Pure."""
    tensors = list(tensors)
    by_name = {tensor.name: tensor for tensor in tensors}
    weights: Counter[str] = Counter()
    for tensor in tensors:
        counted = _count(tensor, by_name, config)
        if counted is not None:
            kind, number = counted
            weights[kind] += number
    return Census(sum(weights.values()), _level(weights))


def quantization_of(module: str, config: Mapping[str, Any]) -> Quantization | None:
    """What config.json says about the packing of one module ("model.layers.0.mlp.up_proj"); None: not packed."""
    section = config.get("quantization") or config.get("quantization_config")
    if not isinstance(section, Mapping):
        return None
    own = section.get(module)
    if own is False:
        return None
    merged = {**section, **own} if isinstance(own, Mapping) else section
    bits, group = merged.get("bits"), merged.get("group_size")
    if not isinstance(bits, int) or not isinstance(group, int) or not 1 <= bits <= 32:
        return None
    mode = merged.get("mode")
    return Quantization(group, bits, mode if isinstance(mode, str) else "affine")


def _count(
    tensor: TensorHeader, by_name: Mapping[str, TensorHeader], config: Mapping[str, Any]
) -> tuple[str, int] | None:
    """Kind and number of the parameters a tensor stands for; None for what only describes other tensors."""
    name, number = tensor.name, prod(tensor.shape)
    stem, _, last = name.rpartition(".")
    if name.endswith(_BUFFERS) or last in {"k_scale", "v_scale", "input_scale", "weight_scale", "weight_scale_inv"}:
        return None
    if last in {"scales", "biases"} and any(f"{stem}.{it}" in by_name for it in ("weight", "qweight")):
        return None
    if last == "weight" and tensor.dtype == "U32" and f"{stem}.scales" in by_name:
        packing = quantization_of(stem, config) or _guess(tensor, by_name[f"{stem}.scales"])
        return packing.text, number * 32 // packing.bits
    if last in {"qweight", "weight_packed"} and tensor.dtype == "I32":
        quantization = quantization_of(stem, config)
        bits = quantization.bits if quantization else 4
        return f"int{bits}", number * 32 // bits
    if last.endswith("_blocks") and tensor.dtype == "U8":
        return "mxfp4", number * 2
    if last.endswith("_scales") and tensor.dtype == "U8" and name.removesuffix("_scales") + "_blocks" in by_name:
        return None
    return _DTYPE_LEVELS.get(tensor.dtype, tensor.dtype), number


def _guess(weight: TensorHeader, scales: TensorHeader) -> Quantization:
    """The packing as the shapes tell it, for a config that is silent: U8 scales mean a floating-point format."""
    if not weight.shape or not scales.shape or not scales.shape[-1]:
        return Quantization(64, 4)
    words = weight.shape[-1] / scales.shape[-1]
    if scales.dtype == "U8":
        if words == 2:
            return Quantization(16, 4, "nvfp4")
        return Quantization(32, 8, "mxfp8") if words == 8 else Quantization(32, 4, "mxfp4")
    for group in (64, 32, 128):
        bits = words * 32 / group
        if bits in {2, 3, 4, 5, 6, 8}:
            return Quantization(group, int(bits))
    return Quantization(64, 4)


def _level(weights: Counter[str]) -> str:
    """The kind most parameters have; a second quantized kind is named too when a twentieth of them have it."""
    total = sum(weights.values())
    packed = [kind for kind, number in weights.most_common() if number * 20 >= total and _is_packed(kind)]
    if not weights:
        return ""
    most = weights.most_common(1)[0][0]
    return "+".join(packed[:2]) if _is_packed(most) else most


def _is_packed(kind: str) -> bool:
    return kind.startswith(("int", "mx", "nv"))
