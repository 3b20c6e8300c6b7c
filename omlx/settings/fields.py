"""The fields: every setting with its type, default, description and what its text forms need."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec
import platformdirs

DEFAULT_PORT = 11434


class SettingKind(msgspec.Struct, frozen=True):
    """What a field needs beyond its type: Ollama's spelling and a parser for the text forms."""

    ollama: str | None = None
    parse: Literal[
        "text", "keep_alive", "duration", "size", "host", "list", "path", "memory", "keep_alives", "watts"
    ] = "text"
    zero_is_never: bool = False
    """A time of 0 means that it never runs out."""
    secret: bool = False
    """Its value is never shown."""
    between: tuple[int, int] | None = None
    """Smallest and largest number allowed beside 0, which leaves the choice to oMLX."""
    most: float = math.inf
    """Longest duration allowed, in seconds."""


def _setting(description: str, **kind: Any) -> msgspec.Meta:
    return msgspec.Meta(description=description, extra={"kind": SettingKind(**kind)})


def _data_dir() -> str:
    return str(Path(platformdirs.user_data_dir("omlx", appauthor=False)) / "models")


def _cache_dir() -> str:
    return str(Path(platformdirs.user_cache_dir("omlx", appauthor=False)) / "kv")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set. Sizes in bytes, times in seconds."""

    host: Annotated[
        str,
        _setting(
            "Address to serve on; for other commands, the address of the server", ollama="OLLAMA_HOST", parse="host"
        ),
    ] = f"http://127.0.0.1:{DEFAULT_PORT}"
    models: Annotated[str, _setting("Folder for models", ollama="OLLAMA_MODELS", parse="path")] = msgspec.field(
        default_factory=_data_dir
    )
    keep_alive: Annotated[
        float,
        _setting(
            "Time an idle model stays loaded (5m, 1h, seconds; negative: no limit)",
            ollama="OLLAMA_KEEP_ALIVE",
            parse="keep_alive",
        ),
    ] = 300.0
    model_keep_alive: Annotated[
        list[str],
        _setting("Keep-alive per model, as NAME=DURATION (comma-separated)", parse="keep_alives"),
    ] = []
    max_loaded_models: Annotated[
        int,
        _setting("Maximum number of loaded models; 0: 3, if memory allows", ollama="OLLAMA_MAX_LOADED_MODELS"),
    ] = 0
    max_model_memory: Annotated[
        str, _setting("Memory limit per model: a size or a percentage of RAM; default: no limit", parse="memory")
    ] = ""
    max_process_memory: Annotated[
        str,
        _setting("Memory limit for all models: auto (RAM − 8 GB), a size or a percentage of RAM", parse="memory"),
    ] = "auto"
    preload: Annotated[list[str], _setting("Models to load at server start (comma-separated)", parse="list")] = []
    max_concurrent_requests: Annotated[
        int,
        _setting(
            "Maximum number of concurrent requests per model; 0: as memory allows, up to 256",
            ollama="OLLAMA_NUM_PARALLEL",
        ),
    ] = 0
    max_queue: Annotated[
        int, _setting("Maximum number of waiting requests; further ones get status 503", ollama="OLLAMA_MAX_QUEUE")
    ] = 512
    context_length: Annotated[
        int,
        _setting("Default context length in tokens; 0: chosen by available memory", ollama="OLLAMA_CONTEXT_LENGTH"),
    ] = 0
    load_timeout: Annotated[
        float,
        _setting(
            "Time without progress after which a model load fails; 0 or negative: no limit",
            ollama="OLLAMA_LOAD_TIMEOUT",
            parse="keep_alive",
            zero_is_never=True,
        ),
    ] = 300.0
    stall_timeout: Annotated[
        float, _setting("Time without a step after which a runner that has requests is restarted", parse="keep_alive")
    ] = 120.0
    shutdown_grace: Annotated[
        float, _setting("Time running requests get to finish when the server stops", parse="keep_alive")
    ] = 5.0
    origins: Annotated[
        list[str],
        _setting("Additional browser origins to allow (CORS, comma-separated)", ollama="OLLAMA_ORIGINS", parse="list"),
    ] = []
    api_key: Annotated[
        list[str],
        _setting(
            "API keys, one of which each request must have (comma-separated); default: no authentication",
            parse="list",
            secret=True,
        ),
    ] = []
    api_key_file: Annotated[
        str,
        _setting("File with additional API keys, a name and a key per line (see docs/api.md)", parse="path"),
    ] = ""
    key_rate_limit: Annotated[
        int, _setting("Requests per minute and API key, unless the key file sets another limit; 0: no limit")
    ] = 0
    no_auth: Annotated[bool, _setting("Require no API key, and log no warning about it on public addresses")] = False
    stable_prefix: Annotated[
        bool,
        _setting("Keep text that agents change every turn (billing headers, timestamps) out of the prompt's beginning"),
    ] = True
    stable_prefix_native: Annotated[
        bool,
        _setting("Apply stable_prefix to /api/chat as well, whose messages are otherwise used verbatim"),
    ] = False
    unsupported_tools: Annotated[
        Literal["error", "ignore", "emulate"],
        _setting("Tools sent to a model without tool support: error, ignore, or emulate (described in the prompt)"),
    ] = "error"
    max_body: Annotated[int, _setting("Maximum size of a request body", parse="size")] = 128_000_000
    max_decode_gap: Annotated[
        float,
        _setting("Maximum pause of a running stream during a long prefill (100ms, 0.5s)", parse="duration", most=10),
    ] = 0.1
    prompt_lookup: Annotated[
        bool,
        _setting("Use prompt lookup (speculative decoding) for a request that runs alone, while measured to be faster"),
    ] = True
    weights: Annotated[
        Literal["auto", "quantized", "dequantized", "float32", "bfloat16", "float16"],
        _setting("Format of weights in memory: auto, quantized, dequantized, float32, bfloat16 or float16"),
    ] = "auto"
    tf32: Annotated[
        bool,
        _setting("Use TF32 for float32 matrix products on a GPU: faster, with about three significant digits"),
    ] = False
    trust_remote_code: Annotated[bool, _setting("Run Python code from model repositories")] = False
    spare_runner: Annotated[
        bool, _setting("Keep a started runner process without a model, so that the next load is faster")
    ] = True
    hot_cache_max_size: Annotated[
        str,
        _setting(
            "RAM for the prefix cache: auto (10 to 30 % of RAM; 5 % of a CUDA GPU's memory), a size or a percentage",
            parse="memory",
        ),
    ] = "auto"
    paged_ssd_cache_dir: Annotated[str, _setting("Folder of the prefix cache on SSD", parse="path")] = msgspec.field(
        default_factory=_cache_dir
    )
    paged_ssd_cache_max_size: Annotated[
        str,
        _setting(
            "SSD space for the prefix cache of all models: auto (10 % of the volume, at most 100 GB), a size or "
            "a percentage of the volume; 0: off",
            parse="memory",
        ),
    ] = "auto"
    cache_block_size: Annotated[
        int, _setting("Tokens per KV block (16 to 1024); 0: chosen by model size", between=(16, 1024))
    ] = 0
    cache_write_budget: Annotated[
        int, _setting("Maximum bytes written to the SSD cache per hour; 0: no limit", parse="size")
    ] = 0
    cache_write_through: Annotated[bool, _setting("Write prefixes to SSD immediately, not only when RAM is full")] = (
        False
    )
    cache_checkpoint_interval: Annotated[
        float,
        _setting("Interval at which cached prefixes in RAM are saved to SSD", parse="keep_alive"),
    ] = 300.0
    vision_cache_max_size: Annotated[
        int, _setting("RAM for cached image features per vision model; 0: off", parse="size")
    ] = 512_000_000
    allow_image_urls: Annotated[
        bool, _setting("Download images that requests reference by URL (never from private addresses)")
    ] = False
    distributed: Annotated[
        Literal["off", "ring", "jaccl", "mpi", "nccl"],
        _setting("Split text models across several processes with this MLX backend (docs/distributed.md)"),
    ] = "off"
    hostfile: Annotated[
        str,
        _setting(
            "Hosts for distributed models, as written by mlx.distributed_config; default: this machine", parse="path"
        ),
    ] = ""
    distributed_ranks: Annotated[
        int, _setting("Number of processes of a distributed model without a hostfile", between=(2, 1024))
    ] = 2
    replicas: Annotated[
        list[str],
        _setting("URLs of backends to balance across (comma-separated; docs/distributed.md)", parse="list"),
    ] = []
    parallel: Annotated[
        Literal["auto", "tensor", "pipeline"],
        _setting("How distributed models are split: tensor (within layers), pipeline (by layers) or auto"),
    ] = "auto"
    ollama_version: Annotated[str, _setting("Ollama version that /api/version reports")] = "0.33.0"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _setting("Minimum level of log messages")] = (
        "info"
    )
    log_format: Annotated[Literal["text", "json"], _setting("Log format: text or json")] = "text"
    log_prompts: Annotated[bool, _setting("Include the text of prompts in the log")] = False
    power: Annotated[
        Literal["auto", "performance", "balanced", "quiet", "battery"],
        _setting("Power policy; auto: battery on battery, quiet in low-power mode, else performance (docs/power.md)"),
    ] = "auto"
    power_limit: Annotated[
        float,
        _setting(
            "Power limit, kept by pauses between steps (30W), where power can be measured; 0: none", parse="watts"
        ),
    ] = 0.0
    power_readings: Annotated[
        str, _setting("JSON file of power readings that replaces this machine's sensors (docs/power.md)", parse="path")
    ] = ""
    otel_endpoint: Annotated[
        str, _setting("OTLP/HTTP URL for OpenTelemetry traces (requires the extra otel); default: no traces")
    ] = ""
    debug: Annotated[bool, _setting("Same as log_level debug", ollama="OLLAMA_DEBUG")] = False
    autostart: Annotated[bool, _setting("Start a server in the background when a command finds none")] = True
    no_history: Annotated[bool, _setting("Do not save a history of typed lines", ollama="OLLAMA_NOHISTORY")] = False
    no_prune: Annotated[bool, _setting("Do not remove unreferenced blobs at server start", ollama="OLLAMA_NOPRUNE")] = (
        False
    )


class Setting(NamedTuple):
    """One field of `Settings` as flags, docs and `omlx config` need it."""

    name: str
    type: Any
    description: str
    kind: SettingKind
    default: Any

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "OMLX_" + self.name.upper()


def describe() -> list[Setting]:
    """All settings in the order of the struct."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = Settings()
    settings = []
    for name in Settings.__struct_fields__:
        base, *notes = get_args(hints[name])
        meta = next(note for note in notes if isinstance(note, msgspec.Meta))
        kind = (meta.extra or {})["kind"]
        settings.append(Setting(name, base, meta.description or "", kind, getattr(defaults, name)))
    return settings
