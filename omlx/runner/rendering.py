"""Rendering Jinja templates where they can be stopped: in a *renderer*, a process that does nothing else.

A template is foreign code, and one call into C (a replacement, a comparison, a JSON text) can take minutes or
gigabytes with no place to interrupt it. A renderer has a limit of CPU time for each rendering and a limit of memory,
both kept by the kernel; when it is ended, a new one takes its place. It also keeps renderings off Python's lock in
the runner.

Frames: to the renderer a length and a pickle of (source, variables), None for the variables to read the template
only; back an outcome, CPU seconds, a length and a text. Nothing that comes back is unpickled.
"""

from __future__ import annotations

import math
import os
import pickle
import queue
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from omlx.prompting.errors import MAX_CPU_S, TemplateError, TemplateRefused, TemplateTooSlow
from omlx.prompting.jinja import JinjaTemplate
from omlx.runner.watched import wait_for_answer

_ASKED, _ANSWERED = struct.Struct(">Q"), struct.Struct(">cdQ")
_GOOD, _FAILED, _REFUSED, _TOO_SLOW = b"g", b"f", b"r", b"s"
_ERRORS = {_FAILED: TemplateError, _REFUSED: TemplateRefused, _TOO_SLOW: TemplateTooSlow}
_PROCESSES = 2
"""Renderers of one model: one slow template does not keep all requests waiting."""
_SPARE_CPU_S = 1
"""A template ends at MAX_CPU_S by itself, but for what cannot be interrupted."""
REQUEST_CPU_S = 3 * MAX_CPU_S
"""For all renderings of one request: a long conversation is rendered again for each shortening that is tried."""
MEMORY_BYTES = 1 << 30
"""Beyond what the process has at its start. Kept by Linux; elsewhere see `watched`."""
WATCHED_BYTES = MEMORY_BYTES + (1 << 28)
"""In memory, what it has at its start among them."""
_MOST_WALL_S = 120.0
_KEPT = 8
"""Compiled templates."""
_STOPPED = "the model's chat template takes more time or memory than it may"


class Renderers:
    """The renderers of one model. The first is started at once, so that it is ready when the model is."""

    def __init__(self) -> None:
        self._free: queue.LifoQueue[_Renderer] = queue.LifoQueue()
        for _ in range(_PROCESSES):
            self._free.put(_Renderer())
        self._all = [*self._free.queue]
        self._all[-1].start()
        self._spent = threading.local()

    def new_request(self) -> None:
        """What this thread renders from now on is for another request."""
        self._spent.seconds = 0.0

    def render(self, source: str, variables: dict[str, Any] | None) -> str:
        """The text; without `variables`, "" where the template can be read. Raises TemplateError."""
        spent = getattr(self._spent, "seconds", 0.0)
        if spent > REQUEST_CPU_S:
            raise TemplateTooSlow(f"the model's chat template takes longer than {REQUEST_CPU_S:g} seconds")
        renderer = self._free.get()
        try:
            outcome, seconds, text = renderer.render(source, variables)
        finally:
            self._free.put(renderer)
        self._spent.seconds = spent + seconds
        if outcome == _GOOD:
            return text
        raise _ERRORS.get(outcome, TemplateError)(text)

    def close(self) -> None:
        for renderer in self._all:
            renderer.end()


class IsolatedTemplate:
    """As JinjaTemplate, rendered by a renderer. Raises TemplateError when `source` is no template."""

    def __init__(self, source: str, renderers: Renderers) -> None:
        self.source = source
        self._renderers = renderers
        renderers.render(source, None)

    def render(self, variables: dict[str, Any]) -> str:
        """The prompt text. Raises TemplateError."""
        return self._renderers.render(self.source, variables)


class _Renderer:
    """One process, from the outside; used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "omlx.runner.rendering"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # it could only tell of prompts
                bufsize=0,
            )
        return self._process

    def render(self, source: str, variables: dict[str, Any] | None) -> tuple[bytes, float, str]:
        try:
            asked = pickle.dumps((source, variables), protocol=pickle.HIGHEST_PROTOCOL)
        except RecursionError:
            raise TemplateError("the messages or the tools are nested too deeply for the model's template") from None
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + _MOST_WALL_S
        try:
            _write(process.stdin, _ASKED.pack(len(asked)) + asked)
            wait_for_answer(process, deadline, WATCHED_BYTES)
            outcome, seconds, size = _ANSWERED.unpack(_read(process.stdout, _ANSWERED.size, deadline))
            return outcome, seconds, _read(process.stdout, size, deadline).decode("utf-8", "surrogatepass")
        except (OSError, EOFError, TimeoutError):
            self.end()
            return _TOO_SLOW, MAX_CPU_S, _STOPPED
        except BaseException:
            self.end()  # half an answer may be left in the pipe
            raise

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _write(pipe: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read(pipe: IO[bytes], size: int, deadline: float = math.inf) -> bytes:
    """So many bytes. Raises EOFError, TimeoutError."""
    found = bytearray()
    while len(found) < size:
        if deadline < math.inf and not select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            raise TimeoutError
        part = pipe.read(min(size - len(found), 1 << 20))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


# ---------------------------------------------------------------- the process
def main() -> None:
    """Render what comes through standard input until it ends."""
    requests, answers = os.fdopen(0, "rb", buffering=0), os.fdopen(1, "wb", buffering=0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    templates: dict[str, JinjaTemplate] = {}
    while True:
        try:
            (size,) = _ASKED.unpack(_read(requests, _ASKED.size))
            asked = _read(requests, size)
        except EOFError:
            return
        _limit_cpu()
        begun = time.process_time()
        try:
            source, variables = pickle.loads(asked)  # noqa: S301 (from the process that started this one)
            outcome, text = _GOOD, _rendered(source, variables, templates)
        except TemplateTooSlow as error:
            outcome, text = _TOO_SLOW, str(error)
        except TemplateRefused as error:
            outcome, text = _REFUSED, str(error)
        except TemplateError as error:
            outcome, text = _FAILED, str(error)
        except MemoryError:
            outcome, text = _TOO_SLOW, _STOPPED
        data = text.encode("utf-8", "surrogatepass")
        _write(answers, _ANSWERED.pack(outcome, time.process_time() - begun, len(data)))
        _write(answers, data)
        del asked, text, data


def _rendered(source: str, variables: dict[str, Any] | None, templates: dict[str, JinjaTemplate]) -> str:
    template = templates.get(source)
    if template is None:
        if len(templates) >= _KEPT:
            templates.clear()
        template = templates[source] = JinjaTemplate(source)
    return "" if variables is None else template.render(variables)


def _limit_cpu() -> None:
    """Beyond, the kernel ends this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + MAX_CPU_S) + _SPARE_CPU_S
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _limit_memory() -> None:
    if sys.platform == "linux":
        size = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = size + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
