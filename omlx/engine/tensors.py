"""The two crossings between host and device: starting work, and reading its result."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


def launch(*arrays: mx.array) -> None:
    """Start computing, without waiting."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def read(array: mx.array) -> Any:
    """The values as (nested) Python lists; waits for the device."""
    return array.tolist()
