"""A *lease*: the right to use one loaded model. While it is held the model stays; the last one starts the keep-alive.

It also carries the promise about crashes: when the runner dies under a request of which nothing was passed on yet,
the model is loaded again and the request replayed, once; a request that has streamed something ends with the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from omlx.messages.frames import CacheCall, Embed, Embedded, PrefillProgress, Ranked, Rerank
from omlx.messages.request import Delta, Finish, GenerateRequest
from omlx.messages.selftest import Feature
from omlx.messages.speech import Segments, Transcribe, Transcribed
from omlx.pool.errors import PoolError
from omlx.pool.slot import Slot
from omlx.record import current
from omlx.runner.connection import CRASHED, RequestFailed
from omlx.runner.host import RunnerHost

if TYPE_CHECKING:
    from omlx_registry import ModelSpec

log = logging.getLogger("omlx.pool")
T = TypeVar("T")


class SlotOwner(Protocol):
    """What a lease needs of the pool."""

    async def enter(self, spec: ModelSpec, keep_alive: float | None, *, again: bool = False) -> Slot: ...

    def release(self, slot: Slot) -> None: ...

    def release_from_anywhere(self, slot: Slot) -> None: ...

    def worked(self, slot: Slot) -> None: ...


class Lease:
    """Made by `Pool.acquire`; an async context manager. `load_ns` is how long it took until the model was available."""

    def __init__(self, pool: SlotOwner, slot: Slot, load_ns: int) -> None:
        self._pool = pool
        self._slot: Slot | None = slot
        self._reviving = asyncio.Lock()
        self.load_ns = load_ns

    @property
    def spec(self) -> ModelSpec:
        return self._held.spec

    @property
    def context_length(self) -> int:
        """Tokens of context a request gets that asks for none."""
        return self._held.context

    def serve_context(self, num_ctx: int) -> None:
        """The model is loaded for requests with this context in tokens; 0: the default. /api/ps shows it."""
        self._held.serve_context(num_ctx)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the model back; further calls do nothing."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._pool.release(slot)

    def __del__(self) -> None:
        if self._slot is not None:
            log.error("%s: a lease was dropped without being released", self._slot.spec.name)
            self._pool.release_from_anywhere(self._slot)

    def generate(self, request: GenerateRequest, *, whole: bool = False) -> AsyncGenerator[Delta | Finish, None]:
        """The events of one generation, ending with a Finish. Raises RequestFailed; closing it cancels the request.

        `whole`: all of them at the end, so that it can be replayed until then.
        """
        refuse_what_is_off(request, self._held.off)
        timing = current().begin(request)

        def note(event: Delta | Finish) -> bool:
            if isinstance(event, Delta):
                timing.piece()
            else:
                self._pool.worked(self._held)
                if not request.render_only:
                    timing.finish(event)
            return True

        return self._replayed(
            lambda host: host.generate(request), note, whole=whole, serving=lambda: self._serving(request)
        )

    def _serving(self, request: GenerateRequest) -> AbstractContextManager[None]:
        """While it is open /api/ps shows the context of the request, unless its prompt is only to be rendered."""
        return nullcontext() if request.render_only else self._held.serving(request.limits.num_ctx)

    async def embed(
        self,
        inputs: Sequence[str | list[int]],
        *,
        truncate: bool = True,
        num_ctx: int = 0,
        dimensions: int = 0,
    ) -> Embedded:
        """One L2-normalised vector per text, or per list of token ids. Raises RequestFailed."""
        record = current()
        frame = Embed(
            inputs=inputs, truncate=truncate, num_ctx=num_ctx, dimensions=dimensions,
            priority=record.priority or "batch", trace=record.id,
        )  # fmt: skip
        embedded = await self._once_more(lambda host: host.embed(frame, record.deadline))
        record.read(embedded.prompt_tokens)
        return embedded

    async def rerank(self, query: str, documents: list[str]) -> Ranked:
        """One score per document, in their order. Raises RequestFailed."""
        record = current()
        frame = Rerank(query=query, documents=documents, priority=record.priority or "batch", trace=record.id)
        ranked = await self._once_more(lambda host: host.rerank(frame, record.deadline))
        record.read(ranked.prompt_tokens)
        return ranked

    def transcribe(
        self, request: Transcribe, *, whole: bool = False
    ) -> AsyncGenerator[Segments | PrefillProgress | Transcribed, None]:
        """What is heard in an audio file, ending with Transcribed. Raises RequestFailed; closing it cancels the
        request. `whole`: as in `generate`."""
        record = current()
        timing = record.transcribe()
        labelled = msgspec.structs.replace(request, priority=record.priority or "batch", trace=record.id)

        def note(event: Segments | PrefillProgress | Transcribed) -> bool:
            if isinstance(event, Transcribed):
                self._pool.worked(self._held)
                timing.finish(_finish(event))
            elif isinstance(event, Segments):
                timing.piece()
            return isinstance(event, Segments)

        return self._replayed(lambda host: host.transcribe(labelled, deadline=record.deadline), note, whole=whole)

    async def _replayed(
        self,
        ask: Callable[[RunnerHost], AsyncGenerator[T, None]],
        note: Callable[[T], bool],
        *,
        whole: bool,
        serving: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> AsyncGenerator[T, None]:
        """The events of a request, which is sent again if the runner ends before it has sent any of the answer.

        `note` counts an event, and returns whether it is part of the answer. `serving` is open while a runner works.
        """
        replayed = started = False
        while True:
            host = self._host
            kept: list[T] = []
            try:
                with serving():
                    async with aclosing(ask(host)) as events:
                        async for event in events:
                            is_answer = note(event)
                            if whole:
                                kept.append(event)
                            else:
                                started = started or is_answer
                                yield event
                for event in kept:
                    yield event
                return
            except RequestFailed as failure:
                if failure.kind != "crashed" or started or replayed:
                    raise
            replayed = True
            await self._revive(host)

    async def stats(self) -> dict[str, Any]:
        """The runner's own counters. Raises RequestFailed."""
        return await self._host.stats()

    async def cache(self, op: CacheCall, text: str = "", *, session: str = "") -> dict[str, Any]:
        """Ask the model's KV store something. Raises RequestFailed."""
        return await self._host.cache(op, text, session=session)

    async def _once_more(self, ask: Callable[[RunnerHost], Awaitable[T]]) -> T:
        host = self._host
        try:
            return await ask(host)
        except RequestFailed as failure:
            if failure.kind != "crashed":
                raise
        await self._revive(host)
        return await ask(self._host)

    async def _revive(self, dead: RunnerHost) -> None:
        """Have the model loaded again after `dead` ended; several requests of one lease share the new one."""
        async with self._reviving:
            if self._host is not dead:
                return
            spec, keep_alive = self._held.spec, self._held.keep_alive
            self.release()
            try:
                self._slot = await self._pool.enter(spec, keep_alive, again=True)
            except PoolError as error:
                # "busy": the server ends.
                if error.kind in {"gone", "busy"}:
                    raise
                raise RequestFailed("crashed", f"{CRASHED} (reload failed: {error.message})") from error
            log.warning("%s: a request that had streamed nothing is replayed on a new runner", spec.name)

    @property
    def _held(self) -> Slot:
        if self._slot is None:
            raise RequestFailed("crashed", CRASHED)
        return self._slot

    @property
    def _host(self) -> RunnerHost:
        host = self._held.host
        if host is None:
            raise RequestFailed("crashed", CRASHED)
        return host


def _finish(end: Transcribed) -> Finish:
    """The end of a transcription as the record takes it."""
    return Finish(
        id=end.id,
        reason="stop",
        completion_tokens=end.completion_tokens,
        prompt_ns=end.prompt_ns,
        generation_ns=end.generation_ns,
        queue_ns=end.queue_ns,
    )


def refuse_what_is_off(request: GenerateRequest, off: Collection[Feature]) -> None:
    """Raises RequestFailed where the request needs what a self-test has switched off for this model."""
    for feature, needed in (("tools", request.tools), ("format", request.format or request.grammar)):
        if needed and feature in off:
            raise RequestFailed(
                "unsupported",
                f"{feature} is switched off for this model since its self-test failed (see omlx show, omlx selftest)",
            )
