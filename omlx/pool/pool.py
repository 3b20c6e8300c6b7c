"""The *pool*: which models are loaded. It owns slots and runners; leases are what it hands out.

Everything happens on one event loop, so a method without `await` is atomic. A request for a model that is ready never
waits for another model. This file lets requests use slots; `slot_table` has the slots and ends them, `loading` fills
them. Decisions are in `policy` and `admission`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omlx_registry import storage_errors

from omlx.messages.failures import LoadError
from omlx.messages.frames import CacheCall
from omlx.messages.load_checks import LoadChecks
from omlx.messages.selftest import SelfTest
from omlx.messages.work_limits import WorkLimits
from omlx.pool import policy
from omlx.pool.errors import SHUTTING_DOWN, PoolError
from omlx.pool.events import PoolEvents
from omlx.pool.governor import Governor, MemoryReport
from omlx.pool.kept_checks import KeptChecks
from omlx.pool.lease import Lease
from omlx.pool.loading import SlotLoader
from omlx.pool.pins import Pins, too_many_pins
from omlx.pool.plan import keep_alive_for
from omlx.pool.selftests import SelfTests
from omlx.pool.slot import Slot, SlotSnapshot
from omlx.pool.slot_table import SlotTable
from omlx.pool.spare import Spare
from omlx.pool.supervisor import supervise
from omlx.pool.waiting import WaitingRequests
from omlx.power import PowerGovernor, sensors
from omlx.record import current
from omlx.runner.connection import in_time
from omlx.runner.host import CLOSE_GRACE_S
from omlx.runner.launch import find_machines
from omlx.runner.process import RUNNER
from omlx.settings import Settings

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

log = logging.getLogger("omlx.pool")

_STALL_SHOWS_S = 30.0
"""A model without progress for so long, or for half the stall timeout, shows as stalled."""


class Pool:
    """See the module text. `command` replaces the runner program; `grace` is the time in s a runner gets to end.

    Raises LaunchError where the settings name a hostfile that cannot be used.
    """

    def __init__(self, settings: Settings, *, command: Sequence[str] = RUNNER, grace: float = CLOSE_GRACE_S) -> None:
        self._settings = settings
        self._machines = find_machines(settings.hostfile, settings.distributed_ranks or 2)
        self._table = SlotTable(grace=grace, removed=self._deal)
        self._pins = Pins(Path(settings.models) / "pins.json")
        self._selftests = SelfTests(Path(settings.models) / "selftests.json")
        self._checks = KeptChecks(Path(settings.models) / "load-checks.json")
        self._spare = Spare(command, enabled=settings.spare_runner)
        self._governor = Governor(
            settings,
            self._machines,
            self._table.slots,
            spare=self._spare,
            dismiss=lambda slot, why: self._table.dismiss(slot, "memory", why),
            changed=self._table.notify,
        )
        self.power = PowerGovernor(
            settings.power,
            settings.power_limit,
            partial(sensors, settings.power_readings),
            busy=lambda: any(slot.users for slot in self._table.slots.values()),
            apply=self._limit_work,
        )
        self._loader = SlotLoader(
            settings, self._machines, self._table, self._governor, self._spare,
            selftests=self._selftests, checks=self._checks, limits=lambda: self.power.limits,
        )  # fmt: skip
        self._waiting = WaitingRequests(self._table, self._governor, settings.max_queue)
        self.names_changed = 0
        """How often models were made, renamed or deleted since the start."""
        self._watching: list[asyncio.Task[None]] = []
        self._closed = self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------ life
    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        background = self._table.tasks
        self._watching = [
            background.start(supervise(self._table.ready_hosts, self._settings.stall_timeout), "supervisor"),
            background.start(self._governor.watch(), "memory"),
            background.start(self.power.watch(), "power"),
        ]
        if self._settings.spare_runner:
            watching = self._spare.watch(lambda: self._governor.room_for_spare)
            self._watching.append(background.start(watching, "spare runner"))

    async def drain(self, seconds: float) -> None:
        """Take no new work and wait until what is open is done, at most so long; then `close`."""
        self._draining = True
        self._table.notify()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(slot.users for slot in self._table.slots.values()):
                    await self._table.changed.wait()

    async def close(self) -> None:
        """End all runners in order; requests that still run fail. Takes seconds at most."""
        self._closed = self._loader.closed = True
        self._table.notify()
        slots = list(self._table.slots.values())
        for slot in slots:
            slot.stop_timer()
        ends = self._table.end_runners(SHUTTING_DOWN)
        for task in [*self._watching, *(slot.load_task for slot in slots if slot.state == "loading")]:
            if task is not None:
                task.cancel()
        await asyncio.gather(self._spare.close(), *ends, return_exceptions=True)
        await self._table.tasks.finish()
        await self._spare.close()  # once more: loads that were given up meanwhile leave theirs
        self._table.slots.clear()

    # ------------------------------------------------------------ what others ask for
    @property
    def events(self) -> PoolEvents:
        """Who counts what happens to models."""
        return self._table.events

    @events.setter
    def events(self, events: PoolEvents) -> None:
        self._table.events = events

    async def acquire(self, spec: ModelSpec, *, keep_alive: float | None = None) -> Lease:
        """A lease on the model, loaded first if needed. `keep_alive` in s; None keeps what is.

        Raises PoolError, and RequestFailed where the request's deadline comes first.
        """
        begun = time.monotonic_ns()
        record = current()
        record.asks_for(spec.name)
        slot = await in_time(self._enter_with_memory(spec, keep_alive), record.deadline)
        record.has_model()
        return Lease(self, slot, time.monotonic_ns() - begun)

    async def _enter_with_memory(self, spec: ModelSpec, keep_alive: float | None) -> Slot:
        if self._governor.short:
            await self._waiting.for_memory()
        return await self.enter(spec, keep_alive)

    async def unload(self, digest: str) -> None:
        """Unload a model: now if it is idle, else once its present requests are done. Returns at once."""
        slot = self._table.get(digest)
        if slot is None or slot.state == "leaving":
            return
        slot.keep_alive = 0.0
        slot.go_when_idle = True
        if slot.users == 0 and slot.state == "ready":
            self._table.dismiss(slot, "asked", "it was asked to go")

    async def rename(self, registered: Sequence[ModelSpec]) -> None:
        """Take over a change of names: `registered` are all models that have one now.

        A loaded model is listed under a name it still has; one that has lost its last name is unloaded, for no client
        could reach it any more.
        """
        self.names_changed += 1
        names: dict[str, list[ModelSpec]] = {}
        for spec in registered:
            names.setdefault(spec.digest, []).append(spec)
        for digest, slot in list(self._table.slots.items()):
            left = names.get(digest)
            if left is None:
                await self.unload(digest)
            elif all(spec.full_name != slot.used_as.full_name for spec in left):
                slot.used_as = left[0]

    def loaded(self) -> list[SlotSnapshot]:
        """All models that are loading, ready or leaving, the one that expires last first, as Ollama lists them."""
        return self._table.snapshots()

    async def cache(self, digest: str, op: CacheCall) -> dict[str, Any] | None:
        """Ask a loaded model's KV store something, which does not make the model stay longer; None if it isn't loaded.

        Raises RequestFailed.
        """
        slot = self._table.get(digest)
        if slot is None or slot.host is None or slot.state != "ready":
            return None
        return await slot.host.cache(op)

    def pin(self, spec: ModelSpec, pinned: bool = True) -> None:
        """Pin or unpin a model by name, loaded or not. Raises StorageError when that cannot be written down."""
        with storage_errors(Path(self._settings.models)):
            self._pins.set(spec.full_name, pinned)
        slot = self._table.get(spec.digest)
        if slot is not None:
            slot.pinned = pinned
            self._settle(slot)
            self._table.notify()

    def pinned(self) -> list[str]:
        """Full names of the pinned models."""
        return self._pins.names()

    def selftest(self, digest: str) -> SelfTest | None:
        """What the last self-test of a model found; None: it was never tested."""
        return self._selftests.find(digest)

    def load_checks(self, spec: ModelSpec) -> LoadChecks | None:
        """What the load checks of a model found; None: it was never loaded."""
        return self._checks.find(spec.fingerprint)

    async def keep_selftest(self, spec: ModelSpec, result: SelfTest | None) -> None:
        """Remember what a self-test found. With None it is forgotten, and the load checks that failed are made again.

        A loaded model that this changes is unloaded. Raises StorageError when it cannot be written down.
        """
        before = self._selftests.off(spec.digest)
        with storage_errors(Path(self._settings.models)):
            self._selftests.keep(spec.digest, result)
        checks = self._checks.find(spec.fingerprint)
        again = result is None and checks is not None and bool(checks.off)
        if again:
            self._checks.forget(spec.fingerprint)
        if again or self._selftests.off(spec.digest) != before:
            await self.unload(spec.digest)

    async def contexts(self, spec: ModelSpec) -> tuple[int, int]:
        """Tokens of context: what a request gets that asks for none, and the most that there is memory for (0: not
        known). May take seconds where no runner has started yet.
        """
        if not self._governor.knows_device:
            try:
                self._governor.learn(await self._spare.hello())
            except (LoadError, OSError) as error:
                log.warning("the device of this machine is not known: %s", error)
                return 0, 0
        default, most = await asyncio.to_thread(self._governor.contexts, spec)
        slot = self._table.get(spec.digest)
        return (slot.context if slot is not None and slot.state == "ready" else default), most

    def memory(self) -> MemoryReport:
        """What models live in, and how much of it is taken."""
        return self._governor.report()

    @property
    def places(self) -> int:
        """Requests of one model that run at once."""
        return self._governor.places

    def stalled(self) -> list[str]:
        """Names of models that have work and do none."""
        limit = min(_STALL_SHOWS_S, self._settings.stall_timeout / 2)
        return [
            slot.used_as.name
            for slot in self._table.slots.values()
            if slot.state == "ready" and slot.host is not None and policy.is_stalled(slot.host.stalled_for, limit)
        ]

    @property
    def short_of_memory(self) -> bool:
        """New requests are held back until memory is free again."""
        return self._governor.short

    def pin_warning(self, registered: Sequence[ModelSpec]) -> str:
        """A sentence where the pins leave too little for other models, else "". Reads files: not on the event loop."""
        pinned = [spec for spec in registered if spec.full_name in self._pins]
        size = sum(self._governor.expected(spec) for spec in pinned)
        return too_many_pins(len(pinned), len(registered), size, self._governor.report().cap)

    @property
    def waiting(self) -> int:
        """Requests that wait: for a load, for room, or for a place in a model's batch."""
        return self._waiting.count

    # ------------------------------------------------------------ users of slots (called by leases)
    async def enter(self, spec: ModelSpec, keep_alive: float | None, *, again: bool = False) -> Slot:
        """Become a user of the model's slot, once it is ready. `again`: a replay, which no queue limit may refuse."""
        while True:
            if self._closed or (self._draining and not again):
                raise PoolError("busy", SHUTTING_DOWN)
            slot = self._table.get(spec.digest)
            if slot is not None and not slot.joinable:
                if not again:
                    self._waiting.require_room()
                await self._waiting.for_change()
                continue
            if not again and (slot is None or slot.state != "ready" or slot.users >= self.places):
                self._waiting.require_room()
            if slot is None:
                slot = self._begin_load(spec, keep_alive)
            slot.used_as = spec
            self._join(slot, keep_alive)
            log.debug("%s: %d request(s) use the model, which is %s", spec.name, slot.users, slot.state)
            if slot.state == "ready":
                return slot
            try:
                await asyncio.shield(slot.loaded)
            except PoolError as error:
                self.release(slot)
                raise PoolError(error.kind, error.message) from error
            except asyncio.CancelledError:
                self.release(slot)
                raise
            return slot

    def release(self, slot: Slot) -> None:
        """One user less; the last one starts the keep-alive timer."""
        slot.users -= 1
        slot.used_at = self._now()
        if slot.users == 0:
            self._settle(slot)
            self._table.notify()

    def release_from_anywhere(self, slot: Slot) -> None:
        """`release` from another thread or from a finalizer."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.release, slot)

    def worked(self, slot: Slot) -> None:
        """A request of this model has finished well: its crashes are forgiven."""
        self._table.forgive(slot.spec.digest)

    def _join(self, slot: Slot, keep_alive: float | None) -> None:
        if keep_alive is not None:
            slot.go_when_idle = False
        slot.keep_alive = policy.keep_alive_of(keep_alive, slot.keep_alive, self._settings.keep_alive)
        slot.users += 1
        slot.used_at = self._now()
        slot.stop_timer()

    def _limit_work(self, limits: WorkLimits) -> None:
        """The power governor has new limits."""
        for host in self._table.ready_hosts():
            host.limit(limits)
        for slot in list(self._table.slots.values()):
            if slot.users == 0 and slot.state == "ready" and limits.keep_alive != slot.shortened_to:
                self._settle(slot, idle_s=self._now() - slot.used_at)

    def _settle(self, slot: Slot, *, idle_s: float = 0.0) -> None:
        """Decide what a slot does next that has been idle for so long: go, wait for its timer, or stay."""
        slot.stop_timer()
        if slot.users > 0 or not self._table.holds(slot) or self._closed:
            return
        if slot.state == "loading":
            slot.state = "leaving"  # everybody who wanted it has left; who comes now waits for a fresh load
            if slot.load_task is not None:
                slot.load_task.cancel()
            return
        if slot.state == "leaving":
            return
        slot.shortened_to = most = self.power.limits.keep_alive
        keep_alive = policy.shortened(slot.keep_alive, default=self._settings.keep_alive, most=most)
        after = policy.expires_in(keep_alive=keep_alive - idle_s, pinned=slot.pinned)
        if slot.goes_when_idle or after == 0:
            self._table.dismiss(slot, "asked", "nobody needs it any more")
        elif after is not None:
            log.debug("%s is idle and stays for %.0f s", slot.spec.name, after)
            slot.expires_at = self._now() + after
            shorter = keep_alive < slot.keep_alive
            why = "the power policy shortens the keep-alive of idle models" if shorter else "its keep-alive has passed"
            slot.timer = asyncio.get_running_loop().call_later(
                after, self._table.dismiss, slot, "expired", why, context=contextvars.Context()
            )

    def _begin_load(self, spec: ModelSpec, keep_alive: float | None) -> Slot:
        slot = Slot(
            spec,
            policy.keep_alive_of(keep_alive, None, keep_alive_for(spec, self._settings)),
            pinned=spec.full_name in self._pins,
            off=self._selftests.off(spec.digest),
        )
        self._table.slots[spec.digest] = slot
        self._loader.start(slot)
        return slot

    def _deal(self) -> None:
        self._governor.deal()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
