"""The worker: a process that does one job on model files and ends (`python -m omlx_registry.worker`).

It reads one job as a JSON line from stdin, writes JSON lines to stdout, `{"status", "total", "completed"}` while it
works and `{"result"}` or `{"error", "status"}` last, and runs at low priority. Stdin staying open is the sign that
somebody still wants the result: when it closes, the process ends in the middle of whatever it does. The other end is
`worker_client`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from omlx_registry.errors import CreateError, InvalidModel, PullRefused, RegistryError
from omlx_registry.gguf.container import GgufError
from omlx_registry.ollama.store import damaged
from omlx_registry.open_files import limits_kept
from omlx_registry.worker_client import (
    ExportGguf,
    ImportAdapter,
    ImportGguf,
    ImportTensors,
    InspectGguf,
    Job,
    JobFailure,
    JobProgress,
    JobResult,
    LatestHub,
    PullHub,
    PushHub,
    Quantize,
    SearchHub,
)

NICENESS: Final = 10
PROGRESS_INTERVAL_S: Final = 0.1
_PIECE: Final = 4 << 20


class Reporter:
    """Writes lines to the other end; progress at most ten times a second, except the first and the last of a status."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._last = 0.0

    def send(self, line: JobProgress | JobResult | JobFailure) -> None:
        self._stream.write(msgspec.json.encode(line) + b"\n")
        self._stream.flush()

    def progress(self, status: str, completed: int, total: int) -> None:
        now = time.monotonic()
        if 0 < completed < total and now - self._last < PROGRESS_INTERVAL_S:
            return
        self._last = now
        self.send(JobProgress(status, total, completed))


def do_job(job: Job, reporter: Reporter) -> dict[str, Any]:
    """The job's result. Raises RegistryError with a sentence for the user."""
    match job:
        case ImportGguf(path, folder, weights, check):
            from omlx_registry.gguf.importer import import_gguf  # a job imports its own libraries only: 0.1 to 0.3 s

            def report(done: int, total: int) -> None:
                reporter.progress("converting model", done, total)

            _verify(check, reporter)
            reporter.progress("parsing GGUF", 0, 0)
            return import_gguf(Path(path), Path(folder), weights, report)
        case InspectGguf(path):
            from omlx_registry.gguf.importer import inspect_gguf  # as above

            return inspect_gguf(Path(path))
        case ImportAdapter(path, folder, config, check):
            from omlx_registry.gguf.lora import import_adapter  # as above

            _verify(check, reporter)
            return import_adapter(Path(path), Path(folder), config)
        case ImportTensors(blobs, files, folder, link, check):
            from omlx_registry.ollama.tensors import import_tensors  # as above

            _verify(check, reporter)
            return import_tensors(
                blobs, files, Path(folder), lambda done, total: reporter.progress("copying", done, total), link=link
            )
        case ExportGguf(folder, path):
            from omlx_registry.gguf.exporter import export_gguf  # as above

            return export_gguf(
                Path(folder), Path(path), lambda done, total: reporter.progress("writing tensors", done, total)
            )
        case Quantize(source, folder, recipe):
            from omlx_registry.quantize_model import quantize_model  # as above

            with limits_kept():
                return quantize_model(Path(source), Path(folder), recipe, reporter.progress)
        case PullHub():
            from omlx_registry.hub.download import run  # as above

            return msgspec.to_builtins(run(job, reporter.send))  # type: ignore[no-any-return]
        case PushHub():
            from omlx_registry.hub.push import run as push  # as above

            return {"url": push(job, reporter.send)}
        case SearchHub(text, limit):
            from omlx_registry.hub.search import search  # as above

            return {"models": msgspec.to_builtins(search(text, limit))}
        case LatestHub(states):
            from omlx_registry.hub.latest import newest  # as above

            return {"commits": msgspec.to_builtins(newest(states))}


def _verify(files: dict[str, str], reporter: Reporter) -> None:
    """Raises InvalidModel where the bytes of a file do not have the digest that they should."""
    total, done = sum(Path(path).stat().st_size for path in files), 0
    for path, digest in files.items():
        found = hashlib.sha256()
        with Path(path).open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
                done += len(piece)
                reporter.progress("verifying sha256 digest", min(done, total), total)
        if found.hexdigest() != digest:
            raise InvalidModel(damaged(digest))


def failure(error: Exception) -> JobFailure:
    """What to tell the user: foreseen errors in their own words, others with their kind."""
    if isinstance(error, CreateError):
        return JobFailure(error.message, error.status)
    if isinstance(error, GgufError | InvalidModel | PullRefused):
        return JobFailure(error.message, 400)
    if isinstance(error, RegistryError):
        return JobFailure(error.message)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return JobFailure("there is no space left on the disk for the converted model")
    if isinstance(error, MemoryError):
        return JobFailure("there is not enough memory to convert the model")
    return JobFailure(f"the model could not be converted: {type(error).__name__}: {error}")


def _end_with_stdin(stdin: BinaryIO) -> None:
    with contextlib.suppress(OSError):
        while stdin.read(4096):
            pass
    os._exit(1)


def main() -> int:
    # Libraries print to stdout; the protocol has it to itself, their prints go to stderr.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    stdin = os.fdopen(os.dup(0), "rb", buffering=0)
    line = _first_line(stdin)
    if not line:
        return 1
    threading.Thread(target=_end_with_stdin, args=(stdin,), daemon=True).start()
    reporter = Reporter(stream)
    try:
        result = do_job(msgspec.json.decode(line, type=Job), reporter)
    except BrokenPipeError:
        return 1
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        reporter.send(failure(error))
        return 1
    reporter.send(JobResult(result))
    return 0


def _first_line(stdin: BinaryIO) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = stdin.read(65536)
        if not piece:
            break
        line += piece
    return line


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # No waiting for threads or for MLX to tidy up: everything that counts is on disk.
    os._exit(code)
