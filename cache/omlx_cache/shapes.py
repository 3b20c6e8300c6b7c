"""The shapes of a model's caches: which layers keep what, measured once, on caches that hold one token.

Parts of equal shape are stacked, so that a record has few arrays, whatever the number of layers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from omlx_cache.adapters.adapter import CacheAdapter
from omlx_cache.adapters.state import STATE
from omlx_cache.records import Kind


class Member(NamedTuple):
    """One part (keys, values, scales ...) of one layer cache: a row of a stacked array."""

    layer_cache: int
    part: int


class StackedArrays(NamedTuple):
    """Members of equal shape and type, stacked into one array [members, heads, tokens, width]."""

    kind: Kind
    heads: int
    width: int
    dtype: mx.Dtype
    members: tuple[Member, ...]

    @property
    def bytes_per_token(self) -> int:
        return len(self.members) * self.heads * self.width * self.dtype.size


class Shapes(NamedTuple):
    adapters: tuple[CacheAdapter, ...]
    """By layer cache."""
    groups: tuple[StackedArrays, ...]
    states: tuple[int, ...]
    """The layer caches with recurrent state."""
    idle: frozenset[int]
    """The layer caches that their layers do not use."""
    window: int
    """Tokens that the farthest-looking windowed layer needs; 0 without such layers."""
    state_bytes: int
    """Bytes of recurrent state, whatever the length."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes each token adds in full-attention layers."""
        return sum(group.bytes_per_token for group in self.groups if group.kind == Kind.KV)

    @property
    def window_bytes_per_token(self) -> int:
        """Bytes each token adds in windowed layers while it is within their window."""
        return sum(group.bytes_per_token for group in self.groups if group.kind == Kind.WINDOW)

    def fingerprint(self, layers: Sequence[Any]) -> str:
        """Digest of all that decides what stored arrays mean, library versions included."""
        kinds = [
            (STATE.name, True) if adapter.keeps_state else (adapter.name, adapter.reach(layer))
            for adapter, layer in zip(self.adapters, layers, strict=False)
        ]
        shapes = [(group.kind, group.heads, group.width, str(group.dtype), group.members) for group in self.groups]
        libraries = sorted({type(layer).__module__.partition(".")[0] for layer in layers} & {"mlx_lm", "mlx_vlm"})
        versions = [(name, importlib.metadata.version(name.replace("_", "-"))) for name in libraries]
        return hashlib.sha256(json.dumps([kinds, shapes, versions]).encode()).hexdigest()


def measure(layers: Sequence[Any], adapters: Sequence[CacheAdapter | None]) -> Shapes:
    """Group the sliceable parts by shape, from caches that hold one token and their adapters."""
    members: dict[tuple[Kind, int, int, mx.Dtype], list[Member]] = {}
    known = tuple(adapter for adapter in adapters if adapter is not None)
    idle = set()
    window = 0
    for index, (adapter, layer) in enumerate(zip(known, layers, strict=True)):
        if adapter.keeps_state:
            continue
        if layer.keys is None:
            idle.add(index)
            continue
        reach = adapter.reach(layer)
        window = max(window, reach)
        for part, value in enumerate(adapter.held(layer).parts):
            shape = (Kind.WINDOW if reach else Kind.KV, value.shape[1], value.shape[3], value.dtype)
            members.setdefault(shape, []).append(Member(index, part))
    states = tuple(index for index, adapter in enumerate(known) if adapter.keeps_state)
    return Shapes(
        adapters=known,
        groups=tuple(StackedArrays(*shape, tuple(group)) for shape, group in members.items()),
        states=states,
        idle=frozenset(idle),
        window=window,
        state_bytes=sum(value.nbytes for index in states for value in STATE.arrays(layers[index])),
    )
