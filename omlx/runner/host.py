"""The server's handle on one runner process.

A *host* starts a runner, tells it what to load, hands it requests and gives each caller its own stream of events. It
owns the process and its connection; the pool owns hosts. All methods belong to one asyncio
loop.

When the runner dies, whatever the reason, every open request fails with kind "crashed" and `gone` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from omlx.messages.failures import LoadError
from omlx.messages.frames import (
    CacheCall,
    CacheOp,
    Embed,
    Embedded,
    Events,
    FromRunner,
    Generate,
    GetStats,
    Heartbeat,
    Hello,
    Load,
    LoadFailed,
    Loading,
    PrefillProgress,
    Ranked,
    Ready,
    Reply,
    Rerank,
    RunnerLimits,
    Shutdown,
    ToRunner,
)
from omlx.messages.load_spec import LoadSpec
from omlx.messages.request import Delta, Failure, Finish, GenerateRequest
from omlx.messages.speech import Segments, Transcribe, Transcribed
from omlx.record import current
from omlx.runner import launch
from omlx.runner import process as runner_process
from omlx.runner.clip import clip, clip_request
from omlx.runner.connection import CRASHED, RequestFailed, RunnerConnection, answer, connect, in_time
from omlx.runner.launch import GroupPlan
from omlx.runner.log_relay import relay
from omlx.runner.mailbox import Mailbox
from omlx.runner.process import Started
from omlx.units import format_duration

log = logging.getLogger("omlx.runner")

CLOSE_GRACE_S = 12.0
"""A runner writes its cached prefixes to disk before it ends."""
_CLOSED = "the model was unloaded"
_HELLO_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 10.0
E = TypeVar("E")
EndReason = Literal["crashed", "stalled", "protocol"]


class RunnerHost:
    """One runner. Made by `spawn`, ended by `close` or `kill`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._connection = RunnerConnection(reader, writer)
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._loading: asyncio.Queue[Loading | Ready | LoadFailed | None] = asyncio.Queue()
        self._closing, self._why_closed = False, _CLOSED
        self._killed_because = ""
        self.end_reason: EndReason = "crashed"
        """What its end was, where nobody asked for it."""
        self._tasks: list[asyncio.Task[None]] = []
        self.name = "spare"
        self.ready: Ready | None = None
        self.heartbeat = Heartbeat(steps=0, running=0, waiting=0, memory_bytes=0, max_batch=0)
        self.last_progress = self._now()
        self._started_at = self._now()
        self.gone = asyncio.Event()
        """Set once the process has ended and been reaped."""

    @classmethod
    async def spawn(cls, command: Sequence[str] = runner_process.RUNNER) -> RunnerHost:
        """Start a runner process; returns as soon as it exists, before its imports are done."""
        # Not in a worker thread: Linux ends the runner together with the thread that started it.
        return await cls._take_over(runner_process.start(command))

    @classmethod
    async def spawn_group(cls, plan: GroupPlan) -> RunnerHost:
        """Start the processes of a distributed model; returns once rank 0 has come. Raises LoadError."""
        try:
            return await cls._take_over(await launch.start(plan))
        except (launch.LaunchError, OSError) as error:
            raise LoadError(str(error)) from error

    @classmethod
    async def _take_over(cls, started: Started) -> RunnerHost:
        """The host of a new process. A caller that is cancelled meanwhile does not stop it half-way, where nobody would
        own the sockets: the host is made, and ended."""
        making = asyncio.create_task(cls._attach(started), context=contextvars.Context())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_end_unwanted)
            raise

    @classmethod
    async def _attach(cls, started: Started) -> RunnerHost:
        process = started.process
        reader, writer, output, log_writer = await connect(started)
        host = cls(process, reader, writer)
        # A runner outlives the request that started it, and its log lines are not about that one.
        host._tasks = [
            asyncio.create_task(work, name=f"runner {process.pid} {what}", context=contextvars.Context())
            for work, what in ((host._read(), "frames"), (relay(output, log_writer, lambda: host.name), "log"))
        ]
        return host

    # ------------------------------------------------------------ facts
    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.gone.is_set() and not self._closing

    @property
    def _longest_text(self) -> int:
        return self.ready.longest_text if self.ready is not None else 0

    @property
    def open_requests(self) -> int:
        return self._connection.open_requests

    @property
    def stalled_for(self) -> float:
        """Seconds without any progress while requests are open; 0 when none is."""
        return self._now() - self.last_progress if self.open_requests else 0.0

    @property
    def starting(self) -> bool:
        """Its imports are not done."""
        return not self._hello.done()

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return self._now() - self._started_at

    @property
    def exit_text(self) -> str:
        code = self._process.returncode
        if code is None:
            return "it is still running"
        return self._killed_because or runner_process.describe_exit(code)

    # ------------------------------------------------------------ loading
    async def hello(self) -> Hello:
        """Wait until the runner's imports are done. Raises LoadError."""
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                return await asyncio.shield(self._hello)
        except TimeoutError:
            raise LoadError(f"the model runner did not start within {_HELLO_TIMEOUT_S:.0f} s") from None

    async def load(
        self, spec: LoadSpec, *, stall_timeout: float, progress: Callable[[Loading], None] | None = None
    ) -> Ready:
        """Load a model. `stall_timeout` is the longest time in s without progress (inf: none). Raises LoadError."""
        self.name = spec.name
        await self.hello()
        self._connection.post(Load(spec))
        done = -1
        deadline = self._now() + stall_timeout
        while True:
            try:
                async with asyncio.timeout_at(None if math.isinf(deadline) else deadline):
                    frame = await self._loading.get()
            except TimeoutError:
                text = f"timed out waiting for the model to load: no progress for {format_duration(stall_timeout)}"
                raise LoadError(text) from None
            match frame:
                case Loading():
                    if frame.done > done:
                        done, deadline = frame.done, self._now() + stall_timeout
                    if progress is not None:
                        progress(frame)
                case Ready():
                    self.ready = frame
                    self.heartbeat = msgspec.structs.replace(self.heartbeat, memory_bytes=frame.memory_bytes)
                    return frame
                case LoadFailed():
                    raise LoadError(frame.message)
                case None:
                    raise LoadError(f"the model runner stopped while it loaded the model: {self.exit_text}")

    # ------------------------------------------------------------ requests
    def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta | Finish, None]:
        """The events of one generation, ending with a Finish. Raises RequestFailed; closing it cancels the request."""
        fitting = clip_request(request, self._longest_text)
        return self._events(
            lambda number: Generate(msgspec.structs.replace(fitting, id=number)), (Delta, Finish), request.deadline
        )

    async def embed(self, frame: Embed, deadline: float | None = None) -> Embedded:
        """One L2-normalised vector per input. `deadline`: as in GenerateRequest. Raises RequestFailed."""
        inputs = [clip(text, self._longest_text) if isinstance(text, str) else text for text in frame.inputs]
        with self._request() as (number, mailbox):
            await self._connection.submit(msgspec.structs.replace(frame, id=number, inputs=inputs))
            return await answer(mailbox, Embedded, deadline)

    async def rerank(self, frame: Rerank, deadline: float | None = None) -> Ranked:
        """One score per document. `deadline`: as in GenerateRequest. Raises RequestFailed."""
        with self._request() as (number, mailbox):
            await self._connection.submit(msgspec.structs.replace(frame, id=number))
            return await answer(mailbox, Ranked, deadline)

    def transcribe(
        self, request: Transcribe, *, deadline: float | None = None
    ) -> AsyncGenerator[Segments | PrefillProgress | Transcribed, None]:
        """What is heard in an audio file, window by window, ending with Transcribed. Raises RequestFailed; closing it
        cancels the request."""
        return self._events(
            lambda number: msgspec.structs.replace(request, id=number),
            (Segments, PrefillProgress, Transcribed),
            deadline,
        )

    async def _events(
        self, frame: Callable[[int], ToRunner], kinds: tuple[type[E], ...], deadline: float | None
    ) -> AsyncGenerator[E, None]:
        """The events of a request that are of these kinds; one of the last kind ends them."""
        with self._request() as (number, mailbox):
            await self._connection.submit(frame(number))
            while True:
                item = await in_time(mailbox.get(), deadline)
                if isinstance(item, Failure):
                    raise RequestFailed(item.kind, item.message)
                if isinstance(item, PrefillProgress):
                    current().reads(item.done, item.total)
                if isinstance(item, kinds):
                    yield item
                    if isinstance(item, kinds[-1]):
                        return

    async def stats(self) -> dict[str, Any]:
        """The runner's own counters. Raises RequestFailed, also when no answer comes within seconds."""
        return await self._ask(lambda number: GetStats(number))

    async def answers(self, within: float) -> bool:
        """Whether a runner without work says something within so many seconds: it may live and yet be hung."""
        with contextlib.suppress(RequestFailed, TimeoutError):
            async with asyncio.timeout(within):
                await self.stats()
                return True
        return False

    async def cache(self, op: CacheCall, text: str = "", *, session: str = "") -> dict[str, Any]:
        """Ask the KV store of this model something. Raises RequestFailed."""
        return await self._ask(
            lambda number: CacheOp(id=number, op=op, text=clip(text, self._longest_text), session=session)
        )

    async def _ask(self, frame: Callable[[int], ToRunner]) -> dict[str, Any]:
        with self._request() as (number, mailbox):
            await self._connection.submit(frame(number))
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    reply = await answer(mailbox, Reply)
            except TimeoutError:
                raise RequestFailed("timeout", "the model runner is too busy to answer") from None
        return reply.body

    @contextlib.contextmanager
    def _request(self) -> Iterator[tuple[int, Mailbox]]:
        """A request of a runner that is alive; from now on it has to make progress."""
        if not self.alive:
            raise RequestFailed("crashed", CRASHED)
        if not self.open_requests:
            self.last_progress = self._now()
        with self._connection.request() as opened:
            yield opened

    # ------------------------------------------------------------ the end
    def limit(self, limits: RunnerLimits) -> None:
        """Change what this model may use, or how much it may work."""
        if self.alive:
            self._connection.post(limits)

    def kill(self, why: str = "it did not end in time and was killed", reason: EndReason = "crashed") -> None:
        """SIGKILL, which ends a stopped or hanging process too; `why` is for the log, `reason` for the counters."""
        if self._process.poll() is None:
            self._killed_because, self.end_reason = why, reason
            self._process.kill()

    async def close(self, *, grace: float = CLOSE_GRACE_S, why: str = _CLOSED) -> None:
        """End the process in order: ask, after `grace` seconds insist (SIGTERM), then kill. Returns once it is gone.

        Requests that still run fail with `why`.
        """
        self._closing, self._why_closed = True, why
        try:
            await self._end(grace)
        except BaseException:
            self.kill()
            raise
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self, grace: float) -> None:
        if not self.gone.is_set():
            self._connection.post(Shutdown())
            for wait, insist in ((grace, self._process.terminate), (1.0, self.kill)):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self.gone.wait()
                if self.gone.is_set():
                    break
                insist()
        await self.gone.wait()

    # ------------------------------------------------------------ frames
    async def _read(self) -> None:
        try:
            while True:
                self._dispatch(await self._connection.receive())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except (ValueError, msgspec.MsgspecError) as error:
            self.kill(f"it sent something that is no frame ({error}) and was killed", "protocol")
        await self._bury()

    def _dispatch(self, frame: FromRunner) -> None:
        match frame:
            case Events():
                self.last_progress = self._now()
                for event in frame.items:
                    self._connection.deliver(event.id, event)
            case Heartbeat():
                if frame.steps != self.heartbeat.steps:
                    self.last_progress = self._now()
                self.heartbeat = frame
            case PrefillProgress() | Embedded() | Ranked() | Segments() | Transcribed() | Reply():
                self.last_progress = self._now()
                self._connection.deliver(frame.id, frame)
            case Loading() | Ready() | LoadFailed():
                self._loading.put_nowait(frame)
            case Hello():
                if not self._hello.done():
                    self._hello.set_result(frame)

    async def _bury(self) -> None:
        """The socket has ended: reap the process, then tell everyone who waits."""
        self._connection.close()
        deadline = self._now() + (10.0 if self._closing else 2.0)
        while self._process.poll() is None:
            if self._now() > deadline:
                self.kill()
            await asyncio.sleep(0.005)
        if not self._closing:
            log.error("%s: the runner (pid %d) is gone: %s", self.name, self.pid, self.exit_text)
        message = self._why_closed if self._closing else CRASHED
        self.gone.set()
        if not self._hello.done():
            self._hello.set_exception(LoadError(f"the model runner did not start: {self.exit_text}"))
            self._hello.exception()  # nobody has to be waiting for it
        self._loading.put_nowait(None)
        self._connection.fail_all(message)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _end_unwanted(making: asyncio.Task[RunnerHost]) -> None:
    """End the host that nobody waits for any more."""
    if not making.cancelled() and making.exception() is None:
        ending = asyncio.create_task(making.result().close(grace=0), context=contextvars.Context())
        _ending.add(ending)
        ending.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[None]] = set()
"""Keeps hosts alive that nobody else knows, until their processes have ended."""
