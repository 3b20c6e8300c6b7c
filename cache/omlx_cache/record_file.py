"""The container: one record as bytes in a file.

A file is in safetensors format, so that any tool can look into it; its metadata says whose it is and carries a checksum
over everything else in the file, header included. What does not check out is an error that says why, never a guess.
Pure functions over host bytes; the cold tier owns the files.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import NamedTuple

from omlx_cache.records import Kind, Piece

FORMAT = "omlx-kv-1"
_NO_CHECKSUM = "checksum:--------"
_ITEM_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4,
              "U16": 2, "U8": 1, "BOOL": 1}  # fmt: skip
MAX_HEADER = 16 << 20


class DamagedError(Exception):
    """The bytes are not an intact record; the message says what is wrong."""


class HostArray(NamedTuple):
    """A tensor as host bytes; `dtype` in safetensors' spelling."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Identity(NamedTuple):
    """Whose record a file is."""

    piece: Piece
    kind: Kind
    namespace: bytes
    skip: int = 0


class HostRecord(NamedTuple):
    """A record as host bytes."""

    identity: Identity
    arrays: tuple[HostArray, ...]
    meta: str


def encode(record: HostRecord) -> list[memoryview]:
    """The file's bytes, as buffers to write one after the other (tensors are not copied)."""
    header: dict[str, object] = {"__metadata__": _metadata(record)}
    offset = 0
    for index, array in enumerate(record.arrays):
        end = offset + array.data.nbytes
        header[str(index)] = {"dtype": array.dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    checksum = zlib.crc32(text)
    for array in record.arrays:
        checksum = zlib.crc32(array.data, checksum)
    text = text.replace(_NO_CHECKSUM.encode(), b"checksum:%08x" % checksum, 1)
    return [memoryview(len(text).to_bytes(8, "little") + text), *(array.data for array in record.arrays)]


def decode(data: bytes | bytearray) -> HostRecord:
    """The record in a whole file's bytes. Raises DamagedError."""
    view = memoryview(data)
    text = _header_bytes(view)
    header, metadata = _parse(text)
    checksum = metadata.get("checksum", "")
    body = view[8 + len(text) :]
    plain = bytes(text).replace(str(checksum).encode(), _NO_CHECKSUM.encode(), 1)
    if checksum != f"checksum:{zlib.crc32(body, zlib.crc32(plain)):08x}":
        raise DamagedError("the checksum does not match")
    try:
        return HostRecord(_identity(metadata), _arrays(header, body), metadata["meta"])
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"the header is incomplete: {error!r}") from error


def decode_identity(head: bytes, size: int) -> Identity:
    """Whose record a file is, from its first bytes (header at least) and its size; tensors are not verified."""
    text = _header_bytes(memoryview(head))
    header, metadata = _parse(text)
    try:
        end = max((item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"), default=0)
        if size != 8 + len(text) + end:
            raise DamagedError("the file is not as long as it should be")
        return _identity(metadata)
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"the header is incomplete: {error!r}") from error


def _metadata(record: HostRecord) -> dict[str, str]:
    piece, kind, namespace, skip = record.identity
    return {
        "format": FORMAT,
        "checksum": _NO_CHECKSUM,
        "key": piece.key.hex(),
        "kind": kind.name,
        "namespace": namespace.hex(),
        "skip": str(skip),
        "parent": piece.parent.hex(),
        "start": str(piece.start),
        "tokens": base64.b64encode(piece.packed).decode(),
        "media": piece.media.hex(),
        "meta": record.meta,
    }


def _identity(metadata: dict[str, str]) -> Identity:
    piece = Piece(
        key=bytes.fromhex(metadata["key"]),
        parent=bytes.fromhex(metadata["parent"]),
        start=int(metadata["start"]),
        packed=base64.b64decode(metadata["tokens"], validate=True),
        media=bytes.fromhex(metadata["media"]),
    )
    return Identity(piece, Kind[metadata["kind"]], bytes.fromhex(metadata["namespace"]), int(metadata["skip"]))


def _header_bytes(view: memoryview) -> memoryview:
    if len(view) < 8:
        raise DamagedError("the file is too short")
    length = int.from_bytes(view[:8], "little")
    if length > MAX_HEADER or 8 + length > len(view):
        raise DamagedError("the file is cut off in its header")
    return view[8 : 8 + length]


def _parse(text: memoryview) -> tuple[dict[str, dict[str, list[int]]], dict[str, str]]:
    try:
        header = json.loads(bytes(text))
        metadata = header["__metadata__"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError("the header is not readable") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise DamagedError("it was written by another version")
    return header, metadata


def _arrays(header: dict[str, dict[str, list[int]]], body: memoryview) -> tuple[HostArray, ...]:
    arrays = []
    for index in range(len(header) - 1):
        item = header[str(index)]
        start, end = item["data_offsets"]
        shape, dtype = tuple(item["shape"]), str(item["dtype"])
        if end > len(body) or math.prod(shape) * _ITEM_SIZE[dtype] != end - start:
            raise DamagedError("a tensor is cut off")
        arrays.append(HostArray(dtype, shape, body[start:end]))
    return tuple(arrays)
