"""The plan: Ollama's settings as settings of oMLX, with notes about those without an equivalent. Pure."""

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
_PROXY: Final = "oMLX uses it for pulls, too: set it in the environment of `omlx serve`"
_DEVICE: Final = "not supported: MLX uses the default GPU; `--distributed` divides a model over several"
_DIFFERENT: Final = {
    "OLLAMA_FLASH_ATTENTION": "not needed: MLX always uses its fused attention",
    "OLLAMA_KV_CACHE_TYPE": "the KV cache is kept in the model's own precision, and moves to SSD when memory is short",
    "OLLAMA_GPU_OVERHEAD": "use max_process_memory, the memory limit of all models together",
    "OLLAMA_SCHED_SPREAD": "use distributed, which divides a model over several GPUs or machines",
    "OLLAMA_LLM_LIBRARY": "not needed: MLX is the only engine",
    "OLLAMA_VULKAN": "not needed: MLX is the only engine",
    "OLLAMA_IGPU_ENABLE": "not needed: MLX is the only engine",
    "OLLAMA_GO_TEMPLATE": "not needed: oMLX uses the model's Go template if it has one, else its Jinja template",
    "OLLAMA_MAX_TRANSFER_STREAMS": "not needed: oMLX chooses the number of download streams",
    "OLLAMA_NO_CLOUD": "not needed: oMLX has no cloud models",
    "OLLAMA_REMOTES": "not needed: oMLX has no cloud models",
    "OLLAMA_CLOUD_BASE_URL": "not needed: oMLX has no cloud models",
    "OLLAMA_AUTH": "not supported: oMLX does not sign requests; api_key restricts access to this server",
    "OLLAMA_API_KEY": "a variable of clients; to require a key from clients, set api_key",
    "OLLAMA_DEBUG_LOG_REQUESTS": "use log_prompts",
    "OLLAMA_EDITOR": "the interactive session uses EDITOR",
    "OLLAMA_EXPERIMENT": "not supported",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"), _PROXY),
    **dict.fromkeys(
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES",
         "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION"),
        _DEVICE,
    ),
}  # fmt: skip
"""Notes on variables without a setting of their own."""
_REMARKS: Final = {
    "OLLAMA_NUM_PARALLEL": "by default oMLX batches as many requests as memory allows",
    "OLLAMA_HOST": "if other machines can reach this address, set api_key",
}


class MigrationPlan(msgspec.Struct, frozen=True):
    """`values`: new entries of config.toml by setting; `origins`: the source of each; `notes`: for the user."""

    values: dict[str, Any]
    origins: dict[str, str]
    notes: list[str]

    def config(self, existing: str) -> str:
        """The text of config.toml: `existing` unchanged, followed by the new entries."""
        lines = [f"{name} = {_toml(value)}  # Ollama: {self.origins[name]}" for name, value in self.values.items()]
        return (
            existing + ("\n" if existing and not existing.endswith("\n") else "") + "".join(f"{it}\n" for it in lines)
        )


def plan(variables: Iterable[GivenVariable], existing: str) -> MigrationPlan:
    """`existing`: the present text of config.toml, "" if there is none. Raises SettingError if it is invalid TOML."""
    try:
        present = tomllib.loads(existing)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"the config file cannot be read: {error}") from error
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    notes: list[str] = []
    seen: dict[str, GivenVariable] = {}
    for variable in variables:
        first = seen.setdefault(variable.name, variable)
        if first is not variable:
            if first.value != variable.value:
                notes.append(
                    f"{variable.name} = {variable.value} (from {variable.origin}) is overridden by {first.origin}"
                )
            continue
        setting = _HERE.get(variable.name)
        if variable.name == _MODELS:
            notes.append(_about_models(variable))
        elif setting is None:
            notes.append(f"{variable.name}: {_DIFFERENT.get(variable.name, 'oMLX has no such setting')}")
        elif setting.name in present:
            notes.append(f"{variable.name}: config.toml already sets {setting.name}, which is kept")
        else:
            try:
                value = _value(variable, setting.name)
            except SettingError as error:
                notes.append(f"{variable.name} is skipped: {error}")
                continue
            if value == setting.default:
                continue
            values[setting.name], origins[setting.name] = _written(value), variable.origin
            if remark := _REMARKS.get(variable.name):
                notes.append(f"{variable.name}: {remark}")
    return MigrationPlan(values, origins, notes)


def _value(variable: GivenVariable, name: str) -> Any:
    """The variable's value as Ollama reads it. Raises SettingError."""
    loaded: Settings = load({}, {variable.name: variable.value}, Path("/nonexistent")).settings
    return getattr(loaded, name)


def _written(value: Any) -> Any:
    """The value for config.toml: an infinite duration is -1."""
    return -1 if value == math.inf else value


def _about_models(variable: GivenVariable) -> str:
    text = f"OLLAMA_MODELS = {variable.value}: `omlx import --from ollama` converts its models into oMLX's own folder"
    if variable.origin == "the environment":
        text += "; oMLX uses this variable for its own folder, too: unset it, or set OMLX_MODELS"
    return text


def _toml(value: Any) -> str:
    """TOML of strings, numbers, booleans and lists of strings: the same text as JSON."""
    return json.dumps(value, ensure_ascii=False)
