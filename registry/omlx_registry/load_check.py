"""The load check: a model folder is loaded lazily to see whether it loads; nothing is computed and no weight is read.

How a model is loaded is the caller's choice. `open_text_model` knows the networks of mlx-lm: they take the weights
strictly, by name and shape.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from omlx_registry.capabilities import derive_capabilities
from omlx_registry.errors import InvalidModel
from omlx_registry.metadata import POOLING_FILES
from omlx_registry.open_files import limits_kept
from omlx_registry.sanitized_folder import inert_folder, read_object, without_inert_folder
from omlx_registry.templates import ChatTemplates, CheckChat, chat_templates, special_tokens

_LONGEST: Final = 400
"""Characters shown of a library's error, which may list thousands of tensors."""
_OTHER_MODALITIES: Final = ("vision_config", "audio_config", "vit_config", "thinker_config", "vision_tower")

OpenModel = Callable[[Path, Sequence[str]], None]
"""Loads the model of a folder lazily, as what its capabilities say that it is; raises anything where it does not load.

The folder is an inert one with a config.json.
"""


def prepare() -> None:
    """Import what checks need: a second or more."""
    with limits_kept():
        import mlx_lm.utils  # noqa: F401  # here, as only a process that makes checks imports MLX


def check_loads(folder: Path, stated: Sequence[str], open_model: OpenModel) -> None:
    """Raises InvalidModel with a message for the user if the model in `folder` does not load.

    `stated`: the capabilities that its maker states.
    """
    if not (folder / "config.json").is_file():
        return  # Not a model: `accept` reports it.
    with inert_folder(folder) as path:
        config = read_object(path / "config.json", "config.json")
        capabilities = _capabilities(path, config, stated)
        try:
            open_model(path, capabilities)
        except (InvalidModel, MemoryError):
            raise
        except Exception as error:  # a network may raise anything
            raise InvalidModel(_sentence(config, error)) from error


def check_renders(folder: Path, check_chat: CheckChat) -> None:
    """Raises InvalidModel with a message for the user if the chat templates of the model in `folder` do not render."""
    templates = _templates(folder)
    if templates.default is None:
        return
    path = folder / "tokenizer_config.json"
    names = special_tokens(read_object(path, path.name) if path.is_file() else {})
    try:
        check_chat(templates, names)
    except ValueError as error:
        raise InvalidModel(str(error)) from error


def open_text_model(folder: Path, capabilities: Sequence[str]) -> None:
    """Load what mlx-lm loads; vision models and encoders are not opened."""
    config = read_object(folder / "config.json", "config.json")
    if any(config.get(key) for key in _OTHER_MODALITIES):
        return
    prepare()
    from mlx_lm.utils import MODEL_REMAPPING, load_model

    if _is_network(config, MODEL_REMAPPING):
        load_model(folder, lazy=True)


def _capabilities(folder: Path, config: Mapping[str, Any], stated: Sequence[str]) -> list[str]:
    """The capabilities of the model, as far as they decide how it is loaded."""
    template = _templates(folder).text
    pooling = any((folder / name).is_file() for name in POOLING_FILES)
    return derive_capabilities(config, template=None, chat_template=template or None, pooling=pooling, explicit=stated)


def _templates(folder: Path) -> ChatTemplates:
    def read(name: str) -> str | None:
        file = folder / name
        return file.read_text("utf-8", "replace") if file.is_file() else None

    try:
        return chat_templates(read)
    except ValueError as error:
        raise InvalidModel(str(error)) from error


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
