"""Settings: one struct, from which CLI flags, environment variables, the config file and docs/configuration.md derive.

A *setting* is a field of `Settings`. Its value comes from the first of: command-line flag, `OMLX_<NAME>`, the Ollama
variable where Ollama has one, the TOML config file, the default. A value that does not parse stops the start with a
sentence that names the setting; it is never skipped. Only what Ollama takes in a variable of its own is taken there.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
import platformdirs

from omlx.errors import UserError
from omlx.units import format_duration, parse_duration, parse_keep_alive, parse_size
from omlx.urls import without_credentials

DEFAULT_PORT = 11434


class SettingError(UserError):
    """A setting has a value that cannot be used; the message names the setting, the value and what is expected."""


class SettingKind(msgspec.Struct, frozen=True):
    """What a field needs beyond its type: Ollama's spelling and a parser for the text forms."""

    ollama: str | None = None
    parse: Literal["text", "keep_alive", "duration", "size", "host", "list", "path", "memory", "keep_alives"] = "text"
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


class Loaded(NamedTuple):
    """The effective settings and, for each, where its value came from ("flag", a variable, a file, "default")."""

    settings: Settings
    sources: dict[str, str]
    warnings: tuple[str, ...] = ()
    """Of values that are used otherwise than they were written, as Ollama does."""


def config_file() -> Path:
    """The TOML file that is read when it exists, where OMLX_CONFIG names no other."""
    return Path(platformdirs.user_config_dir("omlx", appauthor=False)) / "config.toml"


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Settings by precedence. `flags` holds only what the user gave, by field name. Raises SettingError."""
    named = environ.get("OMLX_CONFIG")
    path = Path(named) if named else (file or config_file())
    if named and not path.exists():
        raise SettingError(f"the config file {path} (from env OMLX_CONFIG) does not exist")
    from_file = _read_file(path)
    _refuse_former_names(environ)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    warnings: list[str] = []
    for setting in describe():
        value, source = _first_given(setting, flags, environ, from_file, path)
        sources[setting.name] = source
        values[setting.name] = setting.default if source == "default" else _parse(setting, value, source)
        if setting.kind.parse == "host" and source != "default" and not _has_usable_port(str(value)):
            warnings.append(f"{source.removeprefix('env ')} {value} has no usable port: {values[setting.name]} is used")
    return Loaded(Settings(**values), sources, tuple(warnings))


_RENAMED = {"api_keys": "api_key_file"}
"""Settings by former names: to ignore one could open the server to everybody."""


def _refuse_former_names(environ: Mapping[str, str]) -> None:
    for former, name in _RENAMED.items():
        if environ.get(f"OMLX_{former.upper()}"):
            raise SettingError(f"OMLX_{former.upper()} is called OMLX_{name.upper()} now")


def _first_given(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], from_file: Mapping[str, Any], path: Path
) -> tuple[Any, str]:
    if flags.get(setting.name) is not None:
        return flags[setting.name], f"flag {setting.flag}"
    for variable in (setting.variable, setting.kind.ollama):
        # Go trims blanks and quotes around a value; service files are full of both.
        text = environ.get(variable, "").strip(" \t\r\n\"'") if variable else ""
        if text:
            return text, f"env {variable}"
    if setting.name in from_file:
        return from_file[setting.name], str(path)
    return None, "default"


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the config file {path} cannot be read: {error}") from error
    for former, name in _RENAMED.items():
        if former in content:
            raise SettingError(f"the config file {path} sets {former}, which is called {name} now")
    unknown = sorted(set(content) - set(Settings.__struct_fields__))
    if unknown:
        raise SettingError(f"the config file {path} sets {', '.join(unknown)}, which oMLX does not have")
    return content


_TRUE, _FALSE = {"1", "t", "true", "yes", "on"}, {"0", "f", "false", "no", "off"}


def _parse(setting: Setting, value: Any, source: str) -> Any:
    try:
        return _convert(setting, value, lenient=source == f"env {setting.kind.ollama}")
    except (ValueError, TypeError) as error:
        shown = "…" if setting.kind.secret else without_credentials(repr(value))
        raise SettingError(f"{setting.name} = {shown} (from {source}) cannot be used: {error}") from error


def _convert(setting: Setting, value: Any, *, lenient: bool) -> Any:
    """The value as its setting has it. `lenient`: it comes from Ollama's variable, which takes more."""
    match setting.kind.parse:
        case "keep_alive":
            seconds = parse_keep_alive(value)
            return math.inf if seconds == 0 and setting.kind.zero_is_never else seconds
        case "duration":
            return _duration(value, setting.kind.most)
        case "size":
            return value if isinstance(value, int) else parse_size(str(value))
        case "host":
            if not lenient and not _has_usable_port(str(value)):
                raise ValueError("its port must be a number from 0 to 65535")
            return parse_host(str(value))
        case "path":
            return str(Path(value).expanduser())
        case "memory":
            return _memory(str(value).strip())
        case "list" | "keep_alives":
            items = value if isinstance(value, list) else str(value).split(",")
            found = [item.strip() for item in items if item.strip()]
            if setting.kind.parse == "keep_alives":
                for item in found:
                    _check_keep_alive(item)
            return found
    if setting.type is bool:
        return _boolean(value, lenient=lenient)
    if setting.type is int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("it must be a whole number") from None
        if number < 0:
            raise ValueError("it must not be negative")
        if number and setting.kind.between and not setting.kind.between[0] <= number <= setting.kind.between[1]:
            raise ValueError("it must be 0 or between {} and {}".format(*setting.kind.between))
        return number
    if setting.type is float:
        amount = float(value)
        if not 0 <= amount < math.inf:
            raise ValueError("it must be a number from 0 up")
        return amount
    if get_origin(setting.type) is Literal:
        if value not in get_args(setting.type):
            raise ValueError(f"it must be one of {', '.join(get_args(setting.type))}")
        return value
    return str(value)


def _duration(value: Any, most: float) -> float:
    """Seconds, from a duration ("100ms") or a number of seconds."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = parse_duration(str(value))
    if not 0 <= seconds <= most:
        raise ValueError(f"it must be a duration from 0 to {format_duration(most)}, such as 100ms or 0.5s")
    return seconds


def _check_keep_alive(item: str) -> None:
    name, equals, duration = item.rpartition("=")
    if not equals or not name or not duration:
        raise ValueError(f'"{item}" must be NAME=DURATION, such as qwen3:8b=1h')
    parse_keep_alive(duration)


def _memory(text: str) -> str:
    """A memory cap as it was written, once it is known to mean something."""
    if text in {"", "auto"}:
        return text
    if text.endswith("%"):
        if not 0 < float(text[:-1]) <= 100:
            raise ValueError("a percentage is above 0 and at most 100")
    else:
        parse_size(text)
    return text


def _boolean(value: Any, *, lenient: bool) -> bool:
    """Ollama takes any other text in its variables as true (`OLLAMA_DEBUG=2` is a level); elsewhere it is refused."""
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in _TRUE or (lenient and text not in _FALSE):
        return True
    if text in _FALSE:
        return False
    raise ValueError("it must be true or false")


def parse_host(text: str) -> str:
    """Ollama's `OLLAMA_HOST` forms → a URL with scheme, host and port, and a path prefix where one was given.

    "" → http://127.0.0.1:11434, "1.2.3.4" → …:11434, ":1234" → http://0.0.0.0:1234, "https://x" → port 443,
    "[::1]" or "::1" → http://[::1]:11434. A port that is no number falls back to the scheme's default, as in Ollama,
    which is right for its own variable only.
    """
    text = text.strip(" \t\"'")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
        port = DEFAULT_PORT
    else:
        port = 443 if scheme == "https" else 80
    if scheme not in {"http", "https"}:
        raise ValueError("it must be an address such as 127.0.0.1:11434 or http://host:port")
    address, slash, path = rest.partition("/")
    host, port_text = _split_port(address)
    if port_text and _is_port(port_text):
        port = int(port_text)
    if not host:
        host = "0.0.0.0" if address.startswith(":") else "127.0.0.1"  # noqa: S104
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}{slash}{path}".rstrip("/")


def _has_usable_port(text: str) -> bool:
    """Whether the port of a host, if it has one, can be one."""
    _, _, rest = text.strip(" \t\"'").rpartition("://")
    _, port = _split_port(rest.partition("/")[0])
    return not port or _is_port(port)


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and int(text) <= 65535


def _split_port(address: str) -> tuple[str, str]:
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":")
    if address.count(":") > 1:
        return address, ""
    host, _, port = address.partition(":")
    return host, port


def bind_address(settings: Settings) -> tuple[str, int]:
    """Host and port to listen on."""
    parts = urlsplit(settings.host)
    return parts.hostname or "127.0.0.1", DEFAULT_PORT if parts.port is None else parts.port


def client_url(settings: Settings) -> str:
    """Base URL for a client: the unspecified addresses are reached through loopback."""
    return settings.host.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
