"""What `omlx bench` measures of one target: reading prompts, decoding in batches, the wait for the first token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from omlx.bench.energy import Energy
from omlx.bench.figures import Figure, Unit, decode_rate
from omlx.bench.prompts import PromptWriter
from omlx.bench.stream import StreamError
from omlx.bench.target import BenchTarget, Messages, TimedReply, ask, calibrate

_FEW = 4
"""Tokens of an answer of which only the first matters: one alone may be half a character, which is no text."""
_BESIDE = 256
"""Tokens left for the chat template, the question and a changed beginning: short words may be many tokens."""
_STREAMS = 4
_IDLE_S = 3.0


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured. Lengths in tokens; `samples` are short questions, whose first tokens give p50 and p95."""

    prefill: tuple[int, ...] = (1024, 4096, 16384)
    batches: tuple[int, ...] = (1, 4, 8, 16)
    answer: int = 64
    short: int = 32
    long: int = 2048
    rounds: int = 3
    samples: int = 20

    def within(self, context: int) -> BenchPlan:
        """The same without what a model of `context` tokens cannot hold; 0: unknown."""
        if not context:
            return self
        room = context - self.answer - _BESIDE
        fitting = tuple(size for size in self.prefill if size <= room)
        return msgspec.structs.replace(self, prefill=fitting, long=min(self.long, max(room, self.short)))

    @property
    def context(self) -> int:
        """The context that the longest of its prompts needs."""
        return max((*self.prefill, self.long)) + self.answer + _BESIDE


QUICK = BenchPlan(prefill=(512,), batches=(1, 4), answer=24, long=512, rounds=1, samples=4)


class Reload(msgspec.Struct, frozen=True):
    """How to make a server forget what it holds in memory: `run` unloads and loads the model again."""

    run: Callable[[], Awaitable[None]]
    from_disk: Callable[[], Awaitable[int]]
    """Tokens of prompts that came from disk so far."""


class Bench:
    """One run. `figures` and `notes` fill up; a part that a server refuses becomes a note, and the others go on."""

    def __init__(
        self, target: BenchTarget, plan: BenchPlan, say: Callable[[str], None], reload: Reload | None = None
    ) -> None:
        self._target, self._plan, self._say, self._reload = target, plan, say, reload
        self._writer = PromptWriter(f"{time.time_ns()}")
        self.figures: list[Figure] = []
        self.notes: list[str] = []

    async def run(self) -> None:
        """Everything. Raises StreamError only where the target answers no first question."""
        self._say("loading and warming up")
        if not await calibrate(self._target, self._writer):
            self.notes.append("the server does not count the tokens of prompts: their lengths are estimates")
        for part in (self._prefill, self._decode, self._first_token, self._from_disk):
            try:
                await part()
            except StreamError as error:
                self.notes.append(f"{part.__name__.strip('_').replace('_', ' ')}: {error}")

    # ------------------------------------------------------------ parts
    async def run_energy(self, energy: Energy, classes: Sequence[str]) -> None:
        """Only tokens per joule, by batch size and class of requests. Raises StreamError."""
        self._say("loading and warming up")
        await calibrate(self._target, self._writer)
        self._say("measuring the idle machine")
        idle = await self._watts(energy, asyncio.sleep(_IDLE_S))
        self._keep(f"power idle ({energy.source})", "W", idle)
        usual = self._target
        for name in classes:
            self._target = msgspec.structs.replace(usual, priority=name)
            for batch in self._plan.batches:
                self._say(f"decoding {batch} at once, {name}")
                await self._energy_of(batch, name, energy)
        self._target = usual

    async def _energy_of(self, batch: int, name: str, energy: Energy) -> None:
        await self._together(batch, _FEW)
        per_joule, watts, rates = [], list[float](), []
        for _ in range(self._plan.rounds):
            begun = time.perf_counter()
            energy.begin()
            replies = await self._together(batch, self._plan.answer)
            joules, seconds = energy.joules(), time.perf_counter() - begun
            tokens = sum(reply.tokens for reply in replies)
            rates.append(tokens / seconds)
            if joules:
                per_joule.append(tokens / joules)
                watts.append(joules / seconds)
        self._keep(f"energy batch {batch}, {name}", "tok/J", per_joule)
        self._keep(f"power batch {batch}, {name}", "W", watts)
        self._keep(f"rate batch {batch}, {name}", "tok/s", rates)
        if len(per_joule) < self._plan.rounds:
            self.notes.append(f"energy batch {batch}, {name}: {energy.source} gave no figure for some rounds")

    async def _watts(self, energy: Energy, work: Awaitable[None]) -> list[float]:
        begun = time.perf_counter()
        energy.begin()
        await work
        joules = energy.joules()
        return [joules / (time.perf_counter() - begun)] if joules else []

    async def _prefill(self) -> None:
        for size in self._plan.prefill:
            self._say(f"reading {size} tokens")
            times: dict[str, list[float]] = {"cold": [], "warm": []}
            for _ in range(self._plan.rounds):
                prompt = self._writer.prompt(size)
                for state, rates in times.items():
                    reply = await self._ask(prompt, _FEW)
                    rates.append((reply.prompt_tokens or size) / reply.first_token_s)
                    if state == "cold" and reply.cached_tokens > reply.prompt_tokens // 10:
                        self.notes.append(f"{reply.cached_tokens} tokens of a new prompt came from the server's cache")
            for state, rates in times.items():
                self._keep(f"prefill {size} {state}", "tok/s", rates)

    async def _decode(self) -> None:
        energy = Energy()
        for batch in self._plan.batches:
            self._say(f"decoding {batch} at once")
            await self._together(batch, _FEW)  # a size of batch that is new is often compiled first
            rates, joules, short = [], [], 0
            for _ in range(self._plan.rounds):
                energy.begin()
                replies = await self._together(batch, self._plan.answer)
                used = energy.joules()
                tokens = sum(reply.tokens for reply in replies)
                short += sum(reply.tokens < self._plan.answer // 2 for reply in replies)
                if (rate := decode_rate(replies)) is not None:
                    rates.append(rate)
                if used is not None:
                    joules.append(used / tokens)
            self._keep(f"decode batch {batch}", "tok/s", rates)
            if not rates:
                self.notes.append(f"decode batch {batch}: the tokens came in one piece, so they have no rate")
            self._keep(f"energy batch {batch} ({energy.source})", "J/tok", joules)
            if short:
                self.notes.append(f"decode batch {batch}: {short} answers ended by themselves, early")

    async def _first_token(self) -> None:
        self._say("waiting for first tokens")
        plan = self._plan
        alone = [(await self._short()).first_token_s for _ in range(plan.samples)]
        self._keep("first token alone", "s", alone)
        async with self._busy():
            contended = [(await self._short()).first_token_s for _ in range(plan.samples)]
        self._keep(f"first token beside {_STREAMS} streams", "s", contended)
        cold, hot, changed = [], [], []
        for _ in range(plan.rounds):
            text = self._writer.text(plan.long)
            cold.append((await self._about(text)).first_token_s)
            hot.append((await self._about(text)).first_token_s)
            changed.append((await self._about(f"{self._writer.text(1)} {text}")).first_token_s)
        self._keep(f"first token {plan.long} cold", "s", cold)
        self._keep(f"first token {plan.long} hot", "s", hot)
        self._keep(f"first token {plan.long} changed beginning", "s", changed)

    async def _from_disk(self) -> None:
        """The same text after the model was unloaded: what is still known of it comes from disk.

        Some of it may have been read while the model was loading: it is what users wait, not the speed of the disk.
        """
        if self._reload is None:
            return
        self._say("reading from SSD")
        waits, missed = [], 0
        for _ in range(self._plan.rounds):
            text = self._writer.text(self._plan.long)
            await self._about(text)
            await self._reload.run()
            await self._short()  # the first question after a load pays for more than its prefix
            before = await self._reload.from_disk()
            reply = await self._about(text)
            if await self._reload.from_disk() > before:
                waits.append(reply.first_token_s)
            else:
                missed += 1
        self._keep(f"first token {self._plan.long} from SSD", "s", waits)
        if missed:
            self.notes.append(
                f"{missed} of {self._plan.rounds} prefixes were not read from SSD: the cache there is off, or "
                "computing them was faster"
            )

    # ------------------------------------------------------------ asking
    def _keep(self, name: str, unit: Unit, values: list[float]) -> None:
        if values:
            self.figures.append(Figure(name, unit, values))

    async def _ask(self, text: str, tokens: int) -> TimedReply:
        return await ask(self._target, [{"role": "user", "content": text}], tokens)

    async def _short(self) -> TimedReply:
        return await self._ask(self._writer.prompt(self._plan.short), _FEW)

    async def _about(self, text: str) -> TimedReply:
        """A question of its own about a text that may be known."""
        messages: Messages = [
            {"role": "system", "content": text},
            {"role": "user", "content": self._writer.prompt(self._plan.short)},
        ]
        return await ask(self._target, messages, _FEW)

    async def _together(self, count: int, tokens: int) -> list[TimedReply]:
        requests = [self._ask(self._writer.prompt(self._plan.short), tokens) for _ in range(count)]
        return await asyncio.gather(*requests)

    @asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """Answers stream all the while."""
        begun = [asyncio.Event() for _ in range(_STREAMS)]

        async def stream(event: asyncio.Event) -> None:
            while True:
                prompt = self._writer.prompt(self._plan.short)
                await ask(
                    self._target, [{"role": "user", "content": prompt}], self._plan.answer * _STREAMS, begun=event
                )

        streams = [asyncio.create_task(stream(event)) for event in begun]
        all_begun = asyncio.gather(*(event.wait() for event in begun))
        work: list[asyncio.Future[Any]] = [all_begun, *streams]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # a stream only ends by failing
            yield
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)
