"""Picks: which rows of a GGUF tensor make up an MLX parameter, and in which order; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TensorPick:
    """Rows by their numbers, of each expert where there are experts; None: all, in order."""

    indices: Indices
    flat: bool = False
    """The rows are counted through all experts, and the result has none."""

    def through_experts(self) -> TensorPick:
        return TensorPick(self.indices, flat=True)

    @staticmethod
    def every(start: int, stop: int, step: int = 1) -> TensorPick:
        return TensorPick(np.arange(start, stop, step, dtype=np.int64))

    def shape(self, shape: tuple[int, ...], by_value: bool) -> tuple[int, ...]:
        """What is left of such a tensor; `by_value`: its last dimension is picked from, else the one before."""
        if self.flat:
            return (len(self.indices), shape[-1])
        at = _dimension(shape, by_value)
        return (*shape[:at], len(self.indices), *shape[at + 1 :])

    def rows(self, shape: tuple[int, ...], by_value: bool) -> Indices:
        """The rows (or values) picked, counted through all experts. Raises IndexError where there are too few."""
        if self.flat:
            shape = (math.prod(shape[:-1]), shape[-1])
        at = _dimension(shape, by_value)
        if len(self.indices) and self.indices.max() >= shape[at]:
            raise IndexError
        experts = np.arange(math.prod(shape[:at]), dtype=np.int64) * shape[at]
        found: Indices = (experts[:, None] + self.indices).reshape(-1)
        return found


def grouped(groups: int, each: int, width: int, start: int = 0) -> Indices:
    """The numbers of rows, from `start`, that bring the heads of each group together.

    Of `groups` groups with `each` heads of `width` rows a file has first the first head of every group, then the second
    of every group.
    """
    order = np.arange(groups * each * width, dtype=np.int64).reshape(each, groups, width)
    return start + order.swapaxes(0, 1).reshape(-1)


def _dimension(shape: tuple[int, ...], by_value: bool) -> int:
    return len(shape) - (1 if by_value or len(shape) == 1 else 2)
