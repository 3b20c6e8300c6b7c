"""A weights file: the safetensors files of a model folder, written in place and piece by piece; owner: converters.

Conversions know names, types and shapes of all their results before the first weight is read. So the headers are
written first and the rows of each tensor go to their final position as they are made: memory holds one piece at a
time, whatever the size of the model, and the split into shards (5 GB, as mlx-lm writes them) is decided up front.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.disk_space import lack_of_space
from omlx_registry.errors import CreateError

MAX_SHARD_BYTES: Final = 5 << 30
ITEM_BYTES: Final[dict[str, int]] = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1}
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor to be written: safetensors name, type ("F32", "F16", "BF16", "U32", "U8") and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the model and what it holds, in order."""

    file: str
    slots: tuple[TensorSlot, ...]


def split_shards(slots: list[TensorSlot], max_bytes: int = MAX_SHARD_BYTES) -> list[Shard]:
    """Fill shards in order, none above `max_bytes` unless one tensor alone is; names as mlx-lm and Hugging Face use."""
    groups: list[list[TensorSlot]] = [[]]
    filled = 0
    for slot in slots:
        if groups[-1] and filled + slot.nbytes > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(slot)
        filled += slot.nbytes
    if len(groups) == 1:
        return [Shard("model.safetensors", tuple(groups[0]))]
    count = len(groups)
    return [Shard(f"model-{i:05d}-of-{count:05d}.safetensors", tuple(group)) for i, group in enumerate(groups, 1)]


def require_space(folder: Path, needed: int) -> None:
    """Raises CreateError unless `needed` bytes, and the reserve, are free where the existing `folder` is."""
    if lack := lack_of_space(folder, needed, "the converted model"):
        raise CreateError(lack, 500)


class WeightsWriter:
    """Writes the shards of one model into a folder; `write` puts bytes of a tensor at a given byte offset in it.

    Use as a context manager; leaving it without an error writes `model.safetensors.index.json` when there are several
    shards. Bytes never written are zeros, so the caller must cover every slot.
    """

    def __init__(self, folder: Path, slots: list[TensorSlot], *, max_shard_bytes: int = MAX_SHARD_BYTES):
        self._folder = folder
        self._shards = split_shards(slots, max_shard_bytes)
        self._places: dict[str, tuple[int, int, int]] = {}  # name -> file descriptor, offset in file, bytes
        self._descriptors: list[int] = []
        try:
            for shard in self._shards:
                self._create(shard)
        except BaseException:
            self._close()
            raise

    @property
    def files(self) -> list[str]:
        return [shard.file for shard in self._shards]

    def _create(self, shard: Shard) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        position = 0
        for slot in shard.slots:
            header[slot.name] = {
                "dtype": slot.dtype,
                "shape": list(slot.shape),
                "data_offsets": [position, position + slot.nbytes],
            }
            position += slot.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        descriptor = os.open(self._folder / shard.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._descriptors.append(descriptor)
        os.pwrite(descriptor, len(text).to_bytes(8, "little") + text, 0)
        start = 8 + len(text)
        os.ftruncate(descriptor, start + position)
        position = start
        for slot in shard.slots:
            self._places[slot.name] = (descriptor, position, slot.nbytes)
            position += slot.nbytes

    def write(self, name: str, offset: int, values: NDArray[Any]) -> None:
        """Put an array's bytes at `offset` bytes into tensor `name`."""
        descriptor, start, size = self._places[name]
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        if offset + len(data) > size:
            raise ValueError(f"{len(data)} bytes at {offset} do not fit into tensor {name!r} of {size} bytes")
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done : done + (64 << 20)], start + offset + done)

    def __enter__(self) -> WeightsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        if error is None and len(self._shards) > 1:
            index = {
                "metadata": {"total_size": sum(slot.nbytes for shard in self._shards for slot in shard.slots)},
                "weight_map": {slot.name: shard.file for shard in self._shards for slot in shard.slots},
            }
            (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))

    def _close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
