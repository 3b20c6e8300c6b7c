"""What can be wrong with this machine: MLX, memory, disks, folders, the port, the token for Hugging Face."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import socket
import sys
import time
from pathlib import Path

from omlx_registry import Registry

from omlx import __version__
from omlx.doctor.finding import Finding
from omlx.folders import nearest_existing, why_unusable
from omlx.messages.failures import LoadError
from omlx.messages.frames import Hello
from omlx.migration import find, listener
from omlx.pool import admission
from omlx.power import Readings, decide, sensors, summary
from omlx.runner.host import RunnerHost
from omlx.settings import Settings, bind_address
from omlx.units import format_duration, human_bytes

_LITTLE_DISK = 20_000_000_000
_NO_DISK = 2_000_000_000
_LITTLE_MEMORY = 2_000_000_000
_ACTIVE_S = 60
_POWER_S = 0.3
_AGENT_TOKENS = 32_768
"""Context below which coding agents fail or forget what they do."""


async def examine(settings: Settings, *, server_runs: bool) -> list[Finding]:
    """All checks. With `server_runs` the port is not looked at: the server has it. Nothing is changed."""
    hello = await _start_runner()
    return [
        Finding("omlx", "ok", f"{__version__} on {platform.system()} {platform.machine()}, Python {_python()}"),
        *([hello] if isinstance(hello, Finding) else _device(hello)),
        _memory(settings, hello if isinstance(hello, Hello) else None),
        _context(settings, hello if isinstance(hello, Hello) else None),
        _models(settings),
        *_cache(settings),
        *([] if server_runs else [_port(settings)]),
        await asyncio.to_thread(_power, settings),
        *await asyncio.to_thread(_ollama, settings),
        await asyncio.to_thread(_token),
    ]


def _python() -> str:
    return ".".join(str(part) for part in sys.version_info[:3])


async def _start_runner() -> Hello | Finding:
    """What a runner says of MLX and its device: the same process that would hold a model."""
    how = f"`{sys.executable} -c 'import mlx.core, mlx_lm'` shows the reason; install oMLX in a fresh environment"
    try:
        host = await RunnerHost.spawn()
    except OSError as error:
        return Finding("mlx", "fail", f"a model runner cannot be started: {error}", how)
    try:
        return await host.hello()
    except LoadError as error:
        return Finding("mlx", "fail", error.message, how)
    finally:
        await host.close(grace=2.0)


def _device(hello: Hello) -> list[Finding]:
    versions = ", ".join(f"{name} {version}" for name, version in hello.versions.items())
    findings = [Finding("mlx", "ok", f"{versions}, computes on {_DEVICES.get(hello.device, hello.device)}")]
    if hello.device != "cpu":
        return findings
    if sys.platform == "darwin":
        how = "use the arm64 Python on Apple silicon; oMLX has no use for Rosetta"
        findings.append(Finding("gpu", "warn", "Metal is not available: models run on the CPU, slowly", how))
    elif Path("/proc/driver/nvidia/version").exists():
        how = 'pip install "omlx[cuda13]" (README, Install)'
        findings.append(Finding("gpu", "warn", "there is an NVIDIA driver, but MLX was installed for the CPU", how))
    if hello.blas.startswith("bundled"):
        how = "pip install ngsolve-openblas, or install the system's libopenblas0"
        findings.append(Finding("blas", "warn", "MLX's own BLAS is in use, many times slower than OpenBLAS", how))
    else:
        findings.append(Finding("blas", "ok", hello.blas))
    return findings


_DEVICES = {"cpu": "the CPU", "metal": "the GPU (Metal)", "cuda": "the GPU (CUDA)"}


def _memory(settings: Settings, hello: Hello | None) -> Finding:
    machine = admission.machine(hello.device, hello.device_memory) if hello else admission.machine()
    cap = admission.parse_cap(settings.max_process_memory, machine)
    places = settings.max_concurrent_requests or admission.MOST_CONCURRENT
    own = machine.device_memory if machine.device == "cuda" else 0
    hot = admission.hot_bytes(settings.hot_cache_max_size, machine.ram, own)
    gpu = f", {human_bytes(machine.device_memory)} for the GPU" if machine.gpu else ""
    text = (
        f"{human_bytes(machine.ram)} of RAM, {human_bytes(machine.available)} free{gpu}; models may take "
        f"{human_bytes(cap)}, cached prefixes {human_bytes(hot)}; up to {places} requests at once per model"
    )
    if cap > machine.base:
        return Finding("memory", "warn", text, "max_process_memory is more than there is")
    if not machine.gpu and machine.available < _LITTLE_MEMORY:
        return Finding("memory", "warn", text, "close other programs: hardly a model will fit")
    return Finding("memory", "ok", text)


def _context(settings: Settings, hello: Hello | None) -> Finding:
    """The context of requests that ask for none, of models whose Modelfile has none."""
    name = "context"
    if settings.context_length:
        text, tokens = f"{settings.context_length:,} tokens by default (context_length)", settings.context_length
    else:
        machine = admission.machine(hello.device, hello.device_memory) if hello else admission.machine()
        tokens = admission.default_contexts(machine)[0]
        gpu = f"{human_bytes(machine.device_memory)} of GPU memory" if machine.gpu else "no GPU"
        text = f"{tokens:,} tokens by default, since there is {gpu}; less where a model was trained for less"
    if tokens >= _AGENT_TOKENS:
        return Finding(name, "ok", text)
    how = (
        "coding agents need more: `omlx launch` asks for it, other clients can with the option num_ctx or the header "
        "X-OMLX-Num-Ctx; OMLX_CONTEXT_LENGTH=65536 makes it the default"
    )
    return Finding(name, "ok", text, how)


def _models(settings: Settings) -> Finding:
    folder = Path(settings.models)
    reason = why_unusable(folder, create=False)
    if reason:
        how = "make it writable, or name another with --models or OMLX_MODELS"
        return Finding("models folder", "fail", f"{folder} cannot be used: {reason}", how)
    free = shutil.disk_usage(nearest_existing(folder)).free
    text = f"{folder}, {human_bytes(free)} free"
    if free < _NO_DISK:
        return Finding("models folder", "fail", text, "free some space: no model can be pulled")
    if free < _LITTLE_DISK:
        return Finding("models folder", "warn", text, "large models will not fit")
    return Finding("models folder", "ok", text)


def _cache(settings: Settings) -> list[Finding]:
    name, limit = "cache folder", admission.cold_bytes(settings)
    if not limit:
        return [Finding(name, "ok", "the SSD cache is switched off (paged_ssd_cache_max_size is 0)")]
    folder = Path(settings.paged_ssd_cache_dir)
    reason = why_unusable(folder, create=False)
    if reason:
        how = "prompts are cached in RAM only: name another with --paged-ssd-cache-dir"
        return [Finding(name, "warn", f"{folder} cannot be used: {reason}", how)]
    free = shutil.disk_usage(nearest_existing(folder)).free
    text = f"{folder}, at most {human_bytes(limit)}, {human_bytes(free)} free"
    if free < limit // 4:
        return [Finding(name, "warn", text, "lower --paged-ssd-cache-max-size, or free some space")]
    return [Finding(name, "ok", text)]


def _port(settings: Settings) -> Finding:
    host, port = bind_address(settings)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        owner = listener(port)
        who = f" ({owner})" if owner and owner.pid else ""
        how = f"end the process that listens there{who}, or choose another address with OMLX_HOST"
        return Finding("port", "fail", f"{host}:{port} cannot be used: {reason}", how)
    return Finding("port", "ok", f"{host}:{port} is free; no server runs there")


def _ollama(settings: Settings) -> list[Finding]:
    """An Ollama on this machine with models or settings to import; empty if there is none."""
    count, size = Registry(Path(settings.models), []).imports.count_ollama()
    variables = sorted({it.name for it in find({}, Path.home()) if it.name != "OLLAMA_MODELS"})
    if not count and not variables:
        return []
    text = (
        f"{count} model{'' if count == 1 else 's'} of {human_bytes(size)} to import" if count else "no models to import"
    )
    if variables:
        text += f", {', '.join(variables)} set"
    how = [*(["`omlx import --from ollama` converts them"] if count else []),
           *(["`omlx migrate` converts its settings"] if variables else [])]  # fmt: skip
    return [Finding("ollama", "ok", text, "; ".join(how))]


def _power(settings: Settings) -> Finding:
    """Readings of power, temperature and user activity, the missing sensors, and the limits of the policy."""
    available = sensors(settings.power_readings)
    available.read()
    time.sleep(_POWER_S)  # Power is measured as the growth of a counter.
    readings = available.read()
    parts = [text for text in (_supply(readings), _heat(readings), _user(readings), _watts(readings)) if text]
    absent = available.absent(readings)
    text = ", ".join(parts) or "no sensor can be read"
    text += f"; not available: {', '.join(absent)}" if parts and absent else ""
    decision = decide(settings.power, readings, time.monotonic())
    text += f"; policy {decision.policy}: " + (summary(decision.limits) if decision.reason else "nothing is limited")
    if settings.power_limit and readings.watts is None:
        how = "this machine has no power sensor (docs/power.md): unset power_limit, or set power_readings to a file"
        return Finding("power", "warn", f"{text}; power_limit cannot be held", how)
    return Finding("power", "ok", text)


def _supply(readings: Readings) -> str:
    text = {None: "", True: "on battery", False: "on mains"}[readings.on_battery]
    if readings.battery is not None:
        text += f" ({readings.battery:.0%} full)"
    return f"{text}, low-power mode" if readings.low_power else text


def _heat(readings: Readings) -> str:
    return f"thermal state {readings.thermal}" if readings.thermal else ""


def _user(readings: Readings) -> str:
    if readings.idle_s is None:
        return ""
    return "user active" if readings.idle_s < _ACTIVE_S else f"user idle for {format_duration(int(readings.idle_s))}"


def _watts(readings: Readings) -> str:
    kinds = (("processor", readings.cpu_watts), ("GPU", readings.gpu_watts), ("battery", readings.battery_watts))
    parts = [f"{name} {watts:.0f} W" for name, watts in kinds if watts is not None]
    return ", ".join([*parts, *(["GPU clock throttled"] if readings.gpu_throttled else [])])


def _token() -> Finding:
    """Only whether there is one; nothing of it is shown or sent."""
    from huggingface_hub import get_token

    if get_token():
        return Finding("hugging face", "ok", "there is a token, for gated and private repositories")
    return Finding("hugging face", "ok", "no token: gated and private repositories need HF_TOKEN in the environment")
