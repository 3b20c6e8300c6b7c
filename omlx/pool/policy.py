"""Which models stay loaded: the pool's decisions as pure functions over frozen snapshots.

A *resident* is a model that is loading, ready or leaving; *room* is what a new model needs: a free place under
`max_loaded_models` and memory under the budget. Nothing here waits, measures or acts; the pool does that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

State = Literal["loading", "ready", "leaving"]


class Resident(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision may know about one model. Times in seconds of one monotonic clock, sizes in bytes."""

    digest: str
    state: State = "ready"
    busy: bool = False
    """It has users: running or waiting requests."""
    pinned: bool = False
    keep_alive: float = 300.0
    used_at: float = 0.0
    """When it was last in use."""
    memory: int = 0


class LoadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed: `places` models at once that hold `budget` bytes together."""

    places: int
    budget: int


class Fits(msgspec.Struct, frozen=True):
    """The model can be loaded now."""


class Evict(msgspec.Struct, frozen=True):
    """These idle models go first; then it can be loaded."""

    digests: tuple[str, ...]


class Wait(msgspec.Struct, frozen=True):
    """Room comes only when something ends: `drain` names the busy model that shall go when its requests are done.

    None: models that are leaving already make enough room.
    """

    drain: str | None


class Never(msgspec.Struct, frozen=True):
    """Waiting does not help: what holds the room is pinned."""


def victim_order(resident: Resident) -> tuple[float, float]:
    """Who goes first: the shortest keep-alive (forever last), among equals the least recently used."""
    return (resident.keep_alive, resident.used_at)


def idle_victims(residents: Sequence[Resident]) -> list[Resident]:
    """Models that may be unloaded now, first victim first."""
    idle = [r for r in residents if r.state == "ready" and not r.busy and not r.pinned]
    return sorted(idle, key=victim_order)


def make_room(residents: Sequence[Resident], need: int, room: LoadLimits) -> Fits | Evict | Wait | Never:
    """What has to happen before a model of `need` bytes can be loaded beside `residents`.

    Models that are leaving are waited for rather than evicting further ones; as few idle models as possible go; busy
    and pinned ones are never ended. A need over the budget is cut to it: whether a model can run at all is for
    `admission`.
    """
    need = min(need, room.budget)
    staying = [r for r in residents if r.state != "leaving"]
    leaving = [r for r in residents if r.state == "leaving"]

    def fits(kept: Sequence[Resident]) -> bool:
        return len(kept) < room.places and sum(r.memory for r in kept) + need <= room.budget

    if fits(residents):
        return Fits()
    if leaving and fits(staying):
        return Wait(None)
    gone: list[str] = []
    for victim in idle_victims(residents):
        gone.append(victim.digest)
        if fits([r for r in staying if r.digest not in gone]):
            return Evict(tuple(gone))
    busy = [r for r in staying if (r.busy or r.state == "loading") and not r.pinned]
    if busy:
        ready = [r for r in busy if r.state == "ready"] or busy
        return Wait(min(ready, key=victim_order).digest)
    return Wait(None) if leaving else Never()


def why_unloaded(name: str, residents: Sequence[Resident], need: int, room: LoadLimits) -> str:
    """For the log: why the model `name` of `need` bytes cannot be loaded beside all of `residents`."""
    if sum(r.memory for r in residents) + min(need, room.budget) > room.budget:
        return f"{name} needs the memory"
    count = f"{room.places} model{'' if room.places == 1 else 's'}"
    return f"{name} needs the place, at most {count} can be loaded at once (setting max_loaded_models)"


def expires_in(*, keep_alive: float, pinned: bool) -> float | None:
    """Seconds from now at which a model that has just become idle shall go; None: not by time."""
    return None if pinned or math.isinf(keep_alive) else max(0.0, keep_alive)


def keep_alive_of(requested: float | None, current: float | None, default: float) -> float:
    """Ollama's rule: a request's value replaces the model's; without one it keeps its own, or gets the default."""
    if requested is not None:
        return requested
    return default if current is None else current


def shortened(keep_alive: float, *, default: float, most: float | None) -> float:
    """A keep-alive under a limit of `most` seconds (None: no limit): only the default one is shortened."""
    return keep_alive if most is None or keep_alive != default else min(keep_alive, most)


def restart_delay(crashes: int) -> float:
    """Seconds to wait before a model is loaded again that crashed `crashes` times in a row: 0, 0, 1, 2, 4 … 30."""
    return 0.0 if crashes < 2 else min(30.0, 2.0 ** (crashes - 2))


def is_stalled(stalled_for: float, timeout: float) -> bool:
    """Requests are open and nothing has moved for `timeout` seconds (inf: never)."""
    return stalled_for > timeout
