"""*Vectors* on their way from a runner to a client: float32 bytes there, JSON numbers here.

A request for thousands of texts is answered with millions of numbers, which take seconds to write. So that is done
beside the event loop, and vector by vector: nothing holds the interpreter's lock for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec

_T = TypeVar("_T")
_FEW = 20_000
"""Bytes of all vectors whose numbers are written at once on the event loop: some milliseconds."""


def json_numbers(vector: bytes) -> list[float]:
    """A vector as JSON that is written already. The values are float32: nine digits say all of them."""
    values = memoryview(vector).cast("f")
    return cast(list[float], msgspec.Raw(msgspec.json.encode([float(f"{value:.9g}") for value in values])))


async def written(work: Callable[[], _T], vectors: Sequence[bytes]) -> _T:
    """What `work` makes of `vectors`, beside the event loop where they are many."""
    return await asyncio.to_thread(work) if sum(map(len, vectors)) > _FEW else work()
