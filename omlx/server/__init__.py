"""The HTTP server. `serve` is what `omlx serve` runs; importing this package costs nothing."""

from __future__ import annotations

import gc

from omlx.settings import Loaded


def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code. Problems at start are one sentence on stderr."""
    # A fifth of the start would go into looking for garbage among modules; `process` switches it on again.
    gc.disable()
    from omlx.server.process import run

    return run(loaded.settings)
