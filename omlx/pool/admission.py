"""Does a model fit? Estimates before a load, from the files alone; the pool replaces them by measured values.

The *estimate* of a model is its weights as the loader will hold them plus the KV of one full context. The *budget* is
what all models together may use. Pure arithmetic: the machine is described by a `Machine`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil

from omlx.folders import nearest_existing
from omlx.messages.load_spec import RUNNER_OVERHEAD
from omlx.settings import Settings
from omlx.units import parse_size

GIB = 1 << 30
RESERVE = 8_000_000_000
"""Bytes that "auto" leaves to the rest of the machine."""
_HOT_PART_OF_GPU = 20
"""Of a GPU's memory, for cached prefixes: it is dearer than RAM, and the SSD is behind it."""
_MOST_COLD = 100_000_000_000
"""Bytes on disk that "auto" gives to cached prefixes at most."""
MOST_CONCURRENT = 256
"""Requests of one model that run at once where the settings say nothing: as many of these as their KV fits memory."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What models may live in. Bytes."""

    ram: int
    available: int
    """RAM that is free now."""
    device: Literal["cpu", "metal", "cuda"] = "cpu"
    device_memory: int = 0
    """What the GPU may use: its own memory, or its share of the RAM on Apple silicon; 0 without a GPU."""
    server: int = 0
    """What the server's own process takes."""

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def base(self) -> int:
        """The memory that caps are a part of."""
        return self.device_memory if self.device == "cuda" else self.ram

    def free(self, held: int) -> int:
        """Bytes for all models together, those that hold `held` now included."""
        return self.device_memory if self.gpu else self.available + held


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a model takes: `least` in the smallest form that runs, `likely` in the form the loader prefers."""

    least: int
    likely: int


def machine(device: str = "cpu", device_memory: int = 0) -> Machine:
    """This machine as it is now; a container's memory limit counts as its RAM."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    limit = _container_limit()
    if limit is not None and limit < total:
        total, available = limit, min(available, limit)
    if device_memory and device in {"metal", "cuda"}:
        kind: Literal["metal", "cuda"] = "metal" if device == "metal" else "cuda"
        return Machine(ram=total, available=available, device=kind, device_memory=device_memory, server=_own_memory())
    return Machine(ram=total, available=available, server=_own_memory())


def _own_memory() -> int:
    return int(psutil.Process().memory_info().rss)


def _container_limit() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(file).read_text())
        except (OSError, ValueError):
            continue
    return None


def parse_cap(text: str, machine: Machine) -> int:
    """Bytes of a memory cap: "auto", a percentage, or a size.

    "auto" leaves 8 GB of RAM to the rest of the machine, but never takes less than half; of a GPU's own memory it
    leaves a twentieth.
    """
    text = text.strip()
    if text in {"", "auto"}:
        if machine.device == "cuda":
            return machine.device_memory * 19 // 20
        return max(machine.ram - RESERVE, machine.ram // 2)
    if text.endswith("%"):
        return int(machine.base * float(text[:-1]) / 100)
    return parse_size(text)


def budget(machine: Machine, *, cap: int, held: int) -> int:
    """Bytes for all models together, those that hold `held` now included, under max_process_memory `cap`."""
    server = 0 if machine.device == "cuda" else machine.server
    return max(0, min(cap - server, machine.free(held)))


def default_contexts(machine: Machine) -> list[int]:
    """Contexts in tokens where nobody asked for one, the best first: by the GPU's memory as Ollama does, else 4096."""
    if machine.device_memory < 23 * GIB:
        return [4096]
    return [32768, 4096] if machine.device_memory < 47 * GIB else [262144, 32768, 4096]


def hot_bytes(setting: str, ram: int, gpu_memory: int = 0) -> int:
    """Bytes of RAM for cached prefixes; "auto" follows the machine. `gpu_memory`: of a GPU with memory of its own,
    where cached prefixes are held; 0: there is none."""
    if setting == "auto" and gpu_memory:
        return gpu_memory // _HOT_PART_OF_GPU
    if setting == "auto":
        setting = "10%" if ram < 24_000_000_000 else "20%" if ram < 128_000_000_000 else "30%"
    return parse_cap(setting, Machine(ram=ram, available=ram)) if setting else 0


def cold_bytes(settings: Settings) -> int:
    """Bytes on disk for cached prefixes of all models; 0: none."""
    setting = settings.paged_ssd_cache_max_size or "auto"
    if setting != "auto" and not setting.endswith("%"):
        return parse_size(setting)
    try:
        volume = shutil.disk_usage(nearest_existing(Path(settings.paged_ssd_cache_dir))).total
    except OSError:
        return 0
    if setting == "auto":
        return min(volume // 10, _MOST_COLD)
    return int(volume * float(setting[:-1]) / 100)


def read_config(folder: str) -> dict[str, Any]:
    """The model's config.json; empty where it cannot be read, for then the loader will say so."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def kv_bytes_per_token(config: Mapping[str, Any], element: int = 2) -> int:
    """Bytes of keys and values per token, `element` bytes each, were all layers full attention; 0 when unknown."""
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    layers, heads, hidden = (_int(text, k) for k in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    kv_heads = _int(text, "num_key_value_heads") or heads
    head = _int(text, "head_dim") or (hidden // heads if heads else 0)
    return 2 * layers * kv_heads * head * element


def bits_per_weight(config: Mapping[str, Any]) -> float:
    """How wide the stored weights are: from the quantization entry, else from the stored type."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if isinstance(quantization, Mapping) and _int(quantization, "bits"):
        bits, group = _int(quantization, "bits"), _int(quantization, "group_size") or 64
        return bits + 32 / group
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return 32.0 if "32" in dtype else 16.0


def estimate(*, size: int, config: Mapping[str, Any], context: int, weights: str, gpu: bool) -> Estimate:
    """Memory of a model whose files have `size` bytes. `weights` is the setting; without a GPU "auto" means float32."""
    stored = bits_per_weight(config)
    if weights == "float32" or (weights in {"auto", "dequantized"} and not gpu):
        held = 32.0
    elif weights in {"bfloat16", "float16", "dequantized"}:
        held = 16.0
    else:
        held = stored
    kv = kv_bytes_per_token(config, element=2 if gpu else 4) * context
    likely = int(size * held / stored) + kv + RUNNER_OVERHEAD
    smallest = stored if weights == "auto" else held
    return Estimate(least=int(size * min(held, smallest) / stored) + RUNNER_OVERHEAD, likely=likely)


def refusal(need: int, *, available: int, cap: int, model_cap: int | None) -> str | None:
    """Why a model of `need` bytes can never be loaded here, in words clients search for; None where it can."""
    if model_cap is not None and need > model_cap:
        return f"model requires more system memory ({gib(need)}) than max_model_memory allows ({gib(model_cap)})"
    if need > cap:
        return f"model requires more system memory ({gib(need)}) than max_process_memory allows ({gib(cap)})"
    if need > available:
        return f"model requires more system memory ({gib(need)}) than is available ({gib(available)})"
    return None


def gib(count: int) -> str:
    """ "1.5 GiB"; below 1 GiB in MiB, where tenths of a GiB would say nothing."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def _int(mapping: Mapping[str, Any], key: str) -> int:
    value = mapping.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
