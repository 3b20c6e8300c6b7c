"""Host bytes: the way between MLX arrays and plain memory that other threads may touch.

An MLX array belongs to the thread that owns MLX; its *host bytes* are a view (or copy) of its evaluated contents
that a writer or reader thread can handle without knowing MLX. Both functions run in the owning thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from omlx_cache.record_file import HostArray

_UNSIGNED = {1: (mx.uint8, np.uint8), 2: (mx.uint16, np.uint16), 4: (mx.uint32, np.uint32), 8: (mx.uint64, np.uint64)}
_NAMES = {
    mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.int64: "I64", mx.int32: "I32", mx.int16: "I16",
    mx.int8: "I8", mx.uint64: "U64", mx.uint32: "U32", mx.uint16: "U16", mx.uint8: "U8", mx.bool_: "BOOL",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def to_host(arrays: Sequence[mx.array]) -> tuple[HostArray, ...]:
    """Views of evaluated arrays, without a copy where host and device share memory. They keep the arrays alive."""
    hosts = []
    for array in arrays:
        unsigned, _ = _UNSIGNED[array.dtype.size]
        view = np.array(array.view(unsigned).reshape(-1), copy=False)
        hosts.append(HostArray(_NAMES[array.dtype], tuple(array.shape), view.data.cast("B")))
    return tuple(hosts)


def from_host(hosts: Sequence[HostArray]) -> tuple[mx.array, ...]:
    """MLX arrays with copies of the bytes."""
    arrays = []
    for host in hosts:
        dtype = _TYPES[host.dtype]
        _, unsigned = _UNSIGNED[dtype.size]
        flat = mx.array(np.frombuffer(host.data, dtype=unsigned))
        arrays.append(flat.view(dtype).reshape(host.shape))
    return tuple(arrays)
