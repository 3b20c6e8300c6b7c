"""Loading: how a slot gets from "loading" to "ready", or fails.

A load first gets a process, then room, then its model. Only finding room goes through a queue; the loads themselves
run side by side.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from omlx.messages.failures import LoadError
from omlx.messages.frames import Hello, Ready
from omlx.messages.work_limits import WorkLimits
from omlx.pool import load_watch, policy
from omlx.pool.errors import GONE, SHUTTING_DOWN, PoolError
from omlx.pool.governor import Governor
from omlx.pool.kept_checks import KeptChecks
from omlx.pool.plan import group_for, load_spec
from omlx.pool.selftests import SelfTests
from omlx.pool.slot import Slot
from omlx.pool.slot_table import SlotTable
from omlx.pool.spare import Spare
from omlx.runner.host import RunnerHost
from omlx.runner.launch import GroupPlan, Machines
from omlx.settings import Settings
from omlx.units import human_bytes

log = logging.getLogger("omlx.pool")


class SlotLoader:
    """Part of the pool, on its event loop. `closed`: the server ends, and no spare runner is made any more."""

    def __init__(
        self,
        settings: Settings,
        machines: Machines,
        table: SlotTable,
        governor: Governor,
        spare: Spare,
        *,
        selftests: SelfTests,
        checks: KeptChecks,
        limits: Callable[[], WorkLimits],
    ) -> None:
        self._settings = settings
        self._machines = machines
        self._table = table
        self._governor = governor
        self._spare = spare
        self._selftests = selftests
        self._checks = checks
        self._limits = limits
        self._finding_room = asyncio.Lock()
        self.closed = False

    def start(self, slot: Slot) -> None:
        """Begin to load a slot that is in the table. `slot.loaded` gets the result."""
        slot.load_task = self._table.tasks.start(self._load(slot), f"load {slot.spec.name}")

    async def _load(self, slot: Slot) -> None:
        """Bring a slot from "loading" to "ready", or remove it and give the reason to those who wait."""
        host: RunnerHost | None = None
        group: GroupPlan | None = None
        try:
            await asyncio.sleep(policy.restart_delay(self._table.crashes(slot.spec.digest)))
            begun = asyncio.get_running_loop().time()
            group = group_for(slot.spec, self._settings, self._machines)
            slot.processes = self._machines.here if group else 1
            host = await (self._spare.take() if group is None else RunnerHost.spawn_group(group))
            host.name = slot.spec.name
            log.debug("%s is loaded by process %d, %.1f s old", slot.spec.name, host.pid, host.age)
            hello = await host.hello()
            async with self._finding_room:
                await self._find_room(slot, hello)
            slot.host = host
            ready = await self._load_into(slot, host)
            self._become_ready(slot, host, hello, ready, asyncio.get_running_loop().time() - begun)
        except BaseException as error:
            if host is not None and group is None and slot.host is None and self._may_keep(error):
                self._spare.keep(host)  # no model was sent to it yet, and its imports take seconds
                host = None
            self._give_up(slot, host, error)
            if not isinstance(error, LoadError | PoolError | OSError):
                raise
        finally:
            if not self.closed:
                self._table.tasks.start(self._refill_spare(), "spare runner")

    async def _load_into(self, slot: Slot, host: RunnerHost) -> Ready:
        limit = self._governor.load_limit(slot)
        spec = load_spec(
            slot.spec,
            self._settings,
            context=slot.context,
            concurrent=self._governor.places,
            hot_bytes=self._governor.hot_share() // slot.processes,
            memory_bytes=self._governor.load_share(slot) // slot.processes,
            off=slot.off,
            checks=self._checks.find(slot.spec.fingerprint),
        )
        loading = host.load(spec, stall_timeout=self._settings.load_timeout)
        return await load_watch.within(host, limit, loading, processes=slot.processes, reserves=not slot.gpu)

    def _become_ready(self, slot: Slot, host: RunnerHost, hello: Hello, ready: Ready, seconds: float) -> None:
        slot.state = "ready"
        slot.context = ready.num_ctx
        if ready.checks is not None:
            slot.off |= {*ready.checks.off}
            self._checks.note(slot.spec.fingerprint, ready.checks)
        self._governor.loaded(slot, ready)
        slot.loaded.set_result(None)
        self._governor.deal()
        host.limit(self._limits())
        self._table.events.loaded(slot.spec.name, seconds)
        self._table.watch(slot, host)
        log.info(
            "%s is loaded: %s in %.1f s; weights %s; BLAS %s; context %d; pid %d", slot.spec.name,
            human_bytes(ready.memory_bytes), seconds, ready.weights, hello.blas, ready.num_ctx, host.pid,
        )  # fmt: skip
        selftest = self._selftests.find(slot.spec.digest)
        for results in (selftest, ready.checks):
            for note in results.notes if results is not None else ():
                log.warning("%s: %s", slot.spec.name, note)

    def _may_keep(self, error: BaseException) -> bool:
        """Whether a runner without a model may wait for the next load, where this one ends with `error`."""
        is_given_up = isinstance(error, asyncio.CancelledError | PoolError)
        return is_given_up and not self.closed and self._governor.room_for_spare

    def _give_up(self, slot: Slot, host: RunnerHost | None, error: BaseException) -> None:
        if host is not None:
            host.kill()
            self._table.tasks.start(host.close(grace=0), f"end of runner {host.pid}")
        self._table.remove(slot)
        if isinstance(error, asyncio.CancelledError):
            # Either nobody waits any more, or the server ends, which those who wait are told.
            log.info("%s: the load was given up", slot.spec.name)
            self._table.events.load_failed(slot.spec.name, "given_up")
            failure = PoolError("busy", SHUTTING_DOWN)
        elif slot.lost:
            failure = PoolError("gone", GONE)
            log.info("%s: the load was given up: %s", slot.spec.name, GONE)
            self._table.events.load_failed(slot.spec.name, failure.kind)
        else:
            # A client must not see where on the server the files are.
            text = str(error).replace(f"{slot.spec.path}/", "")
            failure = error if isinstance(error, PoolError) else PoolError("load_failed", text)
            log.error("%s could not be loaded: %s", slot.spec.name, failure.message)
            self._table.events.load_failed(slot.spec.name, failure.kind)
        slot.loaded.set_exception(failure)
        slot.loaded.exception()  # seen, even when everybody has left meanwhile

    async def _refill_spare(self) -> None:
        if self._governor.room_for_spare:
            await self._spare.refill()

    # ------------------------------------------------------------ room
    async def _find_room(self, slot: Slot, hello: Hello) -> None:
        """Wait until the slot may load, evicting idle models as needed; raises PoolError when it never may."""
        plan = self._governor.plan(slot.spec, hello)
        slot.gpu, slot.context = hello.device != "cpu", plan.context
        slots = self._table.slots
        drained: list[Slot] = []
        try:
            while True:
                changed = self._table.changed
                others = [other.resident() for other in slots.values() if other is not slot and other.admitted]
                decision = policy.make_room(others, plan.need, plan.room)
                log.debug(
                    "%s needs %s beside %d other model(s): %s", slot.spec.name, human_bytes(plan.need), len(others),
                    type(decision).__name__.lower(),
                )  # fmt: skip
                match decision:
                    case policy.Fits():
                        slot.admitted, slot.memory = True, plan.need
                        return
                    case policy.Evict(digests):
                        why = policy.why_unloaded(slot.spec.name, others, plan.need, plan.room)
                        for digest in digests:
                            self._table.dismiss(slots[digest], "room", why)
                        continue
                    case policy.Wait(digest):
                        if digest is not None and not slots[digest].draining:
                            slots[digest].draining = True
                            drained.append(slots[digest])
                            log.info("%s waits for %s to finish", slot.spec.name, slots[digest].spec.name)
                    case policy.Never():
                        message = f"no room for {slot.spec.name}: all loaded models are pinned; unpin one of them"
                        raise PoolError("busy", message)
                await changed.wait()
        finally:
            for other in drained:
                other.draining = False
            self._table.notify()
