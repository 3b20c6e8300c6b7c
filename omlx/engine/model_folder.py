"""The folder that model libraries are given: the inert form of a model's own (see `omlx_registry.sanitized_folder`).

No loader of this process opens `LoadSpec.path` itself, so nothing in it is ever run. The setting `trust_remote_code`
is the one exception.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from omlx_registry import InvalidModel
from omlx_registry.sanitized_folder import inert_folder


@contextlib.contextmanager
def loadable(path: str, *, trust_remote_code: bool) -> Iterator[Path]:
    """The folder to load the model at `path` from, for as long as the context lasts. Raises InvalidModel, OSError."""
    with contextlib.ExitStack() as stack:
        yield Path(path) if trust_remote_code else stack.enter_context(inert_folder(Path(path)))


__all__ = ["InvalidModel", "loadable"]
