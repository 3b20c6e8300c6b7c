"""The *slot table*: the slots of all models that are loading, ready or leaving, and how a slot leaves.

It is part of the pool and lives on its event loop: a method without `await` is atomic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from omlx.pool.events import PoolEvents, Unheard, UnloadReason
from omlx.pool.slot import Slot, SlotSnapshot
from omlx.pool.tasks import BackgroundTasks
from omlx.runner.host import RunnerHost

log = logging.getLogger("omlx.pool")


class SlotTable:
    """At most one slot per model. `grace`: the time in s a runner gets to end. `removed`: called after each removal."""

    def __init__(self, *, grace: float, removed: Callable[[], None]) -> None:
        self._grace = grace
        self._removed = removed
        self.slots: dict[str, Slot] = {}
        """By the digest of the model."""
        self.events: PoolEvents = Unheard()
        self.tasks = BackgroundTasks()
        self._crashes: dict[str, int] = {}
        self._changed = asyncio.Event()

    def get(self, digest: str) -> Slot | None:
        return self.slots.get(digest)

    def holds(self, slot: Slot) -> bool:
        """It has not been removed, or replaced by another of the same model."""
        return self.slots.get(slot.spec.digest) is slot

    def ready_hosts(self) -> list[RunnerHost]:
        return [s.host for s in self.slots.values() if s.state == "ready" and s.host is not None]

    def snapshots(self) -> list[SlotSnapshot]:
        """All slots, the one that expires last first."""
        models = [slot.snapshot(crashes=self.crashes(slot.spec.digest)) for slot in self.slots.values()]
        return sorted(models, key=lambda model: model.expires_at, reverse=True)

    # ------------------------------------------------------------ changes
    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change of any slot; each change makes a new one."""
        return self._changed

    def notify(self) -> None:
        """Wake everybody who waits for any slot to change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ crashes
    def crashes(self, digest: str) -> int:
        """How often in a row the model's runner has ended by itself."""
        return self._crashes.get(digest, 0)

    def forgive(self, digest: str) -> None:
        """Forget a model's crashes."""
        self._crashes.pop(digest, None)

    # ------------------------------------------------------------ leaving
    def dismiss(self, slot: Slot, reason: UnloadReason, why: str) -> None:
        """Unload an idle model: it leaves the table once its process is gone and the memory is back."""
        self.events.unloaded(slot.spec.name, reason)
        slot.stop_timer()
        slot.state = "leaving"
        log.info("%s is unloaded: %s", slot.spec.name, why)
        self.tasks.start(self._end(slot), f"unload {slot.spec.name}")

    async def _end(self, slot: Slot) -> None:
        if slot.host is not None:
            await slot.host.close(grace=self._grace)
        self.remove(slot)

    def watch(self, slot: Slot, host: RunnerHost) -> None:
        """Remove the slot as soon as its runner ends by itself, so that the next request loads the model again."""
        self.tasks.start(self._when_gone(slot, host), f"{slot.spec.name} until its end")

    async def _when_gone(self, slot: Slot, host: RunnerHost) -> None:
        await host.gone.wait()
        if slot.state == "ready" and self.holds(slot):
            digest = slot.spec.digest
            self._crashes[digest] = self.crashes(digest) + 1
            self.events.runner_ended(slot.spec.name, host.end_reason)
            slot.state = "leaving"
            self.remove(slot)

    def remove(self, slot: Slot) -> None:
        """Take out a slot whose process has ended or is about to."""
        slot.stop_timer()
        if self.holds(slot):
            del self.slots[slot.spec.digest]
            self._removed()
        self.notify()

    def end_runners(self, why: str) -> list[Coroutine[Any, Any, None]]:
        """What ends all present runners in order, to be awaited; requests that still run fail with `why`."""
        hosts = [slot.host for slot in self.slots.values() if slot.host is not None]
        return [host.close(grace=self._grace, why=why) for host in hosts]
