"""Loading a model folder into memory, and what the engine needs to know of the model.

mlx-lm builds the model and the tokenizer; this module decides how the weights are held (`weights`), reports progress
while they are read, and measures the model once: logits width, KV bytes per token, speeds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import msgspec
import psutil
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import dequantize_model, get_total_parameters, load_adapters, load_tokenizer
from mlx_lm.utils import load_model as mlx_load_model
from omlx_cache.layout import CacheLayout

from omlx.engine import attention, caches, weights
from omlx.engine.fuse import fuse
from omlx.engine.model_adapters import adapt
from omlx.engine.model_folder import InvalidModel, loadable
from omlx.engine.ranks import SOLO, Ranks
from omlx.engine.vision import loader as vision_loader
from omlx.engine.vision.vision import Vision
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

_STEP_BYTES = 256 << 20
"""Weights computed at once while loading: it bounds the memory that loading needs beyond the model's."""
_PROBE_TOKENS: dict[weights.Device, int] = {"cpu": 32, "cuda": 512, "metal": 256}
"""Prompt length that is timed: as long as takes a fraction of a second on such a device."""
_MOST_ROWS = 1 << 20
"""Of logits at once, where the output layer costs nothing that can be measured."""
_KEPT_BUFFERS = 16
"""The part of a GPU's memory that a process may keep in buffers for its next forwards, at most."""
_LEAST_BUFFERS = 1 << 30
_BUFFERED_TOKENS = 8192
"""Tokens for whose forward buffers are kept: as many as the largest over several prompts has."""

Progress = Callable[[int, int], None]


class Speeds(NamedTuple):
    """What a few forwards of the model took."""

    step_s: float
    token_s: float
    """What a prompt token adds to a forward, in a chunk of usual size."""
    logits_rows: int
    """Tokens of a chunk whose logits cost as much as a forward of its last token alone would."""
    transient_bytes: int = 0


class LoadedModel(msgspec.Struct, kw_only=True):
    """A model in memory and what was measured of it."""

    model: Any
    tokenizer: Any
    """mlx-lm's TokenizerWrapper: chat template, special tokens, encode."""
    text_tokenizer: Any
    """The Rust tokenizer inside it."""
    layout: CacheLayout
    """How its caches are stored; for the prefix store."""
    weights: str
    """How the weights are held and why, e.g. "float32 (dequantized: a CPU multiplies float32 fastest)"."""
    weight_bytes: int
    kv_bytes_per_token: int
    transient_bytes: int
    """What a forward over a chunk of a prompt needs beside weights and caches; 0 where it was not measured."""
    can_batch: bool
    can_prefill_together: bool
    """Whether several prompts may share a forward."""
    vocabulary: int
    """Width of the logits; may exceed the tokenizer's vocabulary."""
    end_tokens: set[int]
    max_context: int
    step_s: float
    """Seconds of a decode step at batch 1."""
    token_s: float
    """Seconds that a prompt token adds to a forward."""
    measured_tokens: int
    """Length of the prompt that was timed."""
    logits_rows: int
    """Longest chunk that is read with the logits of all its tokens: of a longer one the last token goes alone."""
    draft_bytes: int = 0
    """What a draft model beside it takes, its caches included."""
    vision: Vision | None = None
    """What sees for it, where it is a model that sees."""


class _Read(NamedTuple):
    """A model folder in memory."""

    model: Any
    tokenizer: Any
    config: dict[str, Any]
    plan: weights.WeightsPlan
    nbytes: int
    sees: bool


def load_model(
    spec: LoadSpec,
    progress: Progress = lambda done, total: None,
    *,
    measure: bool = True,
    ranks: Ranks = SOLO,
) -> LoadedModel:
    """Load `spec.path`. `progress(done, total)` in bytes of weights. Raises LoadError with a sentence for the user.

    `measure` False takes assumed speeds instead of timing the model (for tiny models in tests). With several `ranks`
    each keeps its share, and all raise where one cannot load.
    """
    read, vision, failure = None, None, ""
    try:
        with loadable(spec.path, trust_remote_code=spec.trust_remote_code) as path:
            read = _read(spec, path, progress, ranks)
            if read.sees:
                salt = f"{spec.fingerprint} {read.plan.text}"
                vision = vision_loader.open_vision(
                    path, read.model, read.config, read.tokenizer, salt=salt, max_bytes=spec.vision_cache_max_size
                )
    except LoadError as error:
        failure = str(error)
    except (InvalidModel, OSError) as error:
        failure = f"{spec.name} cannot be loaded: {error}"
    # Before the first forward, which would wait for a rank that has nothing loaded.
    failures = ranks.gather(failure, str)
    if read is None or any(failures):
        raise LoadError(_first_failure(failures))
    loaded = wrap(
        vision.family if vision is not None else read.model,
        read.tokenizer,
        max_context=_max_context(read.config) or spec.engine.context_length,
        weights=f"{read.plan.text}{ranks.description}",
        weight_bytes=read.nbytes,
        measure=measure,
    )
    loaded.vision = vision
    _limit_buffers(loaded.transient_bytes * _BUFFERED_TOKENS // loaded.measured_tokens)
    return loaded


def _first_failure(failures: list[str]) -> str:
    """What to tell of a load that failed: the leader's own trouble before that of another rank."""
    rank, text = next((rank, text) for rank, text in enumerate(failures) if text)
    return text if rank == 0 else f"{text} (on rank {rank})"


def _read(spec: LoadSpec, path: Path, progress: Progress, ranks: Ranks) -> _Read:
    # Pictures are for models in one process: the vision tower's work is not divided.
    sees = vision_loader.sees(path) and not spec.adapter_path and ranks.size == 1
    try:
        if sees:
            model, config = vision_loader.open_network(path)
        else:
            model, config = mlx_load_model(path, lazy=True, trust_remote_code=spec.trust_remote_code)
        tokenizer = load_tokenizer(path, eos_token_ids=end_tokens(path, config))
        if sees:
            vision_loader.add_chat_template(path, tokenizer)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise LoadError(f"{spec.name} cannot be loaded: {error}") from error
    plan = weights.choose(
        spec.weights,
        device=device(),
        quantized="quantization" in config or "quantization_config" in config,
        parameters=int(get_total_parameters(model)),
        free_bytes=ranks.decide(lambda: usable_memory(spec.memory_bytes), int) * ranks.size,
    )
    if spec.adapter_path:
        model = _with_adapter(model, spec.adapter_path, plan.dequantize)

    def prepare(whole: Any) -> None:
        ranks.split(whole)
        fuse(whole)
        adapt(whole)

    try:
        model, total = hold(model, plan, progress, prepare=prepare)
    except ValueError as error:
        raise LoadError(f"{spec.name} cannot be loaded: {error}") from error
    return _Read(model, tokenizer, config, plan, total, sees)


def wrap(
    model: Any, tokenizer: Any, *, max_context: int, weights: str, weight_bytes: int, measure: bool = True
) -> LoadedModel:
    """A `LoadedModel` of a model that is already in memory."""
    attention.prepare()
    layout = CacheLayout(model)
    vocabulary = int(model(mx.array([[0]]), cache=caches.new(model)).shape[-1])
    speeds = measure_speeds(model) if measure else Speeds(0.005, 0.0003, 1)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        text_tokenizer=tokenizer.backend_tokenizer,
        layout=layout,
        weights=weights,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=layout.bytes_per_token,
        transient_bytes=speeds.transient_bytes,
        can_batch=caches.can_batch(caches.new(model)),
        can_prefill_together=caches.can_batch(caches.new(model)),
        vocabulary=vocabulary,
        end_tokens=set(tokenizer.eos_token_ids),
        max_context=max_context,
        step_s=speeds.step_s,
        token_s=speeds.token_s,
        measured_tokens=_PROBE_TOKENS[device()],
        logits_rows=speeds.logits_rows,
    )


def device() -> weights.Device:
    """The kind of device that MLX computes on."""
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def free_memory() -> int:
    """Bytes a model may use: RAM that is available, or the device's own memory less what is in use there."""
    available = int(psutil.virtual_memory().available)
    if device() == "cpu":
        return available
    size = _device_memory()
    return size - int(mx.get_active_memory()) if size else available


def usable_memory(allowed: int) -> int:
    """Bytes for weights, caches and working: what is free, and at most `allowed` (0: no limit)."""
    return min(free_memory(), allowed) if allowed else free_memory()


def _device_memory() -> int:
    """Bytes that a GPU can use; 0 where it does not say."""
    info = mx.device_info()
    return int(info.get("max_recommended_working_set_size") or info.get("total_memory") or info.get("memory_size") or 0)


def measure_speeds(model: Any) -> Speeds:
    """Time a decode step, and a short prompt with and without its logits. A GPU runs each twice: the first compiles."""

    def timed(tokens: int, logits: bool) -> float:
        best = float("inf")
        for _ in range(1 if device() == "cpu" else 2):
            cache = caches.new(model)
            begun = time.perf_counter()
            out = model(mx.zeros((1, tokens), dtype=mx.int32), cache=cache)
            mx.eval(*caches.arrays(cache), *([out] if logits else []))
            best = min(best, time.perf_counter() - begun)
        return best

    size = _PROBE_TOKENS[device()]
    held = int(mx.get_active_memory())
    mx.reset_peak_memory()
    step, without, full = timed(1, True), timed(size, False), timed(size, True)
    head = max(full - without, 0.0) / size
    transient = max(int(mx.get_peak_memory()) - held, 0)
    logits_rows = min(int(step / head), _MOST_ROWS) if head else _MOST_ROWS
    return Speeds(step, max(without - step, 0.05 * without) / size, logits_rows, transient)


def hold(
    model: Any, plan: weights.WeightsPlan, progress: Progress, *, prepare: Callable[[Any], object] = lambda model: None
) -> tuple[Any, int]:
    """Bring a lazily loaded model into memory as `plan` says; returns it and the bytes of its weights.

    `prepare` may still change the network before anything is computed.
    """
    if plan.dequantize:
        if plan.dtype is not None:
            # Scales first: codes times 16-bit scales would be rounded to 16 bits.
            model.set_dtype(getattr(mx, plan.dtype))
        model = dequantize_model(model)
    if plan.dtype is not None:
        model.set_dtype(getattr(mx, plan.dtype))
    model.eval()
    prepare(model)
    attention.prepare()
    _set_limits()
    return model, _compute(model, progress)


def _compute(model: Any, progress: Progress) -> int:
    """Read and convert all weights, a part at a time; returns their bytes."""
    tensors = [value for _, value in tree_flatten(model.parameters())]
    total = sum(int(value.nbytes) for value in tensors)
    done = taken = 0
    part: list[mx.array] = []
    progress(0, total)
    for value in tensors:
        part.append(value)
        taken += value.nbytes
        if taken >= _STEP_BYTES:
            mx.eval(*part)
            done, taken, part = done + taken, 0, []
            progress(done, total)
    mx.eval(*part)
    mx.clear_cache()
    progress(total, total)
    return total


def _with_adapter(model: Any, path: str, dequantize: bool) -> Any:
    """The model with a LoRA adapter merged into its weights."""
    try:
        model = load_adapters(model, path)
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(f"the adapter {path} cannot be loaded: {error}") from error
    fused = [
        (name, module.fuse(dequantize=dequantize)) for name, module in model.named_modules() if hasattr(module, "fuse")
    ]
    if fused:
        model.update_modules(tree_unflatten(fused))
    return model


def _set_limits() -> None:
    """On Metal, keep the weights from being paged out between requests. On a GPU, keep few buffers that nothing uses.

    Left alone, MLX gives none back before the whole device is full, and a cache that grows while a long prompt is read
    leaves buffers of all sizes behind: other models' memory.
    """
    if mx.metal.is_available():
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
    _limit_buffers(_device_memory())


def _limit_buffers(wanted: int) -> None:
    """Let this process keep so many bytes of freed buffers on a GPU, within bounds."""
    if device() != "cpu":
        mx.set_cache_limit(max(min(wanted, _device_memory() // _KEPT_BUFFERS), _LEAST_BUFFERS))


def end_tokens(path: Path, config: dict[str, Any]) -> list[int] | None:
    """Tokens that end a reply, by generation_config.json and config.json (many models name some only in the first)."""
    tokens: set[int] = set()
    try:
        generation = json.loads((path / "generation_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        generation = {}
    for source in (generation, config, config.get("text_config") or {}):
        value = source.get("eos_token_id")
        tokens |= set(value) if isinstance(value, list) else {value} if isinstance(value, int) else set()
    return sorted(tokens) or None


def _max_context(config: dict[str, Any]) -> int:
    """Trained context in tokens; 0 where the config does not say."""
    for source in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "model_max_length"):
            if isinstance(source.get(key), int) and source[key] > 0:
                return int(source[key])
    return 0
