"""The JSON files of a model folder: how they are read, what is refused in them, and what no loader gets to see. Pure.

The files come from anybody, and model libraries act on some of their keys: they import a Python file that is named
there, or look up a class. Such a key is either *refused* (the model cannot run without the code) or *inert*: dropped
before a loader reads the file, because the model runs without it. Real repositories carry `auto_map` beside an
architecture that needs no code, so that key is dropped and not refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import msgspec

from omlx_registry.errors import InvalidModel

MAX_CONFIG_BYTES: Final = 64 << 20
"""Of one JSON file other than the tokenizer's. The largest known, a list of added tokens, has 10 MB."""
_BOM: Final = b"\xef\xbb\xbf"
_DROPPED: Final = frozenset(
    {"auto_map", "custom_pipelines", "trust_remote_code", "custom_module", "model_file", "custom_generate",
     "_name_or_path", "name_or_path", "pretrained_model_name_or_path", "fast_tokenizer_files", "gguf_file"}
)  # fmt: skip
_FILE_KEY: Final = re.compile(r"_files?\Z")
_CLASS_NAMES: Final = {
    "tokenizer_class": re.compile(r"\w*(?:Tokenizer|TokenizerFast|TokenizerPy|Backend)\Z", re.ASCII),
    "processor_class": re.compile(r"\w*Processor(?:Fast|Pil)?\Z", re.ASCII),
    "image_processor_type": re.compile(r"\w*(?:Processor|FeatureExtractor)(?:Fast|Pil)?\Z", re.ASCII),
    "feature_extractor_type": re.compile(r"\w*(?:Processor|FeatureExtractor)(?:Fast|Pil)?\Z", re.ASCII),
    "video_processor_type": re.compile(r"\w*Processor(?:Fast|Pil)?\Z", re.ASCII),
}
"""Keys that name a class of transformers, and the names that are classes of that kind."""
_MODULE_NAMES: Final = {"chat_template_type", "tool_parser_type"}
"""Keys that mlx-lm makes the name of one of its modules of."""
_MODEL_TYPE: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[0-9][A-Za-z0-9_-]*)*\Z")
"""It becomes the name of a module of mlx-lm or mlx-vlm: no other module may be meant."""
_TOKEN_DATA: Final = frozenset({"tokenizer.json", "vocab.json", "added_tokens.json", "tekken.json"})
"""Files whose keys may be tokens."""


def decode_object(data: bytes, name: str) -> dict[str, Any]:
    """The JSON object in a file called `name`; a byte order mark and Python's `Infinity`, `NaN` are understood.

    Raises InvalidModel.
    """
    data = data.removeprefix(_BOM)
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            value = json.loads(data)  # knows Infinity and NaN, which Python's json writes
        except (ValueError, RecursionError):
            raise InvalidModel(f"{name} is no JSON object: {error}") from error
        if not isinstance(value, dict):
            raise InvalidModel(f"{name} is no JSON object: {error}") from error
        return value


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse a config.json that makes a loader run code. Raises InvalidModel with a sentence for the user."""
    if config.get("model_file"):
        raise InvalidModel(
            "config.json names a Python file (model_file) that would have to be run: models that bring their own code "
            "are not taken; use a conversion for an architecture that mlx-lm knows"
        )
    for section in ("", "text_config", "llm_config", "language_config", "vision_config", "audio_config"):
        inner = config.get(section) if section else config
        kind = inner.get("model_type") if isinstance(inner, Mapping) else None
        if kind is not None and not (isinstance(kind, str) and len(kind) <= 100 and _MODEL_TYPE.match(kind)):
            raise InvalidModel(f"config.json: {str(kind)[:100]!r} is no model_type")


def check_shards(index: Mapping[str, Any]) -> list[str]:
    """The weight files that model.safetensors.index.json names. Raises InvalidModel where one is outside the folder."""
    shards = index.get("weight_map", {})
    if not isinstance(shards, Mapping) or not all(isinstance(name, str) for name in shards.values()):
        raise InvalidModel("model.safetensors.index.json is no index: weight_map must name a file for each tensor")
    names = sorted(set(shards.values()))
    for name in names:
        if "/" in name or "\\" in name or not name.endswith(".safetensors"):
            raise InvalidModel(f"model.safetensors.index.json names a file outside the model: {name[:200]!r}")
    return names


def has_inert_form(name: str) -> bool:
    """Whether the file of this name is one that `inert` is for: configuration, not data."""
    return name.endswith(".json") and PurePosixPath(name).name not in _TOKEN_DATA and not name.endswith(".index.json")


def inert(value: Any) -> Any:
    """The content of a configuration file without what makes a loader import code or open files elsewhere."""
    if isinstance(value, Mapping):
        return {key: inert(inner) for key, inner in value.items() if not _acts(str(key), inner)}
    return [inert(inner) for inner in value] if isinstance(value, list) else value


def _acts(key: str, value: Any) -> bool:
    if key in _DROPPED:
        return True
    if not isinstance(value, str):
        return False
    if key in _CLASS_NAMES:
        return not _CLASS_NAMES[key].match(value)
    if key in _MODULE_NAMES:
        return not value.isidentifier()
    return bool(_FILE_KEY.search(key)) or (key in {"manifest", "model_path", "path"} and _leaves(value))


def _leaves(path: str) -> bool:
    """Whether a path leads out of the folder it stands in."""
    pure = PurePosixPath(path.replace("\\", "/"))
    return pure.is_absolute() or ".." in pure.parts or path.startswith("~")
