"""The process that checks whether new models load (`python -m omlx.runner.load_check`), started by the registry.

It opens a model as a runner does; see `omlx_registry.load_check_worker` for what it talks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from omlx_registry import load_check, load_check_worker


def prepare() -> None:
    load_check.prepare()
    import omlx.engine.lazy_load  # noqa: F401  # after the limit of open files is guarded against mlx_lm's import


def open_model(folder: Path, capabilities: Sequence[str]) -> None:
    prepare()
    from omlx.engine import lazy_load  # as above

    lazy_load.open_model(folder, capabilities)


if __name__ == "__main__":
    load_check_worker.main(open_model, prepare)
    # No waiting for threads or for MLX to tidy up.
    os._exit(0)
