"""The process that checks whether new models load (`python -m omlx.runner.load_check`), started by the registry.

It opens a model as a runner does; see `omlx_registry.load_check_worker` for its protocol.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from omlx_registry import load_check, load_check_worker
from omlx_registry.templates import ChatTemplates

from omlx.runner.rendering import Renderers
from omlx.runner.template_check import check_chat_templates

_renderers: Renderers | None = None


def prepare() -> None:
    load_check.prepare()
    import omlx.engine.lazy_load  # noqa: F401  # after the limit of open files is guarded against mlx_lm's import


def open_model(folder: Path, capabilities: Sequence[str]) -> None:
    prepare()
    from omlx.engine import lazy_load  # as above

    lazy_load.open_model(folder, capabilities)


def check_chat(templates: ChatTemplates, names: Mapping[str, str]) -> None:
    """As when a model is created; the process that renders is kept for the next check."""
    global _renderers
    _renderers = _renderers or Renderers()
    check_chat_templates(templates, names, _renderers)


if __name__ == "__main__":
    load_check_worker.main(open_model, prepare, check_chat)
    # Do not wait for threads or for the cleanup of MLX.
    os._exit(0)
