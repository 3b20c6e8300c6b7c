"""A long row of a causal network, read *in parts*: each sees those before it through a KV cache, like prompts.

So a long text to embed keeps nobody waiting for longer than one part takes, whatever else the same process serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import mlx.core as mx

from omlx.engine import caches

if TYPE_CHECKING:
    from numpy.typing import NDArray

Pooling = Literal["mean", "cls", "max", "lasttoken"]


class Parts:
    """`trunk` maps tokens to hidden states; `finish` makes the row's numbers of its pooled state [1, width]."""

    def __init__(
        self,
        trunk: Any,
        cache: caches.Caches,
        tokens: list[int],
        pooling: Pooling,
        finish: Callable[[mx.array], NDArray[Any]],
    ) -> None:
        self._trunk = trunk
        self._cache = cache
        self._tokens = tokens
        self._pooling = pooling
        self._finish = finish
        self._at = 0
        self._state: mx.array | None = None

    @property
    def left(self) -> int:
        """Tokens that are still to be read."""
        return len(self._tokens) - self._at

    def read(self, count: int) -> NDArray[Any] | None:
        """Read the next `count` tokens; at the end the numbers, shape (1, numbers per row)."""
        part = self._tokens[self._at : self._at + count]
        caches.make_room(self._cache, len(part))
        hidden = self._trunk(mx.array([part]), cache=self._cache).astype(mx.float32)
        self._at += len(part)
        self._state = self._pooled(hidden)
        mx.eval(self._state, *caches.arrays(self._cache))
        if self.left:
            return None
        return self._finish(self._state / len(self._tokens) if self._pooling == "mean" else self._state)

    def _pooled(self, hidden: mx.array) -> mx.array:
        """What is kept of the states so far, with those of the newest part [1, tokens, width]."""
        before = self._state
        match self._pooling:
            case "lasttoken":
                return hidden[:, -1]
            case "cls":
                return hidden[:, 0] if before is None else before
            case "max":
                most = hidden.max(axis=1)
                return most if before is None else mx.maximum(before, most)
            case "mean":
                total = hidden.sum(axis=1)
                return total if before is None else before + total
