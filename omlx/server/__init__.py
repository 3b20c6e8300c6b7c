"""The HTTP server. `serve` is what `omlx serve` runs; importing this package costs nothing."""

from __future__ import annotations

from omlx.settings import Loaded


def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code. Problems at start are one sentence on stderr."""
    from omlx.server.process import run

    return run(loaded.settings)
