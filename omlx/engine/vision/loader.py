"""Opening a model that sees: which folders hold one, and what mlx-vlm makes of them.

mlx-vlm takes seconds to import, so only a runner that loads such a model does it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from omlx.engine.jsonfile import read_json
from omlx.engine.vision.families import FAMILIES
from omlx.engine.vision.vision import Vision

SETTINGS = ("preprocessor_config.json", "processor_config.json")
"""Files of which a model that sees has at least one."""


def sees(path: Path) -> bool:
    """Whether the folder holds a model whose vision is supported; others may run as text models, by mlx-lm."""
    config = read_json(path / "config.json")
    if config.get("model_type") not in FAMILIES or not config.get("vision_config"):
        return False
    return any((path / name).exists() for name in SETTINGS) and any(map(_is_of_tower, _weight_names(path)))


def _is_of_tower(name: str) -> bool:
    return "vision" in name or "visual" in name


def _weight_names(path: Path) -> list[str]:
    """The names of a model's tensors. Some conversions leave the vision tower out, and the rest is a text model."""
    listed = read_json(path / "model.safetensors.index.json").get("weight_map")
    if isinstance(listed, dict):
        return list(listed)
    names: list[str] = []
    for file in sorted(path.glob("*.safetensors")):
        with contextlib.suppress(OSError, SafetensorError), safe_open(file, framework="numpy") as tensors:
            names += tensors.keys()
    return names


def open_network(path: Path) -> tuple[Any, dict[str, Any]]:
    """mlx-vlm's network with lazy weights, and config.json. Raises what mlx-vlm raises."""
    from mlx_vlm.utils import load_model

    return load_model(path, lazy=True), read_json(path / "config.json")


def open_vision(
    path: Path, network: Any, config: dict[str, Any], tokenizer: Any, *, salt: str, max_bytes: int
) -> Vision:
    """What sees for a network whose weights are in memory. `salt` names the weights and how they are held."""
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(path, backend="pil")
    family = FAMILIES[config["model_type"]](network, processor, tokenizer.convert_ids_to_tokens, config)
    settings = json.dumps({name: read_json(path / name) for name in SETTINGS}, sort_keys=True)
    return Vision(family, salt=hashlib.sha256(f"{salt} {settings}".encode()).digest(), max_bytes=max_bytes)


def add_chat_template(path: Path, tokenizer: Any) -> None:
    """Models that see often keep their chat template beside the tokenizer's files, where nobody looks for it."""
    if tokenizer.chat_template:
        return
    for name in ("chat_template.json", "processor_config.json"):
        template = read_json(path / name).get("chat_template")
        if isinstance(template, str):
            tokenizer.chat_template = template
            return
