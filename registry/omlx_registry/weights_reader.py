"""Reading weights: the tensors of a model folder's safetensors files, mapped, one at a time in memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from omlx_registry.errors import InvalidModel
from omlx_registry.weights import read_header

_NUMPY: Final = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4", "U8": "u1"}


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor in its file; `dtype` as safetensors spells it."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int

    def raw(self) -> NDArray[Any]:
        """The stored numbers; bfloat16 comes as its bits (uint16)."""
        return np.memmap(self.path, _NUMPY[self.dtype], "r", self.begin, self.shape)

    def floats(self) -> NDArray[np.float32]:
        raw = self.raw()
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32)


def map_weights(folder: Path) -> Mapping[str, MappedTensor]:
    """By name, the tensors of `model*.safetensors`. Raises InvalidModel."""
    tensors: dict[str, MappedTensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= dict(_tensors(path))
    if not tensors:
        raise InvalidModel("no safetensors files found")
    return tensors


def _tensors(path: Path) -> Iterator[tuple[str, MappedTensor]]:
    headers = read_header(path)
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        places = msgspec.json.decode(file.read(length), type=dict[str, Any])
    for tensor in headers:
        if tensor.dtype not in _NUMPY:
            raise InvalidModel(f"tensor {tensor.name[:200]!r} is of type {tensor.dtype}, which cannot be converted")
        yield (
            tensor.name,
            MappedTensor(path, tensor.dtype, tensor.shape, 8 + length + places[tensor.name]["data_offsets"][0]),
        )
