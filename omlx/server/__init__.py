"""The HTTP server. `serve` is what `omlx serve` runs; importing this package costs nothing."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from omlx.settings import Loaded

if TYPE_CHECKING:
    from omlx.server.app import Balancer


def serve(loaded: Loaded, balancer: Balancer | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code. Problems at start are one sentence on stderr."""
    # A fifth of the start would go into looking for garbage among modules; `process` switches it on again.
    gc.disable()
    from omlx.server.process import run  # what the start consists of

    return run(loaded.settings, balancer)
