"""What the server says of its models: for /api/omlx/status, and for the advice that is made of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from omlx_registry import ModelSpec, parse_name

from omlx import __version__
from omlx.messages.frames import PrefixUse
from omlx.pool import Pool, SlotSnapshot
from omlx.power import PowerReport
from omlx.protocols.admin import wire as wire
from omlx.protocols.admin.power import PowerStatus


def status_of(pool: Pool, registered: Sequence[ModelSpec] = (), *, pin_warning: str) -> wire.StatusResponse:
    """`registered`: the models on disk, among which further names of the loaded ones are looked for."""
    stalled, loaded = pool.stalled(), pool.loaded()
    return wire.StatusResponse(
        version=__version__,
        waiting=pool.waiting,
        models=[
            msgspec.structs.replace(
                _status(model, model.spec.name in stalled),
                other_names=_other_names(model.spec, registered),
                same_weights=_same_weights(model.spec, [other.spec for other in loaded]),
            )
            for model in loaded
        ],
        pinned=[parse_name(name).short for name in pool.pinned()],
        pin_warning=pin_warning,
        pid=os.getpid(),
        places=pool.places,
        power=power_status(pool.power.report),
        memory=msgspec.convert(pool.memory(), wire.MemoryStatus, from_attributes=True),
    )


def power_status(report: PowerReport) -> PowerStatus:
    limits = report.limits
    return PowerStatus(
        setting=report.setting,
        policy=report.policy,
        reason=report.reason,
        text=report.text,
        share=limits.share * limits.pace,
        pace=limits.pace,
        background=limits.background,
        watts=report.watts,
        limit_watts=report.power_limit,
        changes=report.changes,
    )


def _other_names(spec: ModelSpec, registered: Sequence[ModelSpec]) -> list[str]:
    return sorted(other.name for other in registered if other.digest == spec.digest and other.name != spec.name)


def _same_weights(spec: ModelSpec, loaded: Sequence[ModelSpec]) -> list[str]:
    same = (other for other in loaded if other.fingerprint == spec.fingerprint and other.digest != spec.digest)
    return sorted(other.name for other in same)


def _status(model: SlotSnapshot, stalled: bool) -> wire.ModelStatus:
    beat = model.heartbeat
    use = beat.prefixes or PrefixUse()
    return wire.ModelStatus(
        name=model.spec.name,
        state=model.state,
        pinned=model.pinned,
        pid=model.pid,
        size=model.size,
        weights=model.weights,
        context_length=model.context_length,
        running=model.running,
        waiting=model.waiting,
        max_batch=beat.max_batch,
        steps=beat.steps,
        crashes=model.crashes,
        stalled=stalled,
        mean_batch=round(beat.decoded_rows / beat.decode_steps, 2) if beat.decode_steps else 0.0,
        decode_steps=beat.decode_steps,
        guessed=beat.guessed,
        accepted=beat.accepted,
        lookups=use.lookups,
        hits=use.hits,
        tokens_looked_up=use.tokens_looked_up,
        tokens_from_ram=use.tokens_from_ram,
        tokens_from_disk=use.tokens_from_disk,
        off=sorted(model.off),
    )
