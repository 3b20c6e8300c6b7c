"""A conversion: a worker makes a model folder out of something else, and the folder becomes a model of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from omlx_registry.assemble import Overrides, Texts
from omlx_registry.errors import CreateError, PullError, PullRefused
from omlx_registry.folders import add_model_folder
from omlx_registry.loadable import prepare_checks, require_loadable_folder
from omlx_registry.names import Name
from omlx_registry.spec import Progress
from omlx_registry.store import Store
from omlx_registry.worker_client import Job, JobResult, run_job

WHOLE_MODEL: Final = "sha256:model"
"""The digest Ollama gives to a line about a model as a whole; with one, clients draw a progress bar."""


async def run_lines(job: Job) -> AsyncGenerator[Progress | JobResult]:
    """A worker's lines as Ollama's, its failures as PullError, refusals of what it was given as PullRefused."""
    try:
        async with aclosing(run_job(job)) as lines:
            async for line in lines:
                if isinstance(line, JobResult):
                    yield line
                else:
                    yield Progress(line.status, line.digest, line.total, line.completed)
    except CreateError as error:
        refused = PullRefused if error.status == 400 else PullError
        raise refused(error.message) from error


async def convert(
    store: Store, name: Name, job: Job, folder: Path, *, overrides: Overrides, texts: Texts | None = None
) -> AsyncGenerator[Progress]:
    """Run a job whose result is `folder` (in a workspace of the store), and register it if it loads.

    Raises PullError.
    """
    prepare_checks(store)
    async with aclosing(run_lines(job)) as lines:
        async for line in lines:
            if isinstance(line, Progress):
                yield Progress(line.status, WHOLE_MODEL if line.total else "", line.total, line.completed)
            else:
                for note in line.result.get("notes", []):
                    yield Progress(f"note: {note}")
                level = str(line.result.get("quantization_level", ""))
                overrides = msgspec.structs.replace(overrides, quantization_level=level)
    try:
        renders = texts is None or not texts.template
        await require_loadable_folder(store, folder, overrides.capabilities, renders=renders)
    except CreateError as error:
        raise (PullRefused if error.status == 400 else PullError)(error.message) from error
    yield Progress("writing manifest")
    await asyncio.to_thread(add_model_folder, store, name, folder, overrides=overrides, texts=texts, transfer="move")
