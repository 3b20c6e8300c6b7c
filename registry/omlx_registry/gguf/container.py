"""A GGUF file: one model in one file, as llama.cpp writes it; this module owns reading its container.

The container is a header (metadata key by key, then one entry per tensor) and a data section. What is in it is not
trusted: every count and length is compared with the bytes that are really there before anything is allocated, so a
truncated or hostile file costs no more memory than its own header and ends in a `GgufError` that says what is wrong.
Tensor data is only mapped, never read here. What the metadata *means* (architecture, tokenizer, block formats) is the
business of `models`, `tokenizer` and `tensors`.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.errors import RegistryError

MAGIC: Final = b"GGUF"
MAX_HEADER_BYTES: Final = 256 << 20
"""No real header comes near it (a 260,000-token vocabulary takes 12 MB); a larger one is taken for damage."""
MAX_TENSORS: Final = 65_536
MAX_METADATA: Final = 16_384
MAX_NESTING: Final = 4

# GGUF's own numbering of metadata value types; little-endian.
_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING: Final = 8
_ARRAY: Final = 9
_NUMPY: Final[dict[int, str]] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

# ggml's tensor types: number -> (name, weights per block, bytes per block).
TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    4: ("MXFP4_OLLAMA", 32, 17),  # ggml's own 4 is long gone; Ollama's gpt-oss files of 2025 have this
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}

# Types that no file of a supported family has, or that ggml itself dropped; known only to name them in an error.
OTHER_TYPES: Final[dict[int, str]] = {
    5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 31: "Q4_0_4_4",
    32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


class GgufError(RegistryError):
    """The file is no GGUF file that can be imported; the message says why."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file: `shape` is row-major (rows first, as NumPy and MLX have it), `offset` is in the file."""

    name: str
    type: str
    type_code: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]


class GgufFile:
    """An open GGUF file: `metadata` (plain Python values; numeric arrays are NumPy), `tensors` by name, mapped data.

    Use as a context manager. Raises GgufError for anything that is not a whole, little-endian GGUF version 2 or 3 file.
    """

    def __init__(self, path: Path):
        self.path = path
        # A file in a blob store is called by its digest, which tells nobody anything.
        self.name = "the GGUF file" if path.name.startswith("sha256") else path.name
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise GgufError(f"cannot open {path}: {error.strerror}") from error
        try:
            self.size = self._file.seek(0, 2)
            if self.size < 24:
                raise GgufError(f"{self.name} is not a GGUF file: it has only {self.size} bytes")
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except BaseException:
            self._file.close()
            raise
        try:
            self.metadata, self.tensors = _parse(self._map, self.size, self.name)
        except BaseException:
            self.close()
            raise

    def rows(self, tensor: GgufTensor, index: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.uint8]:
        """The raw bytes of some rows, shape [rows, bytes per row]; a slice is a view of the file, an index a copy."""
        raw = np.frombuffer(self._map, np.uint8, tensor.nbytes, tensor.offset)
        selected: NDArray[np.uint8] = raw.reshape(tensor.rows, -1)[index]
        return selected

    def close(self) -> None:
        # A row view that is still alive somewhere keeps the map until it goes.
        with contextlib.suppress(BufferError):
            self._map.close()
        self._file.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Cursor:
    """A position in the header; every read checks that its bytes exist."""

    def __init__(self, data: mmap.mmap | bytes, end: int, name: str):
        self.data, self.end, self.name = data, end, name
        self.at = 0

    def need(self, count: int, what: str) -> None:
        if count > self.end - self.at:
            raise GgufError(f"{self.name} is truncated or damaged: it ends within {what}")

    def scalar(self, form: struct.Struct, what: str) -> Any:
        self.need(form.size, what)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def count(self, what: str) -> int:
        return int(self.scalar(_SCALARS[10], what))

    def text(self, what: str) -> str:
        length = self.count(what)
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        # A few vocabularies hold tokens that are no UTF-8.
        return raw.decode("utf-8", "replace")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self.array(what, depth + 1)
        raise GgufError(f"{self.name} is damaged: {what} has the unknown type {kind}")

    def array(self, what: str, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise GgufError(f"{self.name} is damaged: {what} nests arrays more than {MAX_NESTING} deep")
        kind = int(self.scalar(_SCALARS[4], what))
        length = self.count(what)
        if kind in _NUMPY:
            dtype = np.dtype(_NUMPY[kind])
            self.need(length * dtype.itemsize, what)
            values = np.frombuffer(self.data, dtype, length, self.at).copy()
            self.at += length * dtype.itemsize
            return values
        # A string takes 8 bytes at least, an inner array 12: checked before any list grows.
        self.need(length * (8 if kind == _STRING else 12), what)
        return [self.value(kind, what, depth) for _ in range(length)]


def _parse(data: mmap.mmap | bytes, size: int, name: str) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    if data[:4] != MAGIC:
        raise GgufError(f"{name} is not a GGUF file: it does not begin with the letters GGUF")
    cursor = _Cursor(data, min(size, MAX_HEADER_BYTES), name)
    cursor.at = 4
    version = int(cursor.scalar(_SCALARS[4], "the version"))
    if version not in (2, 3):
        if version & 0xFFFF == 0:
            raise GgufError(f"{name} is a big-endian GGUF file; only little-endian ones can be imported")
        raise GgufError(f"{name} has GGUF version {version}; versions 2 and 3 can be imported")
    tensor_count = cursor.count("the tensor count")
    metadata_count = cursor.count("the metadata count")
    if tensor_count > MAX_TENSORS or metadata_count > MAX_METADATA:
        raise GgufError(f"{name} is damaged: it claims {tensor_count} tensors and {metadata_count} metadata entries")

    metadata: dict[str, Any] = {}
    for _ in range(metadata_count):
        key = cursor.text("a metadata key")
        if key in metadata:
            raise GgufError(f"{name} is damaged: metadata {key!r} appears twice")
        metadata[key] = cursor.value(int(cursor.scalar(_SCALARS[4], key)), f"metadata {key!r}")

    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise GgufError(f"{name} is damaged: its alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for tensor_name, code, shape, offset in entries:
        if tensor_name in tensors:
            raise GgufError(f"{name} is damaged: tensor {tensor_name!r} appears twice")
        kind, block, block_bytes = TENSOR_TYPES[code]
        if shape[-1] % block:
            raise GgufError(f"{name} is damaged: rows of {tensor_name!r} do not hold whole {kind} blocks")
        nbytes = math.prod(shape) // block * block_bytes
        if start + offset + nbytes > size:
            raise GgufError(f"{name} is truncated: tensor {tensor_name!r} ends beyond the end of the file")
        tensors[tensor_name] = GgufTensor(tensor_name, kind, code, shape, start + offset, nbytes)
    return metadata, tensors


def _tensor_entry(cursor: _Cursor) -> tuple[str, int, tuple[int, ...], int]:
    name = cursor.text("a tensor's name")
    dimensions = int(cursor.scalar(_SCALARS[4], f"tensor {name!r}"))
    if not 1 <= dimensions <= 4:
        raise GgufError(f"{cursor.name} is damaged: tensor {name!r} has {dimensions} dimensions")
    shape = tuple(cursor.count(f"tensor {name!r}") for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise GgufError(f"{cursor.name} is damaged: tensor {name!r} is empty")
    code = int(cursor.scalar(_SCALARS[4], f"tensor {name!r}"))
    if code not in TENSOR_TYPES:
        kind = OTHER_TYPES.get(code, f"number {code}")
        raise GgufError(f"tensor {name!r} of {cursor.name} has the unsupported type {kind}")
    return name, code, shape, cursor.count(f"tensor {name!r}")
