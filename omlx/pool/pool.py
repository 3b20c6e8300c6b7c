"""The *pool*: which models are loaded. It owns slots and runners; leases are what it hands out.

Everything happens on one event loop, so a method without `await` is atomic. Loading goes through one queue only to
find room; the loads themselves run side by side, and a request for a model that is ready never waits for another
model. Decisions are in `policy` and `admission`; this file carries them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omlx_registry import storage_errors

from omlx.messages.failures import LoadError
from omlx.messages.frames import CacheCall, Hello, Ready
from omlx.messages.load_checks import LoadChecks
from omlx.messages.selftest import SelfTest
from omlx.pool import load_watch, policy
from omlx.pool.errors import GONE, QUEUE_FULL, SHUTTING_DOWN, PoolError
from omlx.pool.events import PoolEvents, Unheard, UnloadReason
from omlx.pool.governor import Governor, MemoryReport
from omlx.pool.kept_checks import KeptChecks
from omlx.pool.lease import Lease
from omlx.pool.pins import Pins, too_many_pins
from omlx.pool.plan import group_for, keep_alive_for, load_spec
from omlx.pool.selftests import SelfTests
from omlx.pool.slot import Slot, SlotSnapshot
from omlx.pool.spare import Spare
from omlx.pool.supervisor import supervise
from omlx.record import current
from omlx.runner.connection import in_time
from omlx.runner.host import CLOSE_GRACE_S, RunnerHost
from omlx.runner.launch import GroupPlan, find_machines
from omlx.runner.process import RUNNER
from omlx.settings import Settings
from omlx.units import human_bytes

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

log = logging.getLogger("omlx.pool")

_SPARE_AFTER_S = 3.0
"""Seconds after the start until the first spare runner is made: the server answers first."""
_SPARE_CHECK_S = 5.0
_HOLD_S = 5.0
"""How long a new request waits for memory that all models together lack, before it is told to come back later."""
_STALL_SHOWS_S = 30.0
"""A model without progress for so long, or for half the stall timeout, shows as stalled."""
_SHORT_OF_MEMORY = "server busy, please try again.  the loaded models use all the memory that max_process_memory allows"


class Pool:
    """See the module text. `command` replaces the runner program; `grace` is the time in s a runner gets to end.

    Raises LaunchError where the settings name a hostfile that cannot be used.
    """

    def __init__(self, settings: Settings, *, command: Sequence[str] = RUNNER, grace: float = CLOSE_GRACE_S) -> None:
        self._settings = settings
        self._machines = find_machines(settings.hostfile, settings.distributed_ranks or 2)
        self._grace = grace
        self.events: PoolEvents = Unheard()
        self._pins = Pins(Path(settings.models) / "pins.json")
        self._selftests = SelfTests(Path(settings.models) / "selftests.json")
        self._checks = KeptChecks(Path(settings.models) / "load-checks.json")
        self._spare = Spare(command, enabled=settings.spare_runner)
        self._slots: dict[str, Slot] = {}
        self._crashes: dict[str, int] = {}
        self._governor = Governor(
            settings,
            self._machines,
            self._slots,
            spare=self._spare,
            dismiss=lambda slot, why: self._dismiss(slot, "memory", why),
            changed=self._notify,
        )
        self._finding_room: asyncio.Lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self.names_changed = 0
        """How often models were made, renamed or deleted since the start."""
        self._outside = 0
        """Requests that wait for a slot they may not join yet."""
        self._watching: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------ life
    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watching = [
            self._background(supervise(self._ready_hosts, self._settings.stall_timeout), "supervisor"),
            self._background(self._governor.watch(), "memory"),
        ]
        if self._settings.spare_runner:
            self._watching.append(self._background(self._keep_spare(), "spare runner"))

    async def drain(self, seconds: float) -> None:
        """Take no new work and wait until what is open is done, at most so long; then `close`."""
        self._draining = True
        self._notify()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(slot.users for slot in self._slots.values()):
                    await self._changed.wait()

    async def close(self) -> None:
        """End all runners in order; requests that still run fail. Takes seconds at most."""
        self._closed = True
        self._notify()
        slots = list(self._slots.values())
        for slot in slots:
            slot.stop_timer()
        for task in [*self._watching, *(slot.load_task for slot in slots if slot.state == "loading")]:
            if task is not None:
                task.cancel()
        hosts = [slot.host for slot in slots if slot.host is not None]
        ends = (host.close(grace=self._grace, why=SHUTTING_DOWN) for host in hosts)
        await asyncio.gather(self._spare.close(), *ends, return_exceptions=True)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._spare.close()  # once more: loads that were given up meanwhile leave theirs
        self._slots.clear()

    # ------------------------------------------------------------ what others ask for
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
            await self._wait_for_memory()
        return await self.enter(spec, keep_alive)

    async def unload(self, digest: str) -> None:
        """Unload a model: now if it is idle, else once its present requests are done. Returns at once."""
        slot = self._slots.get(digest)
        if slot is None or slot.state == "leaving":
            return
        slot.keep_alive = 0.0
        slot.go_when_idle = True
        if slot.users == 0 and slot.state == "ready":
            self._dismiss(slot, "asked", "it was asked to go")

    async def rename(self, registered: Sequence[ModelSpec]) -> None:
        """Take over a change of names: `registered` are all models that have one now.

        A loaded model is listed under a name it still has; one that has lost its last name is unloaded, for no client
        could reach it any more.
        """
        self.names_changed += 1
        names: dict[str, list[ModelSpec]] = {}
        for spec in registered:
            names.setdefault(spec.digest, []).append(spec)
        for digest, slot in list(self._slots.items()):
            left = names.get(digest)
            if left is None:
                await self.unload(digest)
            elif all(spec.full_name != slot.used_as.full_name for spec in left):
                slot.used_as = left[0]

    def loaded(self) -> list[SlotSnapshot]:
        """All models that are loading, ready or leaving, the one that expires last first, as Ollama lists them."""
        models = [slot.snapshot(crashes=self._crashes.get(slot.spec.digest, 0)) for slot in self._slots.values()]
        return sorted(models, key=lambda model: model.expires_at, reverse=True)

    async def cache(self, digest: str, op: CacheCall) -> dict[str, Any] | None:
        """Ask a loaded model's KV store something, which does not make the model stay longer; None if it isn't loaded.

        Raises RequestFailed.
        """
        slot = self._slots.get(digest)
        if slot is None or slot.host is None or slot.state != "ready":
            return None
        return await slot.host.cache(op)

    def pin(self, spec: ModelSpec, pinned: bool = True) -> None:
        """Pin or unpin a model by name, loaded or not. Raises StorageError when that cannot be written down."""
        with storage_errors(Path(self._settings.models)):
            self._pins.set(spec.full_name, pinned)
        slot = self._slots.get(spec.digest)
        if slot is not None:
            slot.pinned = pinned
            self._settle(slot)
            self._notify()

    def pinned(self) -> list[str]:
        """Full names of the pinned models."""
        return self._pins.names()

    def selftest(self, digest: str) -> SelfTest | None:
        """What the last self-test of a model found; None: it was never tested."""
        return self._selftests.find(digest)

    def load_checks(self, spec: ModelSpec) -> LoadChecks | None:
        """What the load checks of a model found; None: it was never loaded."""
        return self._checks.find(spec.fingerprint)

    async def keep_selftest(self, spec: ModelSpec, found: SelfTest | None) -> None:
        """Remember what a self-test found. With None it is forgotten, and the load checks that failed are made again.

        A loaded model that this changes is unloaded. Raises StorageError when it cannot be written down.
        """
        before = self._selftests.off(spec.digest)
        with storage_errors(Path(self._settings.models)):
            self._selftests.keep(spec.digest, found)
        checks = self._checks.find(spec.fingerprint)
        again = found is None and checks is not None and bool(checks.off)
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
        slot = self._slots.get(spec.digest)
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
            for slot in self._slots.values()
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
        return self._outside + sum(
            max(0, slot.users - self.places) if slot.state == "ready" else slot.users for slot in self._slots.values()
        )

    # ------------------------------------------------------------ users of slots (called by leases)
    async def enter(self, spec: ModelSpec, keep_alive: float | None, *, again: bool = False) -> Slot:
        """Become a user of the model's slot, once it is ready. `again`: a replay, which no queue limit may refuse."""
        while True:
            if self._closed or (self._draining and not again):
                raise PoolError("busy", SHUTTING_DOWN)
            slot = self._slots.get(spec.digest)
            if slot is not None and not slot.joinable:
                await self._wait_outside(again)
                continue
            if not again and (slot is None or slot.state != "ready" or self._full(slot)):
                self._check_queue()
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
            self._notify()

    def release_from_anywhere(self, slot: Slot) -> None:
        """`release` from another thread or from a finalizer."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.release, slot)

    def worked(self, slot: Slot) -> None:
        """A request of this model has finished well: its crashes are forgiven."""
        self._crashes.pop(slot.spec.digest, None)

    def _join(self, slot: Slot, keep_alive: float | None) -> None:
        if keep_alive is not None:
            slot.go_when_idle = False
        slot.keep_alive = policy.keep_alive_of(keep_alive, slot.keep_alive, self._settings.keep_alive)
        slot.users += 1
        slot.used_at = self._now()
        slot.stop_timer()

    def _settle(self, slot: Slot) -> None:
        """Decide what an idle slot does next: go, wait for its timer, or stay."""
        slot.stop_timer()
        if slot.users > 0 or self._slots.get(slot.spec.digest) is not slot or self._closed:
            return
        if slot.state == "loading":
            slot.state = "leaving"  # everybody who wanted it has left; who comes now waits for a fresh load
            if slot.load_task is not None:
                slot.load_task.cancel()
            return
        if slot.state == "leaving":
            return
        after = policy.expires_in(keep_alive=slot.keep_alive, pinned=slot.pinned)
        if slot.goes_when_idle or after == 0:
            self._dismiss(slot, "asked", "nobody needs it any more")
        elif after is not None:
            log.debug("%s is idle and stays for %.0f s", slot.spec.name, after)
            slot.expires_at = self._now() + after
            slot.timer = asyncio.get_running_loop().call_later(
                after, self._dismiss, slot, "expired", "its keep-alive has passed", context=contextvars.Context()
            )

    # ------------------------------------------------------------ waiting
    def _full(self, slot: Slot) -> bool:
        return slot.users >= self.places

    def _check_queue(self) -> None:
        if self.waiting >= self._settings.max_queue:
            log.debug("refused: %d requests wait, max_queue allows %d", self.waiting, self._settings.max_queue)
            raise PoolError("busy", QUEUE_FULL)

    async def _wait_outside(self, again: bool) -> None:
        if not again:
            self._check_queue()
        self._outside += 1
        try:
            await self._changed.wait()
        finally:
            self._outside -= 1

    async def _wait_for_memory(self) -> None:
        self._check_queue()
        self._outside += 1
        try:
            async with asyncio.timeout(_HOLD_S):
                while self._governor.short:
                    await self._changed.wait()
        except TimeoutError:
            raise PoolError("busy", _SHORT_OF_MEMORY) from None
        finally:
            self._outside -= 1

    def _notify(self) -> None:
        """Wake everybody who waits for any slot to change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # ------------------------------------------------------------ loading
    def _begin_load(self, spec: ModelSpec, keep_alive: float | None) -> Slot:
        slot = Slot(
            spec,
            policy.keep_alive_of(keep_alive, None, keep_alive_for(spec, self._settings)),
            pinned=spec.full_name in self._pins,
            off=self._selftests.off(spec.digest),
        )
        self._slots[spec.digest] = slot
        slot.load_task = self._background(self._load(slot), f"load {spec.name}")
        return slot

    async def _load(self, slot: Slot) -> None:
        """Bring a slot from "loading" to "ready", or remove it and tell those who wait why."""
        host: RunnerHost | None = None
        group: GroupPlan | None = None
        try:
            await asyncio.sleep(policy.restart_delay(self._crashes.get(slot.spec.digest, 0)))
            begun = self._now()
            group = group_for(slot.spec, self._settings, self._machines)
            slot.processes = self._machines.here if group else 1
            host = await (self._spare.take() if group is None else RunnerHost.spawn_group(group))
            host.name = slot.spec.name
            log.debug("%s is loaded by process %d, %.1f s old", slot.spec.name, host.pid, host.age)
            hello = await host.hello()
            async with self._finding_room:
                await self._find_room(slot, hello)
            slot.host = host
            limit = self._governor.load_limit(slot)
            told = load_spec(
                slot.spec,
                self._settings,
                context=slot.context,
                concurrent=self.places,
                hot_bytes=self._governor.hot_share() // slot.processes,
                memory_bytes=self._governor.load_share(slot) // slot.processes,
                off=slot.off,
                checks=self._checks.find(slot.spec.fingerprint),
            )
            loading = host.load(told, stall_timeout=self._settings.load_timeout)
            ready = await load_watch.within(host, limit, loading, processes=slot.processes, reserves=not slot.gpu)
            self._become_ready(slot, host, hello, ready, self._now() - begun)
        except BaseException as error:
            if host is not None and group is None and slot.host is None and self._may_keep(error):
                self._spare.keep(host)  # it was told nothing yet, and its imports take seconds
                host = None
            self._give_up(slot, host, error)
            if not isinstance(error, LoadError | PoolError | OSError):
                raise
        finally:
            if not self._closed:
                self._background(self._refill_spare(), "spare runner")

    def _become_ready(self, slot: Slot, host: RunnerHost, hello: Hello, ready: Ready, seconds: float) -> None:
        slot.state = "ready"
        slot.context = ready.num_ctx
        if ready.checks is not None:
            slot.off |= {*ready.checks.off}
            self._checks.note(slot.spec.fingerprint, ready.checks)
        self._governor.loaded(slot, ready)
        slot.loaded.set_result(None)
        self._governor.deal()
        self.events.loaded(slot.spec.name, seconds)
        self._background(self._when_gone(slot, host), f"{slot.spec.name} until its end")
        log.info(
            "%s is loaded: %s in %.1f s; weights %s; BLAS %s; context %d; pid %d", slot.spec.name,
            human_bytes(ready.memory_bytes), seconds, ready.weights, hello.blas, ready.num_ctx, host.pid,
        )  # fmt: skip
        found = self._selftests.find(slot.spec.digest)
        notes = [*(found.notes if found is not None else ()), *(ready.checks.notes if ready.checks is not None else ())]
        for note in notes:
            log.warning("%s: %s", slot.spec.name, note)

    def _may_keep(self, error: BaseException) -> bool:
        """Whether a runner without a model may wait for the next load, where this one ends with `error`."""
        given_up = isinstance(error, asyncio.CancelledError | PoolError)
        return given_up and not self._closed and self._governor.room_for_spare

    def _give_up(self, slot: Slot, host: RunnerHost | None, error: BaseException) -> None:
        if host is not None:
            host.kill()
            self._background(host.close(grace=0), f"end of runner {host.pid}")
        self._remove(slot)
        if isinstance(error, asyncio.CancelledError):
            # Either nobody waits any more, or the server ends and those who wait shall hear it.
            log.info("%s: the load was given up", slot.spec.name)
            self.events.load_failed(slot.spec.name, "given_up")
            failure = PoolError("busy", SHUTTING_DOWN)
        elif slot.lost:
            failure = PoolError("gone", GONE)
            log.info("%s: the load was given up: %s", slot.spec.name, GONE)
            self.events.load_failed(slot.spec.name, failure.kind)
        else:
            # Where on the server its files are is no concern of a client.
            text = str(error).replace(f"{slot.spec.path}/", "")
            failure = error if isinstance(error, PoolError) else PoolError("load_failed", text)
            log.error("%s could not be loaded: %s", slot.spec.name, failure.message)
            self.events.load_failed(slot.spec.name, failure.kind)
        slot.loaded.set_exception(failure)
        slot.loaded.exception()  # seen, even when everybody has left meanwhile

    # ------------------------------------------------------------ room
    async def _find_room(self, slot: Slot, hello: Hello) -> None:
        """Wait until the slot may load, evicting idle models as needed; raises PoolError when it never may."""
        plan = self._governor.plan(slot.spec, hello)
        slot.gpu, slot.context = hello.device != "cpu", plan.context
        drained: list[Slot] = []
        try:
            while True:
                changed = self._changed
                others = [s.resident() for s in self._slots.values() if s is not slot and s.admitted]
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
                            self._dismiss(self._slots[digest], "room", why)
                        continue
                    case policy.Wait(digest):
                        if digest is not None and not self._slots[digest].draining:
                            self._slots[digest].draining = True
                            drained.append(self._slots[digest])
                            log.info("%s waits for %s to finish", slot.spec.name, self._slots[digest].spec.name)
                    case policy.Never():
                        raise PoolError("busy", f"no room for {slot.spec.name}: all loaded models are pinned")
                await changed.wait()
        finally:
            for other in drained:
                other.draining = False
            self._notify()

    # ------------------------------------------------------------ leaving
    def _dismiss(self, slot: Slot, reason: UnloadReason, why: str) -> None:
        """Unload an idle model: it leaves the list once its process is gone and the memory is back."""
        self.events.unloaded(slot.spec.name, reason)
        slot.stop_timer()
        slot.state = "leaving"
        log.info("%s is unloaded: %s", slot.spec.name, why)
        self._background(self._end(slot), f"unload {slot.spec.name}")

    async def _end(self, slot: Slot) -> None:
        if slot.host is not None:
            await slot.host.close(grace=self._grace)
        self._remove(slot)

    async def _when_gone(self, slot: Slot, host: RunnerHost) -> None:
        """A runner that ends by itself leaves the list at once, so that the next request loads the model again."""
        await host.gone.wait()
        if slot.state == "ready" and self._slots.get(slot.spec.digest) is slot:
            digest = slot.spec.digest
            self._crashes[digest] = self._crashes.get(digest, 0) + 1
            self.events.runner_ended(slot.spec.name, host.end_reason)
            slot.state = "leaving"
            self._remove(slot)

    def _remove(self, slot: Slot) -> None:
        slot.stop_timer()
        if self._slots.get(slot.spec.digest) is slot:
            del self._slots[slot.spec.digest]
            self._governor.deal()
        self._notify()

    # ------------------------------------------------------------ small things
    def _ready_hosts(self) -> list[RunnerHost]:
        return [s.host for s in self._slots.values() if s.state == "ready" and s.host is not None]

    async def _keep_spare(self) -> None:
        await asyncio.sleep(_SPARE_AFTER_S)
        await self._refill_spare()
        while True:
            await asyncio.sleep(_SPARE_CHECK_S)
            await self._spare.check()

    async def _refill_spare(self) -> None:
        if self._governor.room_for_spare:
            await self._spare.refill()

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", task.get_name(), exc_info=task.exception())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
