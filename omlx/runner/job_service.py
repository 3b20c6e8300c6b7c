"""The loop of a runner whose model does not generate text: frames in, one step of the jobs, answers out.

As in `serve`, the main thread runs everything here and reads the inbox between steps.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import msgspec

from omlx.engine.pacing import Presence
from omlx.messages.frames import (
    CacheOp,
    Cancel,
    Embed,
    Events,
    FromRunner,
    Generate,
    GetStats,
    Heartbeat,
    HotCacheShare,
    Reply,
    Rerank,
    Shutdown,
    ToRunner,
)
from omlx.messages.request import Failure, Priority
from omlx.messages.speech import Transcribe
from omlx.messages.work_limits import WorkLimits
from omlx.runner.channel import Channel
from omlx.runner.paced import PacedWork, wait_s

log = logging.getLogger("omlx.runner")


class RunnerJobs(Protocol):
    """The jobs of one runner: those in preparation, and those that run."""

    @property
    def has_work(self) -> bool: ...
    @property
    def open(self) -> int: ...
    @property
    def presence(self) -> Presence: ...

    held: frozenset[Priority]
    """Classes of requests that pause for now."""

    def cancel(self, number: int) -> None: ...
    def close(self) -> None: ...


def send_answers(channel: Channel, answers: Sequence[FromRunner | Failure]) -> None:
    """Each answer in its own frame, failures as events."""
    for answer in answers:
        channel.send(Events([answer]) if isinstance(answer, Failure) else answer)


class JobService(ABC):
    """The loop around one model. `unsupported`: the message for each frame type that the model does not serve."""

    def __init__(self, channel: Channel, jobs: RunnerJobs, unsupported: Mapping[type, str]) -> None:
        self._channel = channel
        self._open_jobs = jobs
        self._unsupported = unsupported
        self._paced = PacedWork(lambda: jobs.presence, self._hold)

    def _hold(self, classes: frozenset[Priority]) -> None:
        self._open_jobs.held = classes

    @abstractmethod
    def _submit(self, frame: ToRunner) -> None:
        """Add the job of a frame that the model serves."""

    @abstractmethod
    def _step(self) -> Sequence[FromRunner | Failure]:
        """Run one step; returns the answers that are ready."""

    @abstractmethod
    def _heartbeat(self) -> Heartbeat: ...

    def _idle(self) -> None:  # noqa: B027 (most have nothing to do then)
        """Called when the last job has ended."""

    def run(self) -> int:
        """Returns the exit code."""
        jobs, was_busy = self._open_jobs, False
        self._channel.beat(self._heartbeat())
        while True:
            turn = self._paced.turn() if jobs.has_work else None
            for frame in self._channel.receive(wait=None if turn is None else wait_s(turn)):
                if isinstance(frame, Shutdown):
                    jobs.close()
                    self._channel.close()
                    return 0
                self._take(frame)
            answers: Sequence[FromRunner | Failure] = []
            if jobs.has_work and not self._paced.rests(turn, True) and not (turn is not None and turn.idle):
                self._paced.begin(turn)
                answers = self._step()
                self._paced.end()
            self._channel.beat(self._heartbeat())
            if was_busy and jobs.open == 0:
                self._idle()
                self._channel.send(self._heartbeat())
            was_busy = jobs.open > 0
            send_answers(self._channel, answers)

    def _take(self, frame: ToRunner) -> None:
        match frame:
            case Generate() | Embed() | Rerank() | Transcribe():
                message = self._unsupported.get(type(frame))
                if message is None:
                    self._submit(frame)
                else:
                    number = frame.request.id if isinstance(frame, Generate) else frame.id
                    send_answers(self._channel, [Failure(number, "unsupported", message)])
            case Cancel(id):
                self._open_jobs.cancel(id)
            case GetStats(id):
                self._channel.send(Reply(id, self._stats()))
            case CacheOp(id=id):
                self._channel.send(Reply(id, {"enabled": False}))
            case HotCacheShare():
                pass  # no prefix cache
            case WorkLimits():
                self._paced.limit(frame)
            case _:
                log.warning("a %s frame came out of turn", type(frame).__name__)

    def _stats(self) -> dict[str, Any]:
        return {
            **msgspec.to_builtins(self._heartbeat()),
            "open": self._open_jobs.open,
            "peak_memory_bytes": int(mx.get_peak_memory()),
            "cache": None,
        }
