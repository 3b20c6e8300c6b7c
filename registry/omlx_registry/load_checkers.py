"""Load checkers: processes that check one model folder after another (`load_check_worker`, or a module like it).

Importing what a check needs takes a second or more, the check itself some milliseconds. So a checker is kept for the
next check and ends by itself when none comes. Checks that run at the same time have a process each; one of them is
kept. A check that takes too much memory or time, or that nobody waits for any more, ends with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from omlx_registry.errors import CreateError
from omlx_registry.worker_client import MEMORY_SHARE, JobFailure, memory_taken, worker_environment

_LOOK_S: Final = 0.05
_TIME_LIMIT_S: Final = 300.0
_TOO_LARGE: Final = "checking whether the model loads takes more memory than is free: its config.json may be damaged"
_TOO_LONG: Final = f"checking whether the model loads took over {_TIME_LIMIT_S:.0f} s: its config.json may be damaged"


class CheckLoads(msgspec.Struct, frozen=True):
    """Find out whether the model in `folder` loads as what it is; `capabilities`: those that its maker states.

    `renders`: whether its chat template must render, too.
    """

    folder: str
    capabilities: list[str] = []
    renders: bool = False


class CheckResult(msgspec.Struct, frozen=True):
    """What a checker found: `failure` says why the model does not load, None that it does."""

    failure: JobFailure | None = None


class _Gone(Exception):
    """The checker ended without an answer."""


class _Checker:
    """One process. A call ends it where it raises."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=worker_environment(),
            start_new_session=True,  # a Ctrl-C in the terminal is the server's to handle
        )

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: CheckLoads, abandoned: threading.Event) -> CheckResult:
        """Raises _Gone where the process has ended, CreateError where it was ended."""
        try:
            return self._ask(question, abandoned)
        except BaseException:
            self.end()
            raise

    def _ask(self, question: CheckLoads, abandoned: threading.Event) -> CheckResult:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise _Gone(process.wait()) from error
        memory = int(psutil.virtual_memory().available * MEMORY_SHARE)
        end = time.monotonic() + _TIME_LIMIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_LOOK_S):
                if abandoned.is_set():
                    raise CreateError("the check was cancelled", 500)
                if memory_taken(process.pid) > memory:
                    raise CreateError(_TOO_LARGE)
                if time.monotonic() > end:
                    raise CreateError(_TOO_LONG)
        # A line is written whole: what follows its first byte does not keep us waiting.
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise _Gone(process.wait())
        return msgspec.json.decode(line, type=CheckResult)

    def end(self) -> None:
        process = self._process
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


class LoadCheckers:
    """The checkers of this process that run the same module. Thread-safe; outlives event loops."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._idle: list[_Checker] = []
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Have a checker ready soon: its imports take place while a model is fetched."""
        with self._lock:
            self._idle = [checker for checker in self._idle if checker.is_alive()]
            if not self._idle:
                self._idle.append(_Checker(self._module))

    async def check(self, folder: Path, capabilities: Iterable[str] = (), *, renders: bool = False) -> None:
        """Raises CreateError if the model in `folder` does not load, or its chat template has to render and does not.

        Cancelling it ends the check at once.
        """
        question, abandoned = CheckLoads(str(folder), [*capabilities], renders), threading.Event()
        try:
            result = await asyncio.to_thread(self._check, question, abandoned)
        finally:
            abandoned.set()
        if result.failure is not None:
            raise CreateError(result.failure.error, result.failure.status)

    def _check(self, question: CheckLoads, abandoned: threading.Event) -> CheckResult:
        with self._lock:
            checker = self._idle.pop() if self._idle else None
        if checker is not None:
            with contextlib.suppress(_Gone):  # it has waited too long for a check
                return self._ask(checker, question, abandoned)
        try:
            return self._ask(_Checker(self._module), question, abandoned)
        except _Gone as error:
            raise CreateError(_why_it_ended(error.args[0]), 500) from error

    def _ask(self, checker: _Checker, question: CheckLoads, abandoned: threading.Event) -> CheckResult:
        result = checker.ask(question, abandoned)
        with self._lock:
            if not self._idle:
                self._idle.append(checker)
                return result
        checker.end()
        return result


def _why_it_ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "the check whether the model loads was killed, probably because memory ran out"
    return f"the check whether the model loads ended without a result (exit status {code})"
