"""A job: heavy work on model files that a process of its own does; this module owns starting and ending that process.

Converting takes seconds to hours, fills memory and imports MLX; the server must do none of that. So a job goes to
`python -m omlx_registry.worker` as one JSON line, comes back as JSON lines, and lives no longer than the `run_job`
iterator: closing or cancelling it kills the process, and the process ends by itself when its stdin closes, which the
kernel does even if the server is killed. What a dead job leaves in its output folder is for the caller to remove.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import psutil

from omlx_registry.errors import CreateError

_LINE_LIMIT: Final = 16 << 20
_KEPT_STDERR: Final = 4096
MEMORY_SHARE: Final = 0.8
"""Of the memory that is free, what a worker may take; it holds one module of a model at a time."""
_LOOK_S: Final = 0.05
_TOO_LARGE: Final = (
    "the conversion takes more memory than is free: unload models or use a machine with more; files that are damaged "
    "or hostile do this too"
)


class ImportGguf(msgspec.Struct, tag_field="job", tag="import_gguf", frozen=True):
    """Convert the GGUF file `path` into the new MLX folder `folder`.

    `weights`: "keep" for the file's own precision, or a name of `omlx_registry.quantize` (f32, q4_K_M ...). `check`:
    files that must have these digests (path → 64 hex).
    """

    path: str
    folder: str
    weights: str = "keep"
    check: dict[str, str] = {}


class InspectGguf(msgspec.Struct, tag_field="job", tag="inspect_gguf", frozen=True):
    """Say what `ImportGguf` would make of the file, from its header; the result is `gguf.importer.inspect_gguf`'s."""

    path: str


class ImportAdapter(msgspec.Struct, tag_field="job", tag="import_adapter", frozen=True):
    """Convert the GGUF adapter `path` into mlx-lm's files in the new folder `folder`.

    `config`: config.json of the model that it is for. `check`: as in `ImportGguf`.
    """

    path: str
    folder: str
    config: dict[str, Any]
    check: dict[str, str] = {}


class ImportTensors(msgspec.Struct, tag_field="job", tag="import_tensors", frozen=True):
    """Put an MLX model together in the new folder `folder`, from a safetensors file for each tensor and other files.

    `files`: name in the folder → path. `link`: share files that can be used as they are. `check`: as in `ImportGguf`.
    """

    blobs: list[str]
    files: dict[str, str]
    folder: str
    link: bool = False
    check: dict[str, str] = {}


class ExportGguf(msgspec.Struct, tag_field="job", tag="export_gguf", frozen=True):
    """Write the MLX model in `folder` as the GGUF file `path`; the result is `gguf.exporter.export_gguf`'s."""

    folder: str
    path: str


class Quantize(msgspec.Struct, tag_field="job", tag="quantize", frozen=True):
    """Quantize the model folder `source` into the new folder `folder`, by a name of `omlx_registry.quantize`."""

    source: str
    folder: str
    recipe: str


class PullHub(msgspec.Struct, tag_field="job", tag="pull_hub", frozen=True):
    """Fetch what a model needs of a Hugging Face repository into the folder `blobs`; the result is a `Fetched`.

    `tag`: what the user asked for: the quantization of safetensors, or which GGUF file. None: as it is, or the usual
    kind that fits `memory` bytes.
    """

    repository: str
    blobs: str
    revision: str = "main"
    tag: str | None = None
    memory: int = 0
    attempts: int = 6
    """Failures in a row without a new byte before a file is given up."""
    have_commit: str = ""
    """The commit of the model that is here under the name that is pulled."""
    have_digests: list[str] = []
    """Its blobs: where the Hub has no other commit and these are whole, nothing is fetched."""


class PushHub(msgspec.Struct, tag_field="job", tag="push_hub", frozen=True):
    """Upload the files of `folder` to a Hugging Face repository; the result's `url` is the commit's address."""

    repository: str
    folder: str


class SearchHub(msgspec.Struct, tag_field="job", tag="search_hub", frozen=True):
    """Find MLX models on the Hugging Face Hub; the result's `models` is a list of `FoundRepository`."""

    text: str
    limit: int = 20


class RepositoryState(msgspec.Struct, frozen=True):
    """A repository at a branch, tag or commit."""

    repository: str
    revision: str = "main"


class Commit(msgspec.Struct, frozen=True):
    """What the Hub says a repository's state is: a commit, or why it does not say."""

    commit: str = ""
    error: str = ""


class LatestHub(msgspec.Struct, tag_field="job", tag="latest_hub", frozen=True):
    """Ask for the newest commit of each of `states`; the result's `commits` is a list of `Commit`, in their order."""

    states: list[RepositoryState]


Job = (
    ImportGguf
    | InspectGguf
    | ImportAdapter
    | ImportTensors
    | ExportGguf
    | Quantize
    | PullHub
    | PushHub
    | SearchHub
    | LatestHub
)


class FetchedFile(msgspec.Struct, frozen=True):
    """A file of a repository, now a blob: `digest` is 64 hex digits."""

    path: str
    digest: str
    size: int


class Fetched(msgspec.Struct, frozen=True):
    """What a pull brought, in the repository's state `commit`."""

    commit: str
    files: list[FetchedFile]
    unchanged: bool = False
    """The model that is here is what the repository holds: there is nothing to do."""


class FoundRepository(msgspec.Struct, frozen=True):
    """A search hit; `size` in bytes, 0 where the Hub does not say."""

    repository: str
    downloads: int
    size: int = 0


class JobProgress(msgspec.Struct, omit_defaults=True):
    """One step of a job, as Ollama words it; `total` and `completed` are bytes of the source."""

    status: str
    total: int = 0
    completed: int = 0
    digest: str = ""


class JobResult(msgspec.Struct):
    """The last thing a job says: what it made. See `gguf.importer` and `quantize_model` for the keys."""

    result: dict[str, Any]


class JobFailure(msgspec.Struct):
    """Why there is no result; `status` is the HTTP status Ollama would answer with."""

    error: str
    status: int = 500


class _WorkerLine(msgspec.Struct):
    """Any line a worker writes."""

    status: str | int = ""
    total: int = 0
    completed: int = 0
    digest: str = ""
    result: dict[str, Any] | None = None
    error: str | None = None


async def run_job(job: Job, *, memory: int | None = None) -> AsyncGenerator[JobProgress | JobResult]:
    """Run a job to its end: progress as it comes, the result last. Raises CreateError with the worker's sentence.

    Close the iterator (or cancel the task that reads it) to stop the job at once. `memory`: bytes that the worker may
    take, by default most of what is free: one that takes more is ended.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "omlx_registry.worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_LIMIT,
        env=worker_environment(),
        start_new_session=True,  # a Ctrl-C in the terminal is the server's to handle
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    complaints = asyncio.create_task(_tail(process.stderr))
    watch = asyncio.create_task(_end_above(process, memory or int(psutil.virtual_memory().available * MEMORY_SHARE)))
    finished = False
    try:
        with contextlib.suppress(ConnectionError):  # a worker that died at once is reported below
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            await process.stdin.drain()
        async for raw in process.stdout:
            line = msgspec.json.decode(raw, type=_WorkerLine)
            if line.error is not None:
                raise CreateError(line.error, line.status if isinstance(line.status, int) else 500)
            if line.result is not None:
                finished = True
                yield JobResult(line.result)
                return
            yield JobProgress(str(line.status), line.total, line.completed, line.digest)
        code = await process.wait()
        raise CreateError(_TOO_LARGE if watch.done() and watch.result() else _why_it_ended(code, await complaints), 500)
    finally:
        watch.cancel()
        await _end(process, complaints, at_once=not finished)


async def _end(process: asyncio.subprocess.Process, complaints: asyncio.Task[str], *, at_once: bool) -> None:
    if at_once and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), 5)
    if process.returncode is None:
        process.kill()
        await process.wait()
    complaints.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await complaints


async def _end_above(process: asyncio.subprocess.Process, memory: int) -> bool:
    """Kill the worker once it takes more memory of its own; whether that was done. Returns when it is gone."""
    while process.returncode is None and sys.platform == "linux":
        if memory_taken(process.pid) > memory:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return True
        await asyncio.sleep(_LOOK_S)
    return False


def memory_taken(pid: int) -> int:
    """Bytes of its own that a process takes; 0 where that is not known.

    Pages of files that it has mapped are not counted: the system drops them where memory is short. Only Linux tells
    the two apart.
    """
    if sys.platform != "linux":
        return 0
    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(info.rss - info.shared)


async def _tail(stream: asyncio.StreamReader) -> str:
    """Drain a worker's stderr, so that it never blocks, and keep its end."""
    kept = b""
    while piece := await stream.read(65536):
        kept = (kept + piece)[-_KEPT_STDERR:]
    return kept.decode("utf-8", "replace").strip()


def _why_it_ended(code: int, complaints: str) -> str:
    if code == -signal.SIGKILL:
        return "the conversion was killed, probably because memory ran out"
    last = complaints.splitlines()[-1] if complaints else "no message"
    return f"the conversion ended without a result (exit status {code}): {last}"


def worker_environment() -> dict[str, str]:
    """A worker finds this package where this process found it, installed or not."""
    paths = [path for path in sys.path if path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
