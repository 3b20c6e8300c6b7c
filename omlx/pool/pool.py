"""The *pool*: which models are loaded. It owns slots and runners; leases are what it hands out.

Everything happens on one event loop, so a method without `await` is atomic. Loading goes through one queue only to find
room; the loads themselves run side by side, and a request for a model that is ready never waits for another model.
Decisions are in `policy` and `admission`; this file carries them out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omlx.pool import admission, policy
from omlx.pool.admission import gib
from omlx.pool.errors import QUEUE_FULL, PoolError
from omlx.pool.lease import Lease
from omlx.pool.pins import Pins
from omlx.pool.plan import load_spec, plan_load
from omlx.pool.pressure import Pressure, memory_of, relieve
from omlx.pool.slot import LoadedModel, Slot
from omlx.pool.spare import Spare
from omlx.pool.supervisor import supervise
from omlx.runner.host import CLOSE_GRACE_S, LoadError, RunnerHost
from omlx.runner.process import RUNNER
from omlx.runner.protocol import Hello, Ready
from omlx.settings import Settings
from omlx.units import human_bytes

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

log = logging.getLogger("omlx.pool")

_SPARE_AFTER_S = 3.0
"""Seconds after the start until the first spare runner is made: the server answers first."""
_PRESSURE_EVERY_S = 1.0
_SHUTTING_DOWN = "the server is shutting down"
_SHORT_OF_MEMORY = "server busy, please try again.  the loaded models use all the memory that max_process_memory allows"


class Pool:
    """See the module text. `command` replaces the runner program; `grace` is the time in s a runner gets to end."""

    def __init__(self, settings: Settings, *, command: Sequence[str] = RUNNER, grace: float = CLOSE_GRACE_S) -> None:
        self._settings = settings
        self._grace = grace
        self._pins = Pins(Path(settings.models) / "pins.json")
        self._spare = Spare(command, enabled=settings.spare_runner)
        self._slots: dict[str, Slot] = {}
        self._crashes: dict[str, int] = {}
        self._measured: dict[str, int] = {}
        self._machine = admission.machine()
        self._places = settings.max_concurrent_requests or admission.profile(self._machine.ram).concurrent
        """Requests of one model that run at once."""
        self._hot_bytes = admission.hot_bytes(settings.hot_cache_max_size, self._machine.ram)
        self._hot_part = 1.0
        self._short_of_memory = False
        self._finding_room: asyncio.Lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._outside = 0
        """Requests that wait for a slot they may not join yet."""
        self._watching: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------ life
    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watching = [
            self._background(supervise(self._ready_hosts, self._settings.stall_timeout), "supervisor"),
            self._background(self._relieve_pressure(), "memory"),
        ]
        if self._settings.spare_runner:
            self._watching.append(self._background(self._first_spare(), "first spare runner"))

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
        await asyncio.gather(
            self._spare.close(), *(host.close(grace=self._grace) for host in hosts), return_exceptions=True
        )
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._slots.clear()

    # ------------------------------------------------------------ what others ask for
    async def acquire(self, spec: ModelSpec, *, keep_alive: float | None = None) -> Lease:
        """A lease on the model, loaded first if needed. `keep_alive` in s; None keeps what is. Raises PoolError."""
        begun = time.monotonic_ns()
        if self._short_of_memory:
            raise PoolError("busy", _SHORT_OF_MEMORY)
        slot = await self.enter(spec, keep_alive)
        return Lease(self, slot, time.monotonic_ns() - begun)

    async def unload(self, digest: str) -> None:
        """Unload a model: now if it is idle, else once its present requests are done. Returns at once."""
        slot = self._slots.get(digest)
        if slot is None or slot.state == "leaving":
            return
        slot.keep_alive = 0.0
        slot.go_when_idle = True
        if slot.users == 0 and slot.state == "ready":
            self._dismiss(slot, "it was asked to go")

    def loaded(self) -> list[LoadedModel]:
        """All models that are loading, ready or leaving, the one that expires last first, as Ollama lists them."""
        models = [slot.snapshot(crashes=self._crashes.get(slot.spec.digest, 0)) for slot in self._slots.values()]
        return sorted(models, key=lambda model: model.expires_at, reverse=True)

    def set_keep_alive(self, digest: str, keep_alive: float) -> None:
        """Change how long a loaded model stays, as a request with `keep_alive` would."""
        slot = self._slots.get(digest)
        if slot is not None:
            self._join(slot, keep_alive)
            self.release(slot)

    async def cache(
        self, digest: str, op: Literal["stats", "clear", "explain", "checkpoint"], text: str = ""
    ) -> dict[str, Any] | None:
        """Ask a loaded model's KV store something, which does not make the model stay longer; None if it isn't loaded.

        Raises RequestFailed.
        """
        slot = self._slots.get(digest)
        if slot is None or slot.host is None or slot.state != "ready":
            return None
        return await slot.host.cache(op, text)

    def pin(self, spec: ModelSpec, pinned: bool = True) -> None:
        """Pin or unpin a model by name, loaded or not. Raises OSError when that cannot be written down."""
        self._pins.set(spec.full_name, pinned)
        slot = self._slots.get(spec.digest)
        if slot is not None:
            slot.pinned = pinned
            self._settle(slot)
            self._notify()

    def pinned(self) -> list[str]:
        """Full names of the pinned models."""
        return self._pins.names()

    @property
    def waiting(self) -> int:
        """Requests that wait: for a load, for room, or for a place in a model's batch."""
        return self._outside + sum(
            max(0, slot.users - self._places) if slot.state == "ready" else slot.users for slot in self._slots.values()
        )

    # ------------------------------------------------------------ users of slots (called by leases)
    async def enter(self, spec: ModelSpec, keep_alive: float | None, *, again: bool = False) -> Slot:
        """Become a user of the model's slot, once it is ready. `again`: a replay, which no queue limit may refuse."""
        while True:
            if self._closed:
                raise PoolError("busy", _SHUTTING_DOWN)
            slot = self._slots.get(spec.digest)
            if slot is not None and not slot.joinable:
                await self._wait_outside(again)
                continue
            if not again and (slot is None or slot.state != "ready" or self._full(slot)):
                self._check_queue()
            if slot is None:
                slot = self._begin_load(spec, keep_alive)
            self._join(slot, keep_alive)
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
            self._dismiss(slot, "nobody needs it any more")
        elif after is not None:
            slot.expires_at = self._now() + after
            slot.timer = asyncio.get_running_loop().call_later(after, self._dismiss, slot, "its keep-alive has passed")

    # ------------------------------------------------------------ waiting
    def _full(self, slot: Slot) -> bool:
        return slot.users >= self._places

    def _check_queue(self) -> None:
        if self.waiting >= self._settings.max_queue:
            raise PoolError("busy", QUEUE_FULL)

    async def _wait_outside(self, again: bool) -> None:
        if not again:
            self._check_queue()
        self._outside += 1
        try:
            await self._changed.wait()
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
            policy.keep_alive_of(keep_alive, None, self._settings.keep_alive),
            pinned=spec.full_name in self._pins,
        )
        self._slots[spec.digest] = slot
        slot.load_task = self._background(self._load(slot), f"load {spec.name}")
        return slot

    async def _load(self, slot: Slot) -> None:
        """Bring a slot from "loading" to "ready", or remove it and tell those who wait why."""
        host: RunnerHost | None = None
        try:
            await asyncio.sleep(policy.restart_delay(self._crashes.get(slot.spec.digest, 0)))
            begun = self._now()
            host = await self._spare.take()
            host.name = slot.spec.name
            hello = await host.hello()
            async with self._finding_room:
                await self._find_room(slot, hello)
            slot.host = host
            told = load_spec(
                slot.spec,
                self._settings,
                context=slot.context,
                concurrent=self._places,
                hot_bytes=self._hot_share(),
                memory_bytes=slot.allowance,
            )
            ready = await host.load(told, stall_timeout=self._settings.load_timeout)
            self._become_ready(slot, host, hello, ready, self._now() - begun)
        except BaseException as error:
            self._give_up(slot, host, error)
            if not isinstance(error, LoadError | PoolError | OSError):
                raise
        finally:
            if not self._closed:
                self._background(self._spare.refill(), "spare runner")

    def _become_ready(self, slot: Slot, host: RunnerHost, hello: Hello, ready: Ready, seconds: float) -> None:
        slot.state = "ready"
        slot.context = ready.num_ctx
        slot.memory = ready.memory_bytes + ready.kv_bytes_per_token * ready.num_ctx + admission.RUNNER_OVERHEAD
        self._measured[slot.spec.digest] = slot.memory
        slot.loaded.set_result(None)
        self._share_hot_cache()
        self._background(self._when_gone(slot, host), f"{slot.spec.name} until its end")
        log.info(
            "%s is loaded: %s in %.1f s; weights %s; BLAS %s; context %d; pid %d", slot.spec.name,
            human_bytes(ready.memory_bytes), seconds, ready.weights, hello.blas, ready.num_ctx, host.pid,
        )  # fmt: skip

    def _give_up(self, slot: Slot, host: RunnerHost | None, error: BaseException) -> None:
        if host is not None:
            host.kill()
            self._background(host.close(grace=0), f"end of runner {host.pid}")
        self._remove(slot)
        if isinstance(error, asyncio.CancelledError):
            # Either nobody waits any more, or the server ends and those who wait shall hear it.
            log.info("%s: the load was given up", slot.spec.name)
            failure = PoolError("busy", _SHUTTING_DOWN)
        else:
            failure = error if isinstance(error, PoolError) else PoolError("load_failed", str(error))
            log.error("%s could not be loaded: %s", slot.spec.name, failure.message)
        slot.loaded.set_exception(failure)
        slot.loaded.exception()  # seen, even when everybody has left meanwhile

    def _hot_share(self) -> int:
        """RAM for cached prefixes that each loaded model gets: they share one budget, less under pressure."""
        models = sum(slot.state != "leaving" for slot in self._slots.values())
        return int(self._hot_bytes * self._hot_part) // max(1, models)

    def _share_hot_cache(self) -> None:
        for host in self._ready_hosts():
            host.set_hot_cache(self._hot_share())

    # ------------------------------------------------------------ room
    async def _find_room(self, slot: Slot, hello: Hello) -> None:
        """Wait until the slot may load, evicting idle models as needed; raises PoolError when it never may."""
        self._machine = machine = admission.machine(hello.device, hello.device_memory)
        held = sum(other.memory for other in self._slots.values() if other is not slot)
        measured = self._measured.get(slot.spec.digest)
        plan = plan_load(slot.spec, self._settings, machine, held=held, measured=measured)
        slot.gpu, slot.context = machine.gpu, plan.context
        drained: list[Slot] = []
        try:
            while True:
                changed = self._changed
                others = [s.resident() for s in self._slots.values() if s is not slot and s.admitted]
                match policy.make_room(others, plan.need, plan.room):
                    case policy.Fits():
                        slot.admitted, slot.memory = True, plan.need
                        slot.allowance = plan.room.budget - sum(other.memory for other in others)
                        return
                    case policy.Evict(digests):
                        for digest in digests:
                            self._dismiss(self._slots[digest], f"{slot.spec.name} needs the room")
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
    def _dismiss(self, slot: Slot, why: str) -> None:
        """Unload an idle model: it leaves the list once its process is gone and the memory is back."""
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
            slot.state = "leaving"
            self._remove(slot)

    def _remove(self, slot: Slot) -> None:
        slot.stop_timer()
        if self._slots.get(slot.spec.digest) is slot:
            del self._slots[slot.spec.digest]
            self._share_hot_cache()
        self._notify()

    # ------------------------------------------------------------ small things
    def _ready_hosts(self) -> list[RunnerHost]:
        return [s.host for s in self._slots.values() if s.state == "ready" and s.host is not None]

    async def _relieve_pressure(self) -> None:
        """Watch what the runners really take; see `pressure` for what is given up, and in which order."""
        while True:
            await asyncio.sleep(_PRESSURE_EVERY_S)
            if not self._ready_hosts():
                self._short_of_memory = False
                continue
            cap = admission.parse_cap(self._settings.max_process_memory, self._machine)
            used = memory_of(self._ready_hosts(), gpu=self._machine.gpu)
            found = Pressure(used=used, cap=cap, hot=self._hot_part if self._hot_bytes else 0.0)
            relief = relieve(found, [slot.resident() for slot in self._slots.values()])
            if relief.refuse and not self._short_of_memory:
                log.warning("memory: %s in use, %s allowed: new requests are refused", gib(found.used), gib(cap))
            self._short_of_memory = relief.refuse
            if relief.hot != self._hot_part:
                self._hot_part = relief.hot
                self._share_hot_cache()
            if relief.evict is not None:
                self._dismiss(self._slots[relief.evict], f"memory: {gib(found.used)} in use, {gib(cap)} allowed")

    async def _first_spare(self) -> None:
        await asyncio.sleep(_SPARE_AFTER_S)
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
