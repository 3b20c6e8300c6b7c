"""The load check: whether a model folder loads, found out in a worker by loading it lazily.

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
"""Characters of a library's error that are shown: it may list thousands of tensors."""
_OTHER_SENSES: Final = ("vision_config", "audio_config", "vit_config", "thinker_config", "vision_tower")


def check_loads(folder: Path) -> None:
    """Raises InvalidModel with a sentence for the user where the model in `folder` does not load."""
    if not (folder / "config.json").is_file():
        return  # It is no model: `accept` says so.
    with inert_folder(folder) as path:
        config = read_object(path / "config.json", "config.json")
        if any(config.get(key) for key in _OTHER_SENSES):
            return
        with limits_kept():
            from mlx_lm.utils import MODEL_REMAPPING, load_model
        if not _is_network(config, MODEL_REMAPPING):
            return
        try:
            load_model(path, lazy=True)
        except MemoryError:
            raise
        except Exception as error:  # whatever a network raises, it is not built
            raise InvalidModel(_sentence(config, error)) from error


def _is_network(config: Mapping[str, Any], other_names: Mapping[str, str]) -> bool:
    kind = config.get("model_type")
    name = other_names.get(kind, kind) if isinstance(kind, str) else ""
    return bool(name) and importlib.util.find_spec(f"mlx_lm.models.{name}") is not None


def _sentence(config: Mapping[str, Any], error: Exception) -> str:
    said = re.sub(r"\s+", " ", without_inert_folder(str(error))).strip().rstrip(".")
    if isinstance(error, KeyError):
        said = f"{said} is missing"
    if len(said) > _LONGEST:
        said = f"{said[:_LONGEST].rpartition(' ')[0]} ..."
    kind = str(config.get("model_type"))[:100]
    return f"the weights and config.json make no {kind} model that loads: {said or type(error).__name__}"
