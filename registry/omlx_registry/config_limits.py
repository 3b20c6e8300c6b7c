"""Whether config.json can belong to the weights beside it: counts and sizes against names and shapes of tensors. Pure.

Model code builds a network of the size that config.json states before it looks at a weight. A config that states a
thousand million layers fills the memory of the machine, so what cannot be meant is refused before anything is built.
Only that: models share layers, pad vocabularies and describe towers they come without, so the bounds are wide, and a
network that does not fit its weights by less is found by the loader.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from omlx_registry.errors import InvalidModel
from omlx_registry.weights import TensorHeader

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|resblocks)\.(\d{1,9})(?=\.)")
_LAYER_KEY: Final = re.compile(r"(?:^|_)(?:n_layer|layers|num_layer|depth)\Z")
_COUNT_KEY: Final = re.compile(r"(?:^|_)(?:experts|heads|n_head|groups|channels)\Z")
_SIZE_KEY: Final = re.compile(r"(?:^|_)(?:size|dim|width|n_embd|d_model|d_ff|rank|kernel)\Z")
_WINDOW: Final = re.compile(r"window|chunk|cache|buffer|model_size|total_size")
"""Sizes of no tensor; some configurations write "no limit" as a very large number."""
_LIST_KEY: Final = re.compile(r"layer|pattern|block")
_MOST_LAYERS: Final = 256
"""Where the names of tensors show fewer. Also the part of a network that repeats layers may state as many."""
_NO_MODEL: Final = 4096
"""Layers that no model has, whatever its tensors are called."""
_SHARED: Final = 4
"""How often the same layer may be run."""
_MOST_COUNT: Final = 4096
"""Of experts, heads or channels, in a part that has no weights here."""
_MOST_SIZE: Final = 1 << 22
"""Of a part that has no weights here."""
_PACKED: Final = 32
"""Values of the narrowest packing in one element of a tensor."""


def check_plausible(config: Mapping[str, Any], tensors: Iterable[TensorHeader]) -> None:
    """Raises InvalidModel with a sentence for the user where the weights cannot be those of this configuration."""
    tensors = list(tensors)
    layers, widest = _layers(tensors), max((max(tensor.shape, default=1) for tensor in tensors), default=1)
    most_layers = min(max(_SHARED * layers, _MOST_LAYERS), _NO_MODEL)
    for path, key, value in _entries(config):
        if isinstance(value, list | str):
            if _LIST_KEY.search(key) and len(value) > max(most_layers, 4096):
                raise _mismatch(path, f"has {len(value):,} entries", f"{layers:,} layers")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            continue
        elif _LAYER_KEY.search(key):
            if value > most_layers:
                raise _mismatch(path, f"is {value:,}", f"{layers:,} layers")
        elif _COUNT_KEY.search(key):
            if value > max(widest * _PACKED, _MOST_COUNT):
                raise _mismatch(path, f"is {value:,}", f"no dimension above {widest:,}")
        elif _SIZE_KEY.search(key) and not _WINDOW.search(key) and value > max(widest * _PACKED, _MOST_SIZE):
            raise _mismatch(path, f"is {value:,}", f"no dimension above {widest:,}")


def _mismatch(path: str, stated: str, actual: str) -> InvalidModel:
    return InvalidModel(f"config.json does not match the weights: {path} {stated}, but they have {actual}")


def _layers(tensors: list[TensorHeader]) -> int:
    """The longest series of layers in the names of the tensors."""
    numbers: defaultdict[str, set[str]] = defaultdict(set)
    for tensor in tensors:
        for match in _LAYER.finditer(tensor.name):
            numbers[tensor.name[: match.start()]].add(match[1])
    return max(map(len, numbers.values()), default=0)


def _entries(config: Mapping[str, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, str, Any]]:
    """(path, key, value) of every entry, those of nested sections included."""
    for key, value in config.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            if depth < 8:
                yield from _entries(value, f"{where}.", depth + 1)
        else:
            yield where, str(key), value
