"""A *slot* is the pool's own record of one model: who uses it, how long it stays, which runner holds it.

Only the pool changes slots, on its event loop; everybody else gets snapshots: `resident()` for decisions,
`SlotSnapshot` for lists. Times are of the loop's monotonic clock until they are shown.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from omlx.messages.context import effective_context
from omlx.messages.frames import Heartbeat
from omlx.messages.selftest import Feature
from omlx.pool.policy import Resident, State
from omlx.runner.host import RunnerHost

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

_FOREVER = timedelta(seconds=(2**63 - 1) / 1e9)
"""Go's longest duration: what Ollama adds for a model that never expires."""


_NO_BEAT = Heartbeat(steps=0, running=0, waiting=0, memory_bytes=0, max_batch=0)


class SlotSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One model in `Pool.loaded()`. Sizes in bytes, `context_length` in tokens."""

    spec: ModelSpec
    """With the name that was used last."""
    state: State
    size: int
    """Memory it takes: measured once loaded, estimated before."""
    size_vram: int
    """The part of `size` in GPU memory: all of it, or 0 on a CPU."""
    context_length: int
    """What the last request was served with."""
    default_context: int
    """What a request gets that asks for none."""
    expires_at: datetime
    """With the local offset; in the past while the model is leaving, centuries ahead when it never expires."""
    keep_alive: float
    pinned: bool
    weights: str
    """How the weights are held, as the loader says it; "" while loading."""
    pid: int
    users: int
    """Leases held."""
    running: int
    waiting: int
    """Requests that are not in the batch yet."""
    heartbeat: Heartbeat
    """The runner's own counts, at most a second old."""
    crashes: int
    """How often in a row this model's runner has ended by itself."""
    off: frozenset[Feature] = frozenset()
    """What a self-test or the load checks have switched off."""


class Slot:
    """See the module text. `loaded` is done when the model is ready, or holds the PoolError of the load."""

    def __init__(
        self, spec: ModelSpec, keep_alive: float, *, pinned: bool, off: frozenset[Feature] = frozenset()
    ) -> None:
        self.spec = spec
        self.used_as = spec
        """The same model under the name that the last request used: `copy` lets several names share one digest."""
        self._folder = _identity(spec.path)
        self.off = off
        """What a self-test has switched off for the model and, once it is loaded, the load checks."""
        self.keep_alive = keep_alive
        self.shortened_to: float | None = None
        """The keep-alive limit of the power policy when the expiry was last set."""
        self.pinned = pinned
        self.state: State = "loading"
        self.users = 0
        self.used_at = 0.0
        self.expires_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.host: RunnerHost | None = None
        self.loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.load_task: asyncio.Task[None] | None = None
        self.processes = 1
        """Of a distributed model, on this machine; its runner speaks for one of them."""
        self.admitted = False
        """It has been given room, so its memory counts."""
        self.memory = 0
        """Bytes it counts for: expected, once loaded measured, with the KV of one full context."""
        self.fixed = 0
        """The part of `memory` that is not KV, once it is measured."""
        self.context = 0
        """Tokens a request gets that asks for none."""
        self._context_in_use = 0
        """Tokens the last request got that asked for a context of its own; 0: it asked for none."""
        self._contexts_served: Counter[int] = Counter()
        """How many of the present requests have a context of so many tokens."""
        self.gpu = False
        self.go_when_idle = False
        """An unload was asked for while it was busy."""
        self.draining = False
        """Another model waits for its room: it takes no new users and goes when the present ones are done."""

    @property
    def joinable(self) -> bool:
        """New users may join: it is loading or ready, its runner lives, and nobody waits for its room."""
        if self.state == "leaving" or self.draining:
            return False
        return self.state == "loading" or (self.host is not None and self.host.alive)

    @property
    def committed(self) -> int:
        """Bytes it counts for now: more than `memory` while its requests have been promised more than one context."""
        promised = self.host.heartbeat.reserved_bytes if self.host is not None else 0
        return max(self.memory, self.fixed + promised)

    @property
    def goes_when_idle(self) -> bool:
        return self.go_when_idle or self.draining

    @property
    def lost(self) -> bool:
        """The folder it was to be loaded from is gone, or another one: its model was changed or deleted meanwhile."""
        now = _identity(self.spec.path)
        return now is None or now != self._folder

    def serve_context(self, num_ctx: int) -> None:
        """Note the context that a request is served with: `num_ctx` as it asks for it, 0 for none."""
        trained = self.spec.context_length
        self._context_in_use = effective_context(num_ctx, self.context, trained) if num_ctx > 0 else 0

    @contextmanager
    def serving(self, num_ctx: int) -> Iterator[None]:
        """`serve_context`, for as long as the request runs."""
        self.serve_context(num_ctx)
        context = self._context_in_use or self.context
        self._contexts_served[context] += 1
        try:
            yield
        finally:
            self._contexts_served -= Counter((context,))

    @property
    def _context_shown(self) -> int:
        """The largest that a present request has; without any, that of the last one."""
        return max(self._contexts_served, default=self._context_in_use or self.context)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.expires_at = None

    def resident(self) -> Resident:
        return Resident(
            digest=self.spec.digest,
            state=self.state,
            busy=self.users > 0,
            pinned=self.pinned,
            keep_alive=self.keep_alive,
            used_at=self.used_at,
            memory=self.committed,
        )

    def snapshot(self, *, crashes: int) -> SlotSnapshot:
        host = self.host
        beat = host.heartbeat if host is not None else _NO_BEAT
        ready = host.ready if host is not None else None
        size = max(beat.memory_bytes, ready.memory_bytes) * self.processes if ready else self.memory
        return SlotSnapshot(
            spec=self.used_as,
            state=self.state,
            size=size,
            size_vram=size if self.gpu else 0,
            context_length=self._context_shown,
            default_context=self.context,
            expires_at=self._expiry(),
            keep_alive=self.keep_alive,
            pinned=self.pinned,
            weights=ready.weights if ready else "",
            pid=host.pid if host is not None else 0,
            users=self.users,
            running=beat.running,
            waiting=beat.waiting if ready else self.users,
            heartbeat=beat,
            crashes=crashes,
            off=self.off,
        )

    def _expiry(self) -> datetime:
        now = datetime.now().astimezone()
        if self.state == "leaving" or self.goes_when_idle:
            return now
        if self.pinned or math.isinf(self.keep_alive):
            return now + _FOREVER
        if self.expires_at is None:
            return now + timedelta(seconds=self.keep_alive)
        return now + timedelta(seconds=self.expires_at - asyncio.get_running_loop().time())


def _identity(folder: str) -> tuple[int, int, int] | None:
    """What tells a folder from one that is made in its place; None: there is none."""
    try:
        status = Path(folder).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
