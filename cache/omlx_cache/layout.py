"""The layout: what a model's cache is made of, and the way between live caches and records.

A *layout* belongs to one loaded model. It captures slices of live caches into stacked arrays and refills fresh caches
from them. A model with a cache it cannot read is not *supported*: nothing of it is stored, and it runs as a batch of
one.

All methods run MLX and belong to the thread that owns it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import mlx.core as mx

from omlx_cache.adapters.adapter import CacheAdapter
from omlx_cache.adapters.state import STATE
from omlx_cache.adapters.table import adapter_of, layer_caches, proven_adapter
from omlx_cache.hostbytes import from_host, to_host
from omlx_cache.plan import RestorePlan
from omlx_cache.record_file import HostArray
from omlx_cache.records import Kind, Record, RecordName
from omlx_cache.shapes import Member, StackedArrays, measure
from omlx_cache.stacked import StackedRow

log = logging.getLogger(__name__)


class CoverageError(Exception):
    """Live caches do not hold what was to be captured; the message says which tokens."""


class Slab(NamedTuple):
    """A stretch of one piece's arrays: they start at token `start`; the first `take` tokens of them are meant."""

    arrays: tuple[mx.array, ...]
    start: int
    take: int


class CacheLayout:
    """How the caches of one model are read and refilled.

    `model` is called once with a single token to see shapes and types, as `forward(tokens[1, 1], caches)` when given.
    `make_caches` returns fresh single-sequence caches; the default is the model's own `make_cache`, or plain KV caches.
    """

    def __init__(
        self,
        model: Any,
        *,
        make_caches: Callable[[], list[Any]] | None = None,
        forward: Callable[[mx.array, list[Any]], Any] | None = None,
    ) -> None:
        self._make = make_caches or _maker(model)
        sample = self._make()
        layers = layer_caches(sample)
        adapters = [proven_adapter(layer) for layer in layers]
        self.can_batch = all(adapter_of(layer).can_batch(layer) for layer in layers)
        """Whether rows of several sequences can share one batch cache."""
        self.reason = _why_unsupported(layers, adapters)
        """Why nothing is stored; empty when the model is supported."""
        if self.supported:
            output = (forward or (lambda tokens, caches: model(tokens, cache=caches)))(mx.array([[0]]), sample)
            mx.eval([layer.state for layer in layers], output if isinstance(output, mx.array) else [])
        else:
            log.warning("no prefix caching for this model: %s", self.reason)
        self.shapes = measure(layers if self.supported else [], adapters if self.supported else [])
        self._adapters = self.shapes.adapters
        self.fingerprint = self.shapes.fingerprint(layers)
        self._unstarted: list[mx.array] | None = None
        """Copies that are started together; None: each at once."""

    @property
    def supported(self) -> bool:
        return not self.reason

    @property
    def needs(self) -> frozenset[Kind]:
        """Kinds of records a restore takes."""
        kinds = {group.kind for group in self.shapes.groups}
        return frozenset(kinds | ({Kind.STATE} if self.shapes.states else set()))

    def fresh(self) -> list[Any]:
        """New, empty single-sequence caches."""
        return self._make()

    def length(self, caches: list[Any] | StackedRow) -> int | None:
        """Tokens the caches hold; None when no layer counts them (purely recurrent models)."""
        if isinstance(caches, StackedRow):
            return caches.length
        for adapter, layer in zip(self._adapters, layer_caches(caches), strict=True):
            if not adapter.keeps_state:
                return int(layer.offset)
        return None

    @property
    def bytes_per_token(self) -> int:
        """Bytes each token adds in full-attention layers."""
        return self.shapes.bytes_per_token

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state, whatever the length."""
        return self.shapes.state_bytes

    @property
    def window(self) -> int:
        """Tokens that the farthest-looking windowed layer needs; 0 without such layers."""
        return self.shapes.window

    def expected_bytes(self, tokens: int) -> int:
        """Bytes of one sequence's cache at this length."""
        windowed = min(tokens, self.window) * self.shapes.window_bytes_per_token
        return tokens * self.bytes_per_token + windowed + self.state_bytes

    # ------------------------------------------------------------------ capture
    def stack(self, parts: Sequence[Sequence[mx.array] | None]) -> tuple[mx.array, ...] | None:
        """The layers of several sequences as one array per group, for `StackedRow`.

        `parts` are each layer cache's keys and values [rows, heads, columns, width]; None: it is not used. None where
        this model keeps more than the keys and values of all tokens.
        """
        if self.needs != {Kind.KV}:
            return None
        arrays = []
        for group in self.shapes.groups:
            members = [parts[member.layer_cache] for member in group.members]
            arrays.append(
                mx.stack([_part(part, group, member) for part, member in zip(members, group.members, strict=True)])
            )
        return tuple(arrays)

    def first_held(self, caches: list[Any] | StackedRow, kind: Kind) -> int:
        """The earliest token that every layer of this kind still holds."""
        if isinstance(caches, StackedRow):
            return caches.first
        layers = layer_caches(caches)
        used = {member.layer_cache for group in self.shapes.groups if group.kind == kind for member in group.members}
        return max((self._held(layers, index).first for index in used), default=0)

    def capture(self, caches: list[Any] | StackedRow, kind: Kind, start: int, end: int) -> tuple[mx.array, ...]:
        """Tokens [start, end) of all layers of this kind, copied, one lazy array per group. Raises CoverageError.

        Evaluate the arrays before the caches move on: an unevaluated copy keeps the whole cache buffer alive.
        """
        if isinstance(caches, StackedRow):
            if not caches.first <= start < end <= caches.length:
                raise CoverageError(f"a row holds tokens {caches.first} to {caches.length}, not {start} to {end}")
            return tuple(map(mx.contiguous, caches.piece(start, end)))
        layers = layer_caches(caches)
        self._check_idle(layers)
        arrays = []
        for group in self.shapes.groups:
            if group.kind != kind:
                continue
            rows = []
            for member in group.members:
                held = self._held(layers, member.layer_cache)
                if not held.first <= start < end <= held.end:
                    raise CoverageError(
                        f"layer {member.layer_cache} holds tokens {held.first} to {held.end}, not {start} to {end}"
                    )
                rows.append(held.parts[member.part][0, :, start - held.first : end - held.first])
            stacked = mx.contiguous(mx.stack(rows))
            if (stacked.shape[1], stacked.shape[3], stacked.dtype) != (group.heads, group.width, group.dtype):
                raise CoverageError(f"layer cache {group.members[0].layer_cache} changed its shape or type")
            arrays.append(stacked)
        return tuple(arrays)

    def capture_state(self, caches: list[Any]) -> tuple[tuple[mx.array, ...], str]:
        """Copies of all recurrent states as they are now, and the note that `restore` needs to put them back."""
        layers = layer_caches(caches)
        places: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        arrays: dict[tuple[Any, ...], list[mx.array]] = {}
        for index in self.shapes.states:
            for slot, value in enumerate(STATE.state(layers[index])):
                if value is not None:
                    shape = (*value.shape, str(value.dtype))
                    places.setdefault(shape, []).append((index, slot))
                    arrays.setdefault(shape, []).append(value)
        stacks = tuple(mx.contiguous(mx.stack(values)) for values in arrays.values())
        return stacks, json.dumps(list(places.values()), separators=(",", ":"))

    def start(self, arrays: Sequence[mx.array]) -> None:
        """Let captured copies be made along with the device's other work."""
        if self._unstarted is not None:
            self._unstarted += arrays
        else:
            mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within it captured copies are only recorded, and started together at its end, which costs the host less."""
        if self._unstarted is not None:
            yield
            return
        self._unstarted = []
        try:
            yield
        finally:
            arrays, self._unstarted = self._unstarted, None
            if arrays:
                self.start(arrays)

    # ------------------------------------------------------------------ host
    def to_host(self, arrays: Sequence[mx.array]) -> tuple[HostArray, ...]:
        """Host bytes of arrays, for another thread to write."""
        return to_host(arrays)

    def from_host(self, arrays: Sequence[HostArray]) -> tuple[mx.array, ...]:
        """Evaluated arrays from bytes that another thread has read."""
        loaded = from_host(arrays)
        mx.eval(*loaded)
        return loaded

    # ------------------------------------------------------------------ restore
    def restore_from(self, plan: RestorePlan, records: Mapping[RecordName, Record]) -> list[Any]:
        """Fresh caches as the plan says, from its records. Raises CoverageError."""
        pieces: dict[Kind, list[Slab]] = {}
        state = None
        for use in plan.uses:
            record = records[use.name]
            if record.kind == Kind.STATE:
                state = (record.arrays, record.meta)
            else:
                pieces.setdefault(record.kind, []).append(Slab(record.arrays, use.start, use.take))
        return self.restore(plan.position, pieces, state)

    def restore(
        self, position: int, pieces: dict[Kind, list[Slab]], state: tuple[tuple[mx.array, ...], str] | None
    ) -> list[Any]:
        """Fresh caches that stand behind token `position`. Raises CoverageError when pieces are missing.

        They are computed with the device's other work: who asks does not wait for what is queued there.
        `pieces` hold adjoining stretches up to `position`: KV from token 0, WINDOW from `position - window` or earlier.
        """
        caches = self._make()
        layers = layer_caches(caches)
        parts: dict[int, dict[int, mx.array]] = {}
        number = dict.fromkeys(Kind, 0)
        for group in self.shapes.groups:
            slabs = pieces.get(group.kind, [])
            index, number[group.kind] = number[group.kind], number[group.kind] + 1
            first = self._check_adjoining(slabs, group.kind, position)
            whole = mx.concatenate([_cut(slab.arrays[index], slab.take) for slab in slabs], axis=2)
            if (whole.shape[0], whole.shape[1], whole.shape[3], whole.dtype) != (
                len(group.members), group.heads, group.width, group.dtype,
            ):  # fmt: skip
                raise CoverageError("a stored piece does not have this model's shape or type")
            for row, member in enumerate(group.members):
                reach = self._reach(layers, member.layer_cache) or position
                wanted = position - min(position, reach)
                parts.setdefault(member.layer_cache, {})[member.part] = whole[row : row + 1, :, wanted - first :]
        for layer_cache, parts_of in parts.items():
            adapter = self._adapters[layer_cache]
            adapter.fill(layers[layer_cache], [parts_of[part] for part in sorted(parts_of)], position)
        if self.shapes.states:
            self._restore_state(layers, state)
        mx.async_eval([layer.state for layer in layers])  # type: ignore[no-untyped-call]
        return caches

    def _restore_state(self, layers: list[Any], state: tuple[tuple[mx.array, ...], str] | None) -> None:
        if state is None:
            raise CoverageError("this model needs a state snapshot to restore")
        stacks, meta = state
        slots: dict[int, list[mx.array | None]] = {
            index: [None] * len(STATE.state(layers[index])) for index in self.shapes.states
        }
        for stack, places in zip(stacks, json.loads(meta), strict=True):
            if stack.shape[0] != len(places):
                raise CoverageError("a state snapshot does not have this model's shape")
            for row, (index, slot) in enumerate(places):
                slots[index][slot] = stack[row]
        for index, arrays in slots.items():
            STATE.fill_state(layers[index], arrays)

    def _check_adjoining(self, slabs: Sequence[Slab], kind: Kind, position: int) -> int:
        """The first token the slabs cover; CoverageError unless they cover all that `kind` needs at `position`."""
        needed = 0 if kind == Kind.KV else max(0, position - self.window)
        if not slabs or slabs[0].start > needed:
            raise CoverageError(f"stored {kind.name.lower()} pieces do not reach back to token {needed}")
        for slab, following in pairwise(slabs):
            if slab.start + slab.take != following.start:
                raise CoverageError(f"stored pieces have a gap behind token {slab.start + slab.take}")
        if slabs[-1].start + slabs[-1].take != position:
            raise CoverageError(f"stored pieces end at token {slabs[-1].start + slabs[-1].take}, not {position}")
        return slabs[0].start

    def _held(self, layers: list[Any], index: int) -> Any:
        if layers[index].keys is None:
            raise CoverageError(f"layer cache {index} is empty")
        return self._adapters[index].held(layers[index])

    def _reach(self, layers: list[Any], index: int) -> int:
        return self._adapters[index].reach(layers[index])

    def _check_idle(self, layers: list[Any]) -> None:
        for index in self.shapes.idle:
            if layers[index].keys is not None:
                raise CoverageError(f"layer cache {index} was unused when the model was measured, and now is in use")


def _maker(model: Any) -> Callable[[], list[Any]]:
    if hasattr(model, "make_cache"):
        return lambda: list(model.make_cache())
    from mlx_lm.models.cache import make_prompt_cache

    return lambda: list(make_prompt_cache(model))


def _why_unsupported(layers: list[Any], adapters: Sequence[CacheAdapter | None]) -> str:
    unknown = sorted({type(layer).__name__ for layer, adapter in zip(layers, adapters, strict=True) if adapter is None})
    if unknown:
        return f"it keeps its context in {', '.join(unknown)}, which cannot be read"
    return "" if layers else "it has no cache"


def _cut(array: mx.array, take: int) -> mx.array:
    return array if array.shape[2] == take else array[:, :, :take]


def _part(parts: Sequence[mx.array] | None, group: StackedArrays, member: Member) -> mx.array:
    """A member's array [rows, heads, columns, width]. Raises CoverageError."""
    array = parts[member.part] if parts is not None and member.part < len(parts) else None
    if array is None or (array.shape[1], array.shape[3], array.dtype) != (group.heads, group.width, group.dtype):
        raise CoverageError(f"layer cache {member.layer_cache} changed its shape or type, or is empty")
    return array
