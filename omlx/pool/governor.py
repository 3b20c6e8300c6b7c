"""The *governor*: the memory that all models share.

It knows the machine, plans loads by it, deals out what each runner may use, and once a second looks at what is
really taken: see `pressure` for what is given up, and in which order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from omlx.messages.frames import Hello, HotCacheShare, Ready
from omlx.messages.load_spec import RUNNER_OVERHEAD
from omlx.pool import admission, pressure
from omlx.pool.admission import gib
from omlx.pool.measured import Measurement, Measurements
from omlx.pool.plan import LoadPlan, group_for, manner, plan_load
from omlx.pool.pressure import Pressure, relieve, taken_by
from omlx.pool.slot import Slot
from omlx.pool.spare import Spare
from omlx.runner.launch import GroupPlan, Machines
from omlx.settings import Settings

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

log = logging.getLogger("omlx.pool")

_EVERY_S = 1.0
_WORTH_TELLING = 1 / 16
"""A runner hears of a new share when it differs by this part from the one before."""


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What models live in, for status and doctor. Bytes."""

    device: str
    ram: int
    available: int
    device_memory: int
    """0 without a GPU, and until the first runner has said what there is."""
    used: int
    """By the server and all its processes, or by MLX on the GPU: whichever is nearer to its cap."""
    cap: int
    hot: int
    """RAM for cached prefixes, all models together."""
    short: bool
    """New requests are held back until memory is free again."""


class Governor:
    """Made and used by the pool only. `slots` is the pool's own table, `changed` wakes whoever waits for the pool."""

    def __init__(
        self,
        settings: Settings,
        machines: Machines,
        slots: Mapping[str, Slot],
        *,
        spare: Spare,
        dismiss: Callable[[Slot, str], None],
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._machines = machines
        self._slots = slots
        self._spare = spare
        self._dismiss = dismiss
        self._changed = changed
        self._machine = admission.machine()
        self._measured = Measurements(Path(settings.models) / "measured.json")
        self._hot_bytes = admission.hot_bytes(settings.hot_cache_max_size, self._machine.ram)
        self._hot_part = 1.0
        self._usage: pressure.MemoryUsage | None = None
        self._told: dict[int, tuple[int, int]] = {}
        """By runner: the share it was told last."""
        self.knows_device = False
        """A runner has said which device models run on."""
        self.short = False
        """Nothing can give way any more: new work has to wait."""
        self.places = settings.max_concurrent_requests or admission.MOST_CONCURRENT
        """Requests of one model that run at once."""

    # ------------------------------------------------------------ loads
    def plan(self, spec: ModelSpec, hello: Hello) -> LoadPlan:
        """Context, memory and room of a load, by the machine as it is now. Raises PoolError "too_large"."""
        self.learn(hello)
        return self._plan(spec, held=self._resident())

    def learn(self, hello: Hello) -> None:
        """Take over what a runner says of the machine's GPU, which only runners can see."""
        self._machine = admission.machine(hello.device, hello.device_memory)
        gpu = self._machine.device_memory if hello.device == "cuda" else 0
        self._hot_bytes = admission.hot_bytes(self._settings.hot_cache_max_size, self._machine.ram, gpu)
        self.knows_device = True

    def loaded(self, slot: Slot, ready: Ready) -> None:
        """Take over what was measured at a load, and remember it."""
        fixed = (ready.memory_bytes + ready.transient_bytes + RUNNER_OVERHEAD) * slot.processes
        measurement = Measurement(fixed, ready.kv_bytes_per_token * slot.processes)
        slot.fixed, slot.memory = fixed, measurement.with_context(ready.num_ctx)
        self._measured.note(slot.spec.digest, manner(self._settings, self._group(slot.spec)), measurement)

    def contexts(self, spec: ModelSpec) -> tuple[int, int]:
        """Tokens of context that a request gets which asks for none, and the most there is memory for (0: not known).

        As if no other model were loaded, for idle ones make room.
        """
        plan = self._plan(spec, held=self._resident(), strict=False)
        return plan.context, plan.largest

    def expected(self, spec: ModelSpec) -> int:
        """Bytes the model would take if it were loaded, whether that is possible or not."""
        return self._plan(spec, held=0, strict=False).need

    def _plan(self, spec: ModelSpec, *, held: int, strict: bool = True) -> LoadPlan:
        group = self._group(spec)
        measured = self._measured.find(spec.digest, manner(self._settings, group))
        return plan_load(spec, self._settings, self._machine, held=held, measured=measured, group=group, strict=strict)

    def _group(self, spec: ModelSpec) -> GroupPlan | None:
        return group_for(spec, self._settings, self._machines)

    # ------------------------------------------------------------ shares
    def hot_share(self) -> int:
        """RAM for cached prefixes that each loaded model gets: they share one budget, less under pressure."""
        models = sum(slot.state != "leaving" for slot in self._slots.values())
        return int(self._hot_bytes * self._hot_part) // max(1, models)

    def memory_share(self, slot: Slot) -> int:
        """The most bytes that one model may take: what the others do not hold and have not promised."""
        return self._share_of(slot, self._budget())

    def load_share(self, slot: Slot) -> int:
        """The most bytes that a model may take while it loads: its share, and never more than a cap."""
        share = min(self.memory_share(slot), self._budget())
        if self._settings.max_model_memory:
            share = min(share, admission.parse_cap(self._settings.max_model_memory, self._machine))
        return share

    def load_limit(self, slot: Slot) -> int:
        """The most resident memory that the processes of a load may take, whatever its files say it needs. Bytes."""
        if self._machine.device != "cuda":
            return self.load_share(slot)
        # Its share is of the device's memory; what it takes of the RAM beside that has the RAM's cap.
        ram = admission.Machine(ram=self._machine.ram, available=self._machine.available)
        others = sum(pressure.resident(it.host.pid) for it in self._slots.values() if it.host and it is not slot)
        return admission.parse_cap(self._settings.max_process_memory, ram) - self._machine.server - others

    def _share_of(self, slot: Slot, budget: int) -> int:
        others = sum(other.committed for other in self._slots.values() if other is not slot)
        return max(slot.memory, budget - others)

    def deal(self) -> None:
        """Tell the runners what they may use, where that has changed."""
        hosts = {slot.host.pid: slot for slot in self._slots.values() if slot.state == "ready" and slot.host}
        self._told = {pid: last for pid, last in self._told.items() if pid in hosts}
        if not hosts:
            return
        hot, budget = self.hot_share(), self._budget()
        for pid, slot in hosts.items():
            memory = self._share_of(slot, budget)
            before = self._told.get(pid)
            if before is None or before[0] != hot or abs(memory - before[1]) > _WORTH_TELLING * before[1]:
                self._told[pid] = (hot, memory)
                assert slot.host is not None
                share = HotCacheShare(hot_bytes=hot // slot.processes, memory_bytes=memory // slot.processes)
                slot.host.limit(share)

    def _budget(self) -> int:
        cap = admission.parse_cap(self._settings.max_process_memory, self._machine)
        return admission.budget(self._machine, cap=cap, held=self._resident())

    def _resident(self) -> int:
        return sum(pressure.resident(slot.host.pid) for slot in self._slots.values() if slot.host is not None)

    # ------------------------------------------------------------ watching
    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if any(slot.state == "ready" for slot in self._slots.values()):
                await self._look()
            else:
                self._usage = None
                self._hold_back(False)

    async def _look(self) -> None:
        tree = await asyncio.to_thread(pressure.tree_bytes)
        ready = [slot for slot in self._slots.values() if slot.state == "ready"]
        self._machine = admission.machine(self._machine.device, self._machine.device_memory)
        usage = self._usage = pressure.tightest(
            tree, taken_by(slot.host for slot in ready if slot.host), self._machine, self._settings.max_process_memory
        )
        if usage.used > usage.cap:
            await self._spare.drop()
        pressure_now = Pressure(used=usage.used, cap=usage.cap, hot=self._hot_part if self._hot_bytes else 0.0)
        relief = relieve(pressure_now, [slot.resident() for slot in self._slots.values()])
        text = f"memory: {gib(usage.used)} in use, {gib(usage.cap)} allowed"
        if relief.hot != self._hot_part or relief.evict or relief.refuse:
            log.debug("%s: %.0f%% of the RAM for cached prefixes", text, 100 * relief.hot)
        self._hot_part = relief.hot
        self.deal()
        if relief.evict is not None and relief.evict in self._slots:
            self._dismiss(self._slots[relief.evict], text)
        if relief.refuse and not self.short:
            log.warning("%s: new requests are held back", text)
        self._hold_back(relief.refuse)

    def _hold_back(self, short: bool) -> None:
        if self.short != short:
            self.short = short
            self._changed()

    @property
    def room_for_spare(self) -> bool:
        """A process that does nothing yet would not be in the way."""
        usage = self._usage
        return usage is None or usage.used + RUNNER_OVERHEAD < pressure.RELAXED * usage.cap

    def report(self) -> MemoryReport:
        machine = admission.machine(self._machine.device, self._machine.device_memory)
        usage = self._usage or pressure.MemoryUsage(
            used=pressure.resident(), cap=admission.parse_cap(self._settings.max_process_memory, machine)
        )
        return MemoryReport(
            device=machine.device,
            ram=machine.ram,
            available=machine.available,
            device_memory=machine.device_memory,
            used=usage.used,
            cap=usage.cap,
            hot=self._hot_bytes,
            short=self.short,
        )
