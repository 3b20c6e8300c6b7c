"""The plan: which settings of oMLX an Ollama's settings become, and what has no equivalent. Pure."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx.migration.sources import GivenVariable
from omlx.settings import SettingError, Settings, describe, load

_HERE: Final = {setting.kind.ollama: setting for setting in describe() if setting.kind.ollama}
_MODELS: Final = "OLLAMA_MODELS"
_PROXY: Final = "oMLX pulls through it, too: set it where oMLX is started"
_DEVICE: Final = "oMLX knows it not: MLX uses the GPU that there is; `--distributed` divides a model over several"
_DIFFERENT: Final = {
    "OLLAMA_FLASH_ATTENTION": "not needed: MLX always uses its fused attention",
    "OLLAMA_KV_CACHE_TYPE": "the KV cache is kept in the model's own precision, and moves to SSD when memory is short",
    "OLLAMA_GPU_OVERHEAD": "use max_process_memory, the most that all models together may take",
    "OLLAMA_SCHED_SPREAD": "use distributed, which divides a model over several GPUs or machines",
    "OLLAMA_LLM_LIBRARY": "there is one engine, MLX",
    "OLLAMA_VULKAN": "there is one engine, MLX",
    "OLLAMA_IGPU_ENABLE": "there is one engine, MLX",
    "OLLAMA_GO_TEMPLATE": "a Go template is used where the model has one, else its Jinja template",
    "OLLAMA_MAX_TRANSFER_STREAMS": "downloads choose it themselves",
    "OLLAMA_NO_CLOUD": "not needed: oMLX has no cloud models",
    "OLLAMA_REMOTES": "not needed: oMLX has no cloud models",
    "OLLAMA_CLOUD_BASE_URL": "not needed: oMLX has no cloud models",
    "OLLAMA_AUTH": "requests are signed for no one: see api_key for who may call",
    "OLLAMA_API_KEY": "clients send it; for a key that callers must show, set api_key",
    "OLLAMA_DEBUG_LOG_REQUESTS": "use log_prompts",
    "OLLAMA_EDITOR": "the interactive session uses EDITOR",
    "OLLAMA_EXPERIMENT": "it has no meaning here",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"), _PROXY),
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES",
         "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION"),
        _DEVICE,
    ),
}  # fmt: skip
"""What a user has to know of variables that are no setting here."""
_REMARKS: Final = {
    "OLLAMA_NUM_PARALLEL": "without it oMLX batches as many requests as memory allows",
    "OLLAMA_HOST": "where it is not this machine alone, see api_key for who may call",
}


class MigrationPlan(msgspec.Struct, frozen=True):
    """`values`: what config.toml gets, by setting; `origins`: where each stood; `notes`: what a user has to know."""

    values: dict[str, Any]
    origins: dict[str, str]
    notes: list[str]

    def config(self, existing: str) -> str:
        """The text of config.toml: `existing`, and behind it what it does not have. Its own settings stay."""
        lines = [f"{name} = {_toml(value)}  # Ollama: {self.origins[name]}" for name, value in self.values.items()]
        return (
            existing + ("\n" if existing and not existing.endswith("\n") else "") + "".join(f"{it}\n" for it in lines)
        )


def plan(found: Iterable[GivenVariable], existing: str) -> MigrationPlan:
    """`existing`: the text of config.toml so far, "" where there is none. Raises SettingError where it is no TOML."""
    try:
        present = tomllib.loads(existing)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"the config file cannot be read: {error}") from error
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    seen: dict[str, GivenVariable] = {}
    for given in found:
        first = seen.setdefault(given.variable, given)
        if first is not given:
            if first.value != given.value:
                notes.append(f"{given.variable} = {given.value} (from {given.origin}) counts less than {first.origin}")
            continue
        setting = _HERE.get(given.variable)
        if given.variable == _MODELS:
            notes.append(_about_models(given))
        elif setting is None:
            notes.append(f"{given.variable}: {_DIFFERENT.get(given.variable, 'oMLX has no such setting')}")
        elif setting.name in present:
            notes.append(f"{given.variable}: config.toml sets {setting.name} already, which stays")
        else:
            try:
                value = _value(given, setting.name)
            except SettingError as error:
                notes.append(f"{given.variable} is left out: {error}")
                continue
            if value == setting.default:
                continue
            values[setting.name], origins[setting.name] = _written(value), given.origin
            if remark := _REMARKS.get(given.variable):
                notes.append(f"{given.variable}: {remark}")
    return MigrationPlan(values, origins, notes)


def _value(given: GivenVariable, name: str) -> Any:
    """The variable's value as Ollama reads it. Raises SettingError."""
    loaded: Settings = load({}, {given.variable: given.value}, Path("/nonexistent")).settings
    return getattr(loaded, name)


def _written(value: Any) -> Any:
    """As config.toml can hold it: an endless duration is -1."""
    return -1 if value == math.inf else value


def _about_models(given: GivenVariable) -> str:
    text = f"OLLAMA_MODELS = {given.value}: `omlx import --from ollama` converts what is there into oMLX's own folder"
    if given.origin == "the environment":
        text += "; oMLX takes this variable for its own folder, too: unset it, or set OMLX_MODELS"
    return text


def _toml(value: Any) -> str:
    """TOML of texts, numbers, truth values and lists of texts, which is JSON's."""
    return json.dumps(value, ensure_ascii=False)
