"""The limit of open files, kept as it is while others are imported."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limits_kept() -> Iterator[None]:
    """Import mlx_lm within: it sets this process's limit of open files to a fixed pair (2048, 4096), which is less than
    the server has asked for, and an error where less is allowed."""
    set_limits = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        yield
    finally:
        resource.setrlimit = set_limits
