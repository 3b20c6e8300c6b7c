"""The *plan* of a load: context, memory and room of one model on this machine, from its spec and the settings. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
from omlx_cache.config import StoreConfig
from omlx_registry import InvalidName, parse_name

from omlx.messages.context import effective_context
from omlx.messages.load_checks import LoadChecks
from omlx.messages.load_spec import Backend, EngineConfig, LoadSpec, ModelKind
from omlx.messages.selftest import Feature
from omlx.pool import admission
from omlx.pool.admission import Estimate, Machine
from omlx.pool.errors import PoolError
from omlx.pool.measured import Measurement
from omlx.pool.policy import LoadLimits
from omlx.runner.launch import GroupPlan, Machines
from omlx.settings import Settings
from omlx.units import parse_keep_alive

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

_DEFAULT_PLACES = 3


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`context` in tokens; `need` is what the model will take and `room` what is allowed, in bytes."""

    context: int
    need: int
    room: LoadLimits
    largest: int = 0
    """The largest context that there is memory for, in tokens; 0: not known, or not even the least."""


def plan_load(
    spec: ModelSpec,
    settings: Settings,
    machine: Machine,
    *,
    held: int,
    measured: Measurement | None,
    group: GroupPlan | None = None,
    strict: bool = True,
) -> LoadPlan:
    """Plan a load. `held` are the bytes that loaded models take, `measured` what this one took last time, if known;
    `group`: the model is divided.

    Raises PoolError "too_large" when the model can never run here, unless `strict` is False.
    """
    config = admission.read_config(spec.path)
    here, ranks = (group.machines.here, len(group.machines.hosts)) if group else (1, 1)
    cap = admission.parse_cap(settings.max_process_memory, machine)
    model_cap = admission.parse_cap(settings.max_model_memory, machine) if settings.max_model_memory else None
    available = machine.free(held)
    budget = admission.budget(machine, cap=cap, held=held)

    def estimate(context: int) -> Estimate:
        load = admission.estimate(
            size=spec.size * here // ranks, config=config, context=context, weights=settings.weights, gpu=machine.gpu
        )
        return load if measured is None else Estimate(least=load.least, likely=measured.with_context(context))

    num_ctx = spec.parameters.get("num_ctx")
    wanted = (num_ctx if isinstance(num_ctx, int) else 0) or settings.context_length
    # A context that nobody asked for steps down until it fits; one that was asked for does not.
    steps = [wanted] if wanted else admission.default_contexts(machine)
    contexts = [effective_context(0, step, spec.context_length) for step in steps]
    limit = budget if model_cap is None else min(budget, model_cap)
    context = next((step for step in contexts if estimate(step).likely <= limit), contexts[-1])
    load = estimate(context)
    refusal = admission.refusal(load.least, available=available, cap=cap, model_cap=model_cap)
    if refusal is not None and strict:
        raise PoolError("too_large", refusal)
    room = LoadLimits(places=settings.max_loaded_models or _DEFAULT_PLACES, budget=budget)
    largest = _largest_context(spec.context_length, lambda tokens: estimate(tokens).likely, limit)
    return LoadPlan(context=context, need=load.likely, room=room, largest=largest)


def _largest_context(trained: int, need: Callable[[int], int], limit: int) -> int:
    """The most tokens, at most `trained`, for which `need` bytes of a context are within `limit`; 0: none, not known.

    Memory grows by the same bytes with each token.
    """
    without, per_token = need(0), need(1) - need(0)
    if trained <= 0 or per_token <= 0:
        return max(trained, 0) if without <= limit else 0
    return max(0, min(trained, (limit - without) // per_token))


def group_for(spec: ModelSpec, settings: Settings, machines: Machines) -> GroupPlan | None:
    """How the model is divided over several processes, by its Modelfile or the settings; None: it is not."""
    backend = spec.parameters.get("distributed") or settings.distributed
    if backend == "off" or kind_of(spec.capabilities) != "generate":
        return None
    return GroupPlan(backend=msgspec.convert(backend, Backend), parallel=settings.parallel, machines=machines)


def manner(settings: Settings, group: GroupPlan | None) -> str:
    """How a model would be held in memory here; what was measured holds for the same manner only."""
    if group is None:
        return settings.weights
    return f"{settings.weights} {group.machines.here} of {len(group.machines.hosts)} {settings.parallel}"


def keep_alive_for(spec: ModelSpec, settings: Settings) -> float:
    """Seconds the model stays when no request says: its own setting, else its Modelfile's, else that of all models."""
    for entry in settings.model_keep_alive:
        name, _, text = entry.rpartition("=")
        with contextlib.suppress(InvalidName):
            if parse_name(name).full == spec.full_name:
                own = parse_keep_alive(text)
                return settings.keep_alive if own is None else own
    with contextlib.suppress(ValueError):
        own = parse_keep_alive(spec.parameters.get("keep_alive"))
        return settings.keep_alive if own is None else own
    return settings.keep_alive


def kind_of(capabilities: Sequence[str]) -> ModelKind:
    """What a runner is to do with a model of these capabilities."""
    if "transcription" in capabilities:
        return "transcribe"
    if "completion" in capabilities:
        return "generate"
    if "rerank" in capabilities:
        return "rerank"
    return "embed" if "embedding" in capabilities else "generate"


def load_spec(
    spec: ModelSpec,
    settings: Settings,
    *,
    context: int,
    concurrent: int,
    hot_bytes: int,
    memory_bytes: int,
    off: Collection[Feature] = (),
    checks: LoadChecks | None = None,
) -> LoadSpec:
    """What the runner is told. `memory_bytes`: the most it may take; `hot_bytes`: its share of the hot KV tier; `off`:
    what a self-test has switched off; `checks`: what the load checks of an earlier load found.
    """
    return LoadSpec(
        name=spec.name,
        path=spec.path,
        fingerprint=spec.fingerprint,
        kind=kind_of(spec.capabilities),
        template=spec.template,
        adapter_path=spec.adapter_path,
        draft_path=spec.draft_path,
        weights=settings.weights,
        tf32=settings.tf32,
        trust_remote_code=settings.trust_remote_code,
        memory_bytes=memory_bytes,
        vision_cache_max_size=settings.vision_cache_max_size,
        engine=EngineConfig(
            context_length=context,
            max_concurrent_requests=1 if "batching" in off else concurrent,
            max_decode_gap=settings.max_decode_gap,
        ),
        store=None if "cache" in off else store_config(spec, settings, hot_bytes),
        checks=checks,
    )


def store_config(spec: ModelSpec, settings: Settings, hot_bytes: int) -> StoreConfig | None:
    """How the model's KV store is set up, with `hot_bytes` of RAM; None: it has neither RAM nor disk."""
    cold_bytes = admission.cold_bytes(settings)
    if hot_bytes == 0 and cold_bytes == 0:
        return None
    return StoreConfig(
        fingerprint=spec.fingerprint,
        model=spec.name,
        block_size=settings.cache_block_size,
        hot_bytes=hot_bytes,
        folder=settings.paged_ssd_cache_dir if cold_bytes else "",
        cold_bytes=cold_bytes,
        write_budget=settings.cache_write_budget,
        write_through=settings.cache_write_through,
        checkpoint_interval=settings.cache_checkpoint_interval,
    )
