"""The KV caches of rows: put together to a batch and taken apart again.

A *plain* cache (`KVCache`, …) has no notion of padding: it serves one row, or several whose lengths are equal. A
*padded* cache (ours for full attention, mlx-lm's `BatchRotatingKVCache` for windows) is a rectangle whose shorter rows
are padded on the left, which costs a mask in every attention. So rows of equal length, one row above all, are kept in
plain caches. What is done with one layer's cache is its adapter's matter (`omlx_cache.adapters`). Where a class of
caches cannot be put together with others, the model runs one sequence at a time.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from omlx_cache.adapters.table import adapter_of, layer_caches, mapped
from omlx_cache.padded import PaddedKVCache, Rows, Stacking, by_steps, wasted

from omlx.engine import attention

Caches = list[Any]


def new(model: Any) -> Caches:
    """Empty caches for one row, one per layer that has any."""
    return list(make_prompt_cache(model))


def where_needed(model: Any) -> dict[str, Caches]:
    """What a forward that is to keep nothing must be given: caches only where layers get something from them, another's
    keys or a state. Elsewhere they would hold the keys of all layers for nothing."""
    caches = new(model)
    # A model that sees has its layers elsewhere, and each its own cache.
    shared = len(caches) != len(getattr(model, "layers", caches))
    needed = shared or any(adapter_of(cache).keeps_state for cache in layer_caches(caches))
    return {"cache": caches} if needed else {}


def can_batch(caches: Caches) -> bool:
    """Whether rows with such caches can be decoded together."""
    return all(adapter_of(cache).can_batch(cache) for cache in layer_caches(caches))


def arrays(caches: Caches) -> list[mx.array]:
    """Everything that has to be computed before a cache can be relied on."""
    return [array for cache in layer_caches(caches) for array in adapter_of(cache).arrays(cache)]


def join(parts: list[tuple[Caches, list[int]]]) -> Caches:
    """The rows of all parts as one batch. A part is caches and the lengths of their rows.

    Where it raises, the parts are as they were; a single part is handed back as it is. A first part that was joined
    before has room for further rows: it is only copied where they do not fit, or where it is still used afterwards.
    """
    if len(parts) == 1:
        return parts[0][0]
    lengths = [part for _, part in parts]
    stacking = _stacking(parts)

    def joined(*caches: Any) -> Any:
        adapter = adapter_of(caches[0])
        return adapter.join([adapter_of(cache).copy(cache) for cache in caches], lengths, stacking)

    return [mapped(joined, *layer) for layer in zip(*(caches for caches, _ in parts), strict=True)]


def _stacking(parts: list[tuple[Caches, list[int]]]) -> Stacking:
    rectangle = _rectangle(parts[0][0])
    room = int(rectangle.keys.shape[0]) if rectangle is not None else 0
    return Stacking([lengths for _, lengths in parts], [end_of(*part) for part in parts], room, columns_for)


def columns_for(end: int) -> int:
    """Columns of a cache that is to hold `end` tokens and more."""
    return attention.columns(end + 1) if attention.plans() else by_steps(end)


def _rectangle(caches: Caches) -> PaddedKVCache | None:
    return next((cache for cache in layer_caches(caches) if isinstance(cache, PaddedKVCache)), None)


def end_of(caches: Caches, lengths: list[int]) -> int:
    """The column that all rows of a part end at."""
    rectangle = _rectangle(caches)
    return rectangle.rows.end if rectangle is not None else max(lengths)


def can_trim(caches: Caches) -> bool:
    """Whether tokens can be taken back out: full attention only, and rows without padding."""
    return all(adapter_of(cache).can_trim(cache) for cache in layer_caches(caches))


def trim(caches: Caches, count: int) -> None:
    """Take the last `count` tokens back out of caches that can do that."""
    for cache in layer_caches(caches):
        cache.trim(count)


def make_room(caches: Caches, count: int) -> None:
    """Give plain caches a size that attention likes, where it cares, before `count` tokens are put in."""
    if not attention.plans():
        return
    for cache in layer_caches(caches):
        adapter = adapter_of(cache)
        room = adapter.room(cache)
        if room is None:
            continue
        end = room[0] + count
        if end > room[1] or not attention.suits(room[1], end):
            adapter.resize(cache, attention.columns(end))


def padding(caches: Caches, *, fresh: bool) -> bool | None:
    """Whether rows with such caches can be prefilled in one forward although they take unequal numbers of tokens.

    Shorter rows are padded behind their tokens, where attention does not look. False: a recurrent state would take the
    padding in, and a window would lose tokens to it unless it is still `fresh` (empty). None: only one row at a time.
    """
    if not can_batch(caches):
        return None
    paddings = {adapter_of(cache).padding for cache in layer_caches(caches)}
    return paddings <= ({"behind", "fresh"} if fresh else {"behind"})


def gather(model: Any, parts: list[tuple[Caches, int]]) -> Caches:
    """Caches for one forward over several rows: a part is a row's caches and its length. All are empty, or none is."""
    return join([(caches, [length]) for caches, length in parts]) if parts[0][1] else new(model)


def together(caches: Caches, lengths: list[int], counts: list[int]) -> Caches:
    """The rows of `gather` after a forward, as a part for `join`. As in `split`, but they stay together."""
    if len(set(counts)) == 1:
        return caches
    held = [length + count for length, count in zip(lengths, counts, strict=True)]
    if not _have_columns(caches):
        return join([(row, [length]) for row, length in zip(split(caches, lengths, counts), held, strict=True)])
    # The padding goes from behind the tokens to the left of them.
    shifts = [max(counts) - count for count in counts]
    end = max(lengths) + max(counts)
    rows = Rows(held, end, columns_for)
    return [mapped(lambda cache: adapter_of(cache).align(cache, rows, shifts, end), cache) for cache in caches]


def _have_columns(caches: Caches) -> bool:
    adapters = [(adapter_of(cache), cache) for cache in layer_caches(caches)]
    return all(adapter.has_columns and adapter.can_batch(cache) for adapter, cache in adapters)


def split(caches: Caches, lengths: list[int], counts: list[int]) -> list[Caches]:
    """The rows of `gather` after a forward, as plain caches of their own.

    Row i held `lengths[i]` tokens and has taken in `counts[i]`; behind them is padding up to the largest count.
    """
    width = max(counts)
    end = max(lengths) + width
    return [
        cut(caches, row, end - (width - count), length + count)
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]


def cut(caches: Caches, row: int, end: int, length: int) -> Caches:
    """Row `row` as plain caches of `length` tokens; in a padded rectangle they stand before column `end`."""

    def cut_one(cache: Any) -> Any:
        adapter = adapter_of(cache)
        return adapter.cut(adapter.copy(cache), row, end, length)

    return [mapped(cut_one, cache) for cache in caches]


def places(caches: Caches, lengths: list[int], counts: list[int]) -> list[int]:
    """The columns of the rows' first tokens, after a forward over `gather`: as for `split`."""
    if _rectangle(caches) is None:
        return [0] * len(lengths)
    return [max(lengths) - length for length in lengths]


def columns(caches: Caches, rows: list[int], start: int, end: int) -> list[tuple[mx.array, mx.array] | None] | None:
    """Keys and values of the columns [start, end) of these rows, by layer; None for a layer without any of its own, and
    None altogether where a layer keeps anything else."""
    if not _have_columns(caches):
        return None
    index = mx.array(rows)
    return [adapter_of(cache).columns(cache, index, start, end) for cache in layer_caches(caches)]


def advance(caches: Caches, count: int) -> None:
    """A forward has put `count` more tokens into every row."""
    rectangle = _rectangle(caches)
    if rectangle is not None:
        rectangle.rows.advance(count)  # shared by all layers


def leave(caches: Caches, lengths: list[int], keep: list[int]) -> Caches:
    """The rows `keep` of a batch whose rows have `lengths`, which is as it was.

    Where most stay in their places (`compacted`) and the batch is not used any more, only the others are copied.
    """
    kept = [lengths[place] for place in keep]
    if len(keep) == 1:
        return row(caches, lengths, keep[0])
    end = end_of(caches, lengths)
    spare = wasted(end, kept)
    rows = Rows(kept, end - spare, columns_for)

    def selected(cache: Any) -> Any:
        adapter = adapter_of(cache)
        return adapter.select(adapter.copy(cache), keep, rows, spare)

    return [mapped(selected, cache) for cache in caches]


def compacted(count: int, gone: set[int]) -> list[int]:
    """The rows of `count` without those `gone`: the last ones in their places, all others where they were."""
    left = count - len(gone)
    movable = [place for place in range(left, count) if place not in gone]
    return [place if place not in gone else movable.pop() for place in range(left)]


def row(caches: Caches, lengths: list[int], place: int) -> Caches:
    """One row of a batch as plain caches of its own; the batch is unchanged."""
    return cut(caches, place, end_of(caches, lengths), lengths[place])
