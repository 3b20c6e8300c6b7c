"""Advice from what a running server says of itself. Pure."""

from __future__ import annotations

from omlx.doctor.finding import Finding
from omlx.protocols.admin import wire as admin
from omlx.units import human_bytes

_ENOUGH_STEPS = 200
_ENOUGH_TOKENS = 2000
"""Below these, figures say nothing yet."""
_FULL_ENOUGH = 0.5
_MUCH_FROM_SSD = 0.3


def advise(status: admin.StatusResponse) -> list[Finding]:
    """One finding for memory and pins, and those that each loaded model gives reason for."""
    return [
        _memory(status.memory),
        _pins(status),
        *(finding for model in status.models for finding in _model(model, status.places)),
    ]


def _memory(memory: admin.MemoryStatus) -> Finding:
    text = f"{human_bytes(memory.used)} of {human_bytes(memory.cap)} in use ({memory.device})"
    if memory.short:
        how = "unload or unpin models, use smaller ones, or raise --max-process-memory"
        return Finding("memory in use", "fail", f"{text}: new requests are held back", how)
    if memory.used > 0.9 * memory.cap:
        return Finding("memory in use", "warn", text, "the next model will make idle ones go")
    return Finding("memory in use", "ok", text)


def _pins(status: admin.StatusResponse) -> Finding:
    if status.pin_warning:
        return Finding("pins", "warn", status.pin_warning, "`omlx unpin MODEL` lets a model go when room is needed")
    count = len(status.pinned)
    return Finding("pins", "ok", f"{count} pinned model{'' if count == 1 else 's'}")


def _model(model: admin.ModelStatus, places: int) -> list[Finding]:
    name = f"model {model.name}"
    findings = []
    if model.stalled:
        text = "it has work and makes no progress"
        findings.append(Finding(name, "fail", text, "its runner is restarted after --stall-timeout; the log says more"))
    if model.crashes:
        text = f"its runner has ended by itself {model.crashes} time{'s' if model.crashes > 1 else ''} in a row"
        findings.append(Finding(name, "fail", text, "the server's log names the reason"))
    fill = model.mean_batch / places if places else 1.0
    if model.decode_steps >= _ENOUGH_STEPS and fill < _FULL_ENOUGH:
        text = f"its batches are {fill:.0%} full: {model.mean_batch:.1f} of {places} requests per step"
        how = "for one user that is as it should be; where many wait, let clients send their requests at the same time"
        findings.append(Finding(name, "warn", text, how))
    if model.tokens_looked_up >= _ENOUGH_TOKENS and model.tokens_from_disk > _MUCH_FROM_SSD * model.tokens_looked_up:
        share = model.tokens_from_disk / model.tokens_looked_up
        text = f"{share:.0%} of the prompt tokens come from the SSD cache"
        findings.append(
            Finding(name, "warn", text, "RAM is faster: raise --hot-cache-max-size, if there is memory for it")
        )
    if not findings:
        findings.append(Finding(name, "ok", f"{model.state}, {model.running} running, {model.waiting} waiting"))
    return findings
