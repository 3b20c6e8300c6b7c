"""The load check: a worker loads a model folder lazily to see whether it loads.

The network is built as the engine does it and takes the weights strictly, by name and shape; nothing is computed and no
weight is read. Only what mlx-lm loads is checked: models that see and encoders are opened by others.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omlx_registry.errors import InvalidModel
from omlx_registry.open_files import limits_kept
from omlx_registry.sanitized_folder import inert_folder, read_object, without_inert_folder

_LONGEST: Final = 400
"""Characters shown of a library's error, which may list thousands of tensors."""
_OTHER_SENSES: Final = ("vision_config", "audio_config", "vit_config", "thinker_config", "vision_tower")


def prepare() -> None:
    """Import what checks need: a second or more."""
    with limits_kept():
        import mlx_lm.utils  # noqa: F401  # here, as only a process that makes checks imports MLX


def check_loads(folder: Path) -> None:
    """Raises InvalidModel with a message for the user if the model in `folder` does not load."""
    if not (folder / "config.json").is_file():
        return  # Not a model: `accept` reports it.
    with inert_folder(folder) as path:
        config = read_object(path / "config.json", "config.json")
        if any(config.get(key) for key in _OTHER_SENSES):
            return
        prepare()
        from mlx_lm.utils import MODEL_REMAPPING, load_model

        if not _is_network(config, MODEL_REMAPPING):
            return
        try:
            load_model(path, lazy=True)
        except MemoryError:
            raise
        except Exception as error:  # a network may raise anything
            raise InvalidModel(_sentence(config, error)) from error


def _is_network(config: Mapping[str, Any], other_names: Mapping[str, str]) -> bool:
    kind = config.get("model_type")
    name = other_names.get(kind, kind) if isinstance(kind, str) else ""
    return bool(name) and importlib.util.find_spec(f"mlx_lm.models.{name}") is not None


def _sentence(config: Mapping[str, Any], error: Exception) -> str:
    message = re.sub(r"\s+", " ", without_inert_folder(str(error))).strip().rstrip(".")
    if isinstance(error, KeyError):
        message = f"{message} is missing"
    if len(message) > _LONGEST:
        message = f"{message[:_LONGEST].rpartition(' ')[0]} ..."
    kind = str(config.get("model_type"))[:100]
    return f"the {kind} model of these weights and config.json does not load: {message or type(error).__name__}"
