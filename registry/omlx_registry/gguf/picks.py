"""Picks: which rows of a GGUF tensor belong to one of the several MLX parameters that it holds; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pick:
    """Every `step`-th row from `start` to `stop` (None: the end), of each expert's where there are experts."""

    start: int = 0
    stop: int | None = None
    step: int = 1

    def shape(self, shape: tuple[int, ...], by_value: bool) -> tuple[int, ...]:
        """What is left of such a tensor; `by_value`: its last dimension is picked from, else the one before."""
        at = len(shape) - (1 if by_value or len(shape) == 1 else 2)
        return (*shape[:at], len(self._indices(shape[at])), *shape[at + 1 :])

    def rows(self, shape: tuple[int, ...], by_value: bool) -> NDArray[np.int64]:
        """The rows (or values) picked, counted through all experts."""
        at = len(shape) - (1 if by_value or len(shape) == 1 else 2)
        experts = np.arange(math.prod(shape[:at]), dtype=np.int64) * shape[at]
        return (experts[:, None] + np.array(self._indices(shape[at]), np.int64)).reshape(-1)

    def _indices(self, count: int) -> range:
        return range(count)[self.start : self.stop : self.step]
