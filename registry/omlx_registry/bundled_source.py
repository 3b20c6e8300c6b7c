"""The bundled package as a source of models: what `bundled` finds is converted in a worker and put into the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from omlx_registry import bundled
from omlx_registry.assemble import Overrides, Texts
from omlx_registry.errors import CreateError, PullError
from omlx_registry.folders import add_model_folder
from omlx_registry.names import Name
from omlx_registry.spec import Progress
from omlx_registry.store import Store
from omlx_registry.worker_client import ImportGguf, JobProgress, run_job

WHOLE_MODEL = "sha256:model"
"""The digest Ollama gives to a line about a model as a whole; with one, clients draw a progress bar."""


class BundledSource:
    """See `registry.Source`."""

    def offers(self, name: Name) -> bool:
        return bundled.offers(name.full)

    async def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        del insecure  # No network here.
        with store.working(), store.workspace() as folder:
            level = ""
            try:
                async with aclosing(run_job(ImportGguf(str(bundled.path()), str(folder)))) as steps:
                    async for step in steps:
                        if isinstance(step, JobProgress):
                            digest = WHOLE_MODEL if step.total else ""
                            yield Progress(step.status, digest, step.total, step.completed)
                        else:
                            level = str(step.result.get("quantization_level", ""))
            except CreateError as error:
                raise PullError(error.message) from error
            yield Progress("writing manifest")
            await asyncio.to_thread(
                add_model_folder,
                store,
                name,
                folder,
                overrides=Overrides(quantization_level=level, source=f"package {bundled.DISTRIBUTION}"),
                texts=Texts(licenses=[bundled.license_text()]),
                transfer="move",
            )
