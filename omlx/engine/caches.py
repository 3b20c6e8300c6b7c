"""Putting rows' KV caches together and taking them apart: the one module here that knows mlx-lm's cache classes.

A *plain* cache (`KVCache`, …) has no notion of padding: it serves one row, or several whose lengths are equal. A
*padded* cache (ours for full attention, mlx-lm's `BatchRotatingKVCache` for windows) is a rectangle whose shorter rows
are padded on the left, which costs a mask in every attention. So rows of equal length, one row above all, are kept in
plain caches. Recurrent state (`ArraysCache`) has no length. A cache of any other class cannot be put together with
another: such a model runs one sequence at a time.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from omlx.engine import attention
from omlx.engine.padded import PaddedKVCache, Rows, Stacking, rolled, selected, wasted

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
    needed = shared or any(isinstance(leaf, ArraysCache) for leaf in leaves(caches))
    return {"cache": caches} if needed else {}


def can_batch(caches: Caches) -> bool:
    """Whether rows with such caches can be decoded together."""
    return all(type(leaf) in {KVCache, ArraysCache} or _is_window(leaf) for leaf in leaves(caches))


def _is_window(leaf: Any) -> bool:
    return type(leaf) is RotatingKVCache and leaf.keep == 0


def leaves(caches: Caches) -> list[Any]:
    """The caches without the lists that group them."""
    found: list[Any] = []
    for cache in caches:
        found += leaves(list(cache.caches)) if isinstance(cache, CacheList) else [cache]
    return found


def arrays(caches: Caches) -> list[mx.array]:
    """Everything that has to be computed before a cache can be relied on."""
    found: list[mx.array] = []
    for leaf in leaves(caches):
        if isinstance(leaf, ArraysCache):
            found += [array for array in leaf.cache if array is not None]
        elif getattr(leaf, "keys", None) is not None:
            keys, values = leaf.keys, leaf.values
            found += [*keys, *values] if isinstance(keys, (list, tuple)) else [keys, values]
    return found


def join(parts: list[tuple[Caches, list[int]]]) -> Caches:
    """The rows of all parts as one batch. A part is caches and the lengths of their rows.

    Where it raises, the parts are as they were; a single part is handed back as it is. A first part that was joined
    before has room for further rows: it is only copied where they do not fit, or where it is still used afterwards.
    """
    if len(parts) == 1:
        return parts[0][0]
    lengths = [part for _, part in parts]
    layers = zip(*([_copy(cache) for cache in caches] for caches, _ in parts), strict=True)
    stacking = _stacking(parts)
    return [_join(list(layer), lengths, stacking) for layer in layers]


def _stacking(parts: list[tuple[Caches, list[int]]]) -> Stacking:
    rectangle = _rectangle(parts[0][0])
    room = int(rectangle.keys.shape[0]) if rectangle is not None else 0
    return Stacking([lengths for _, lengths in parts], [end_of(*part) for part in parts], room)


def _rectangle(caches: Caches) -> PaddedKVCache | None:
    return next((leaf for leaf in leaves(caches) if isinstance(leaf, PaddedKVCache)), None)


def end_of(caches: Caches, lengths: list[int]) -> int:
    """The column that all rows of a part end at."""
    rectangle = _rectangle(caches)
    return rectangle.rows.end if rectangle is not None else max(lengths)


def can_trim(caches: Caches) -> bool:
    """Whether tokens can be taken back out: full attention only, and rows without padding."""
    return all(type(leaf) is KVCache for leaf in leaves(caches))


def trim(caches: Caches, count: int) -> None:
    """Take the last `count` tokens back out of caches that can do that."""
    for leaf in leaves(caches):
        leaf.trim(count)


def make_room(caches: Caches, count: int) -> None:
    """Give plain caches a size that attention likes, where it cares, before `count` tokens are put in."""
    if not attention.plans():
        return
    for leaf in leaves(caches):
        if type(leaf) is not KVCache or leaf.keys is None:
            continue
        end, size = leaf.offset + count, leaf.keys.shape[2]
        if end > size or not attention.suits(size, end):
            wanted = attention.columns(end)
            leaf.keys, leaf.values = (_sized(array, leaf.offset, wanted) for array in (leaf.keys, leaf.values))


def _sized(array: mx.array, end: int, columns: int) -> mx.array:
    """The first `end` columns and room behind them."""
    return mx.pad(array[..., :end, :], [(0, 0), (0, 0), (0, columns - end), (0, 0)])


def padding(caches: Caches, *, fresh: bool) -> bool | None:
    """Whether rows with such caches can be prefilled in one forward although they take unequal numbers of tokens.

    Shorter rows are padded behind their tokens, where attention does not look. False: a recurrent state would take the
    padding in, and a window would lose tokens to it unless it is still `fresh` (empty). None: only one row at a time.
    """
    if not can_batch(caches):
        return None
    kinds = {type(leaf) for leaf in leaves(caches)}
    return ArraysCache not in kinds and (fresh or RotatingKVCache not in kinds)


def gather(model: Any, parts: list[tuple[Caches, int]]) -> Caches:
    """Caches for one forward over several rows: a part is a row's caches and its length. All are empty, or none is."""
    return join([(caches, [length]) for caches, length in parts]) if parts[0][1] else new(model)


def together(caches: Caches, lengths: list[int], counts: list[int]) -> Caches:
    """The rows of `gather` after a forward, as a part for `join`. As in `split`, but they stay together."""
    if len(set(counts)) == 1:
        return caches
    kinds = {type(leaf) for leaf in leaves(caches)}
    held = [length + count for length, count in zip(lengths, counts, strict=True)]
    if not kinds <= {KVCache, PaddedKVCache}:
        return join([(row, [length]) for row, length in zip(split(caches, lengths, counts), held, strict=True)])
    # The padding goes from behind the tokens to the left of them.
    shifts = [max(counts) - count for count in counts]
    end = max(lengths) + max(counts)
    rows = Rows(held, end)

    def aligned(cache: Any) -> Any:
        if isinstance(cache, CacheList):
            return CacheList(*map(aligned, cache.caches))
        if cache.keys is None:
            return cache
        keys, values = (rolled(array[: rows.count, :, :end], shifts) for array in (cache.keys, cache.values))
        return PaddedKVCache(rows, keys, values)

    return [aligned(cache) for cache in caches]


def split(caches: Caches, lengths: list[int], counts: list[int]) -> list[Caches]:
    """The rows of `gather` after a forward, as plain caches of their own.

    Row i held `lengths[i]` tokens and has taken in `counts[i]`; behind them is padding up to the largest count.
    """
    width = max(counts)
    end = max(lengths) + width
    return [
        cut(caches, at, end - (width - count), length + count)
        for at, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]


def cut(caches: Caches, at: int, end: int, length: int) -> Caches:
    """Row `at` as plain caches of `length` tokens; in a padded rectangle they stand before column `end`."""
    return [_cut(cache, at, end, length) for cache in caches]


def places(caches: Caches, lengths: list[int], counts: list[int]) -> list[int]:
    """The columns of the rows' first tokens, after a forward over `gather`: as for `split`."""
    if _rectangle(caches) is None:
        return [0] * len(lengths)
    return [max(lengths) - length for length in lengths]


def columns(caches: Caches, rows: list[int], start: int, end: int) -> list[tuple[mx.array, mx.array] | None] | None:
    """Keys and values of the columns [start, end) of these rows, by layer; None for a layer without any of its own, and
    None altogether where a layer keeps anything else."""
    found: list[tuple[mx.array, mx.array] | None] = []
    index = mx.array(rows)
    for leaf in leaves(caches):
        if type(leaf) not in {KVCache, PaddedKVCache}:
            return None
        own = None if leaf.keys is None else (leaf.keys[:, :, start:end][index], leaf.values[:, :, start:end][index])
        found.append(own)
    return found


def _cut(cache: Any, at: int, end: int, length: int) -> Any:
    """Row `at` of a cache as a plain one of `length` tokens; in a padded rectangle they stand before column `end`."""
    if isinstance(cache, CacheList):
        return CacheList(*(_cut(inner, at, end, length) for inner in cache.caches))
    fresh = _copy(cache)
    if isinstance(cache, ArraysCache):
        fresh.cache = [None if array is None else array[at : at + 1] for array in cache.cache]
        fresh.left_padding = fresh.lengths = None
        return fresh
    if cache.keys is None:
        return fresh
    if isinstance(cache, BatchRotatingKVCache):
        fresh.filter(mx.array([at]))
        return _plain_window(fresh, [length])
    keys, values, start = cache.keys, cache.values, 0
    if isinstance(cache, PaddedKVCache):
        fresh, start = KVCache(), end - length
    elif isinstance(cache, RotatingKVCache):
        # It holds the last tokens, the padding behind them.
        keys, values = cache._temporal_order(keys), cache._temporal_order(values)
        fresh._idx = end = keys.shape[2] - (cache.offset - length)
    else:
        end = length
    fresh.keys, fresh.values = keys[at : at + 1, :, start:end], values[at : at + 1, :, start:end]
    fresh.offset = length
    return fresh


def advance(caches: Caches, count: int) -> None:
    """A forward has put `count` more tokens into every row."""
    for leaf in leaves(caches):
        if isinstance(leaf, PaddedKVCache):
            leaf.rows.advance(count)
            return  # shared by all layers


def leave(caches: Caches, lengths: list[int], keep: list[int]) -> Caches:
    """The rows `keep` of a batch whose rows have `lengths`, which is as it was.

    Where most stay in their places (`compacted`) and the batch is not used any more, only the others are copied.
    """
    kept = [lengths[at] for at in keep]
    if len(keep) == 1:
        return row(caches, lengths, keep[0])
    end = end_of(caches, lengths)
    spare = wasted(end, kept)
    rows = Rows(kept, end - spare)
    return [_select(_copy(cache), keep, rows, spare) for cache in caches]


def compacted(count: int, gone: set[int]) -> list[int]:
    """The rows of `count` without those `gone`: the last ones in their places, all others where they were."""
    left = count - len(gone)
    movable = [at for at in range(left, count) if at not in gone]
    return [at if at not in gone else movable.pop() for at in range(left)]


def row(caches: Caches, lengths: list[int], at: int) -> Caches:
    """One row of a batch as plain caches of its own; the batch is unchanged."""
    return cut(caches, at, end_of(caches, lengths), lengths[at])


def _copy(cache: Any) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*(_copy(inner) for inner in cache.caches))
    fresh = object.__new__(type(cache))
    fresh.__dict__.update(cache.__dict__)
    if isinstance(cache, ArraysCache):
        fresh.cache = list(cache.cache)
    return fresh


def _join(parts: list[Any], lengths: list[list[int]], stacking: Stacking) -> Any:
    """One layer's caches as one."""
    first = parts[0]
    if isinstance(first, CacheList):
        inner = zip(*(part.caches for part in parts), strict=True)
        return CacheList(*(_join(list(caches), lengths, stacking) for caches in inner))
    if isinstance(first, ArraysCache):
        for part in parts[1:]:
            first.extend(part)
        # mlx-lm counts padding down in every step of a recurrent layer; unread, that grows a graph without end.
        first.left_padding = first.lengths = None
        return first
    if first.keys is None:
        return first  # a layer that shares another's cache and leaves its own unused
    if isinstance(first, (RotatingKVCache, BatchRotatingKVCache)):
        window = _padded_window(first, lengths[0])
        for part, part_lengths in zip(parts[1:], lengths[1:], strict=True):
            window.extend(_padded_window(part, part_lengths))
        return _plain_window(window, [length for part in lengths for length in part])
    keys, values = ([getattr(part, name) for part in parts] for name in ("keys", "values"))
    return PaddedKVCache(stacking.rows, stacking.joined(keys), stacking.joined(values))


def _padded_window(cache: Any, lengths: list[int]) -> Any:
    """A plain window cache of rows of equal length as a padded one without padding."""
    if isinstance(cache, BatchRotatingKVCache):
        return cache
    rows, length = len(lengths), lengths[0]
    size = min(length, cache.max_size)
    padded = BatchRotatingKVCache(cache.max_size, [0] * rows)
    padded.keys = cache._temporal_order(cache.keys)[..., -size:, :]
    padded.values = cache._temporal_order(cache.values)[..., -size:, :]
    padded.offset = mx.array([length] * rows)
    padded._idx = padded._offset = size
    return padded


def _plain_window(cache: Any, lengths: list[int]) -> Any:
    """A padded window cache as a plain one, where all of its rows have as many tokens."""
    if len(set(lengths)) > 1:
        return cache
    cache._temporal_order()
    size = min(lengths[0], cache.max_size)
    plain = RotatingKVCache(cache.max_size)
    plain.keys = cache.keys[..., cache._idx - size : cache._idx, :]
    plain.values = cache.values[..., cache._idx - size : cache._idx, :]
    plain.offset, plain._idx = lengths[0], size
    return plain


def _select(cache: Any, keep: list[int], rows: Rows, spare: int) -> Any:
    """The rows `keep` of any cache; `rows` is where they stand, without `spare` columns at the left."""
    if isinstance(cache, CacheList):
        return CacheList(*(_select(inner, keep, rows, spare) for inner in cache.caches))
    if isinstance(cache, ArraysCache):
        cache.filter(mx.array(keep))
        return cache
    if isinstance(cache, BatchRotatingKVCache):
        cache.filter(mx.array(keep))
        return _plain_window(cache, rows.lengths)
    if cache.keys is None:
        return cache
    if isinstance(cache, PaddedKVCache):
        return PaddedKVCache(rows, *(selected(array, keep, spare=spare) for array in (cache.keys, cache.values)))
    cache.keys, cache.values = (array[mx.array(keep)] for array in (cache.keys, cache.values))
    return cache
