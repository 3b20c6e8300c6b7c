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
        str, _setting("Address to serve on, or to reach a server at", ollama="OLLAMA_HOST", parse="host")
    ] = f"http://127.0.0.1:{DEFAULT_PORT}"
    models: Annotated[str, _setting("Folder of the model store", ollama="OLLAMA_MODELS", parse="path")] = msgspec.field(
        default_factory=_data_dir
    )
    keep_alive: Annotated[
        float,
        _setting(
            "How long an idle model stays loaded (5m, 1h, seconds; negative: forever)",
            ollama="OLLAMA_KEEP_ALIVE",
            parse="keep_alive",
        ),
    ] = 300.0
    model_keep_alive: Annotated[
        list[str],
        _setting("Keep-alive of single models, as NAME=DURATION (comma-separated)", parse="keep_alives"),
    ] = []
    max_loaded_models: Annotated[
        int,
        _setting("Most models loaded at once; 0: three, if memory allows", ollama="OLLAMA_MAX_LOADED_MODELS"),
    ] = 0
    max_model_memory: Annotated[
        str, _setting("Most memory one model may take: a size or a percentage of RAM; none by default", parse="memory")
    ] = ""
    max_process_memory: Annotated[
        str,
        _setting("Most memory all models may take: auto (RAM − 8 GB), a size or a percentage of RAM", parse="memory"),
    ] = "auto"
    preload: Annotated[
        list[str], _setting("Models to load when the server starts (comma-separated)", parse="list")
    ] = []
    max_concurrent_requests: Annotated[
        int,
        _setting(
            "Most requests one model works on at once; 0: as many as memory allows, up to 256",
            ollama="OLLAMA_NUM_PARALLEL",
        ),
    ] = 0
    max_queue: Annotated[
        int, _setting("Most requests that may wait; one more is answered 503", ollama="OLLAMA_MAX_QUEUE")
    ] = 512
    context_length: Annotated[
        int,
        _setting("Context in tokens where nobody asks for one; 0: by memory", ollama="OLLAMA_CONTEXT_LENGTH"),
    ] = 0
    load_timeout: Annotated[
        float,
        _setting(
            "A load without progress for this long fails; 0 or negative: never",
            ollama="OLLAMA_LOAD_TIMEOUT",
            parse="keep_alive",
            zero_is_never=True,
        ),
    ] = 300.0
    stall_timeout: Annotated[
        float, _setting("A runner with work but no step for this long is restarted", parse="keep_alive")
    ] = 120.0
    shutdown_grace: Annotated[
        float, _setting("How long running requests get to end when the server is stopped", parse="keep_alive")
    ] = 5.0
    origins: Annotated[
        list[str],
        _setting("Further browser origins that may call (comma-separated)", ollama="OLLAMA_ORIGINS", parse="list"),
    ] = []
    api_key: Annotated[
        list[str],
        _setting(
            "Keys (comma-separated) of which a caller must show one; none: no authentication",
            parse="list",
            secret=True,
        ),
    ] = []
    api_key_file: Annotated[
        str,
        _setting("File of further keys, a name and a key a line (see docs/api.md)", parse="path"),
    ] = ""
    key_rate_limit: Annotated[
        int, _setting("Most requests a minute with one key, where the file says nothing else; 0: no limit")
    ] = 0
    no_auth: Annotated[bool, _setting("Ask for no key, and do not warn about it, wherever the server is bound")] = False
    stable_prefix: Annotated[
        bool,
        _setting("Keep what agents change each turn (billing headers, clocks) out of the beginning of the prompt"),
    ] = True
    stable_prefix_native: Annotated[
        bool,
        _setting("The same for requests to /api/chat, which are taken word for word otherwise"),
    ] = False
    unsupported_tools: Annotated[
        Literal["error", "ignore", "emulate"],
        _setting("Tools offered to a model that knows none: error, ignore, or emulate (described in the prompt)"),
    ] = "error"
    max_body: Annotated[int, _setting("Largest request body", parse="size")] = 128_000_000
    max_decode_gap: Annotated[
        float,
        _setting("Longest pause of a running stream during a long prefill (100ms, 0.5s)", parse="duration", most=10),
    ] = 0.1
    weights: Annotated[
        Literal["auto", "quantized", "dequantized", "float32", "bfloat16", "float16"],
        _setting("How weights are held: auto, quantized, dequantized, float32, bfloat16 or float16"),
    ] = "auto"
    tf32: Annotated[
        bool,
        _setting("Multiply float32 matrices in TF32 on a GPU: faster for float32 weights, exact to three digits"),
    ] = False
    trust_remote_code: Annotated[bool, _setting("Run Python code that a model repository brings")] = False
    spare_runner: Annotated[bool, _setting("Keep one process ready so that the next load starts faster")] = True
    hot_cache_max_size: Annotated[
        str,
        _setting(
            "RAM for cached prefixes: auto (10 to 30 % of it; 5 % of a CUDA GPU's memory), a size or a percentage",
            parse="memory",
        ),
    ] = "auto"
    paged_ssd_cache_dir: Annotated[str, _setting("Folder of the KV cache on SSD", parse="path")] = msgspec.field(
        default_factory=_cache_dir
    )
    paged_ssd_cache_max_size: Annotated[
        str,
        _setting(
            "SSD space for cached prefixes, all models together: auto (10 % of the volume, at most 100 GB), a size or "
            "a percentage of the volume; 0 switches it off",
            parse="memory",
        ),
    ] = "auto"
    cache_block_size: Annotated[
        int, _setting("Tokens in one KV block (16 to 1024); 0: by model size", between=(16, 1024))
    ] = 0
    cache_write_budget: Annotated[
        int, _setting("Most bytes written to the SSD cache per hour; 0: no limit", parse="size")
    ] = 0
    cache_write_through: Annotated[
        bool, _setting("Write prefixes to SSD at once, not only when RAM needs the room")
    ] = False
    cache_checkpoint_interval: Annotated[
        float,
        _setting("Checkpoint interval: how often cached prefixes are written to SSD", parse="keep_alive"),
    ] = 300.0
    vision_cache_max_size: Annotated[
        int, _setting("RAM for cached image features, for each vision model; 0: none", parse="size")
    ] = 512_000_000
    allow_image_urls: Annotated[
        bool, _setting("Fetch images that requests name by URL (never from private addresses)")
    ] = False
    distributed: Annotated[
        Literal["off", "ring", "jaccl", "mpi", "nccl"],
        _setting("Divide text models over several processes, which talk by this MLX backend (docs/distributed.md)"),
    ] = "off"
    hostfile: Annotated[
        str,
        _setting("Machines of distributed models, as mlx.distributed_config writes them; none: this one", parse="path"),
    ] = ""
    distributed_ranks: Annotated[
        int, _setting("Processes of a distributed model where no hostfile says", between=(2, 1024))
    ] = 2
    replicas: Annotated[
        list[str],
        _setting("URLs of backends to balance across (comma-separated; docs/distributed.md)", parse="list"),
    ] = []
    parallel: Annotated[
        Literal["auto", "tensor", "pipeline"],
        _setting("How models are divided: every layer over all processes (tensor), or whole layers to each (pipeline)"),
    ] = "auto"
    ollama_version: Annotated[str, _setting("Ollama version that /api/version reports")] = "0.33.0"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _setting("What is logged")] = "info"
    log_format: Annotated[Literal["text", "json"], _setting("How the log is written: text or json")] = "text"
    log_prompts: Annotated[bool, _setting("Write the text of prompts to the log, too")] = False
    power: Annotated[
        Literal["auto", "performance", "balanced", "quiet", "battery"],
        _setting("Power policy: auto (battery on battery, quiet in low-power mode, else performance) (docs/power.md)"),
    ] = "auto"
    power_limit: Annotated[
        float,
        _setting("Power to hold by pauses between steps (30W), where the machine tells it; 0: none", parse="watts"),
    ] = 0.0
    power_readings: Annotated[
        str, _setting("JSON file of power readings that replaces this machine's sensors (docs/power.md)", parse="path")
    ] = ""
    otel_endpoint: Annotated[
        str, _setting("URL that takes OpenTelemetry traces over HTTP (needs the extra otel); none: no traces")
    ] = ""
    debug: Annotated[bool, _setting("Same as log_level debug", ollama="OLLAMA_DEBUG")] = False
    autostart: Annotated[bool, _setting("Commands start a server in the background where none listens")] = True
    no_history: Annotated[bool, _setting("Keep no history of typed lines", ollama="OLLAMA_NOHISTORY")] = False
    no_prune: Annotated[bool, _setting("Leave unreferenced blobs in place at start", ollama="OLLAMA_NOPRUNE")] = False


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
    found = []
    for name in Settings.__struct_fields__:
        base, *notes = get_args(hints[name])
        meta = next(note for note in notes if isinstance(note, msgspec.Meta))
        kind = (meta.extra or {})["kind"]
        found.append(Setting(name, base, meta.description or "", kind, getattr(defaults, name)))
    return found
