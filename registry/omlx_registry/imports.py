"""Imports: models that other programs have on this machine, and how they get into the store.

Folders of safetensors in the Hugging Face cache and LM Studio's are registered by hard link; GGUF files and Ollama's
models are converted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

from omlx_registry.assemble import Overrides
from omlx_registry.conversion import convert
from omlx_registry.errors import CreateError, RegistryError, storage_errors
from omlx_registry.folders import checked_path
from omlx_registry.loadable import require_loadable_folder
from omlx_registry.local_models import PassedOver, find, places
from omlx_registry.names import Name
from omlx_registry.ollama.importer import ImportSpec, Pull, import_models
from omlx_registry.ollama.locate import locate, why_none
from omlx_registry.ollama.store import OllamaModel, OllamaStore
from omlx_registry.spec import ImportStep
from omlx_registry.store import Store
from omlx_registry.worker_client import ImportGguf


class Imports:
    """Part of a registry. `has`, `add` and `pull`: the registry's own (`add_model_folder` for `add`)."""

    def __init__(self, store: Store, *, has: Callable[[str], bool], add: Callable[..., object], pull: Pull) -> None:
        self._store = store
        self._has = has
        self._add = add
        self._pull = pull
        self._importing = asyncio.Lock()

    async def import_found(self) -> AsyncGenerator[ImportStep]:
        """Take what the Hugging Face cache and LM Studio hold and this store does not: by hard link, or converted."""
        for root in places(os.environ, Path.home()):
            for model in await asyncio.to_thread(find, root):
                if isinstance(model, PassedOver):
                    yield ImportStep(f"skipping {model.place}: {model.reason}")
                    continue
                name = model.name.short
                if self._has(name):
                    yield ImportStep(f"{name} is already here", model=name, outcome="present")
                    continue
                yield ImportStep(f"importing {name}", model=name)
                try:
                    if model.gguf is not None:
                        checked_path(model.folder, model.gguf.name, [model.root])
                        async with aclosing(self._convert(model.name, model.gguf)) as steps:
                            async for step in steps:
                                yield step
                        continue
                    await require_loadable_folder(self._store, model.folder, renders=True)
                    await asyncio.to_thread(self._add, name, model.folder, trusted=[model.root])
                except RegistryError as error:
                    yield ImportStep(f"skipping {name}: {error.message}", model=name)
        yield ImportStep("success")

    async def _convert(self, name: Name, path: Path) -> AsyncGenerator[ImportStep]:
        """Make a model of a GGUF file, which stays where it is. Raises RegistryError."""
        with self._store.working(), self._store.workspace() as space:
            made = space / "model"
            job = ImportGguf(str(path), str(made))
            overrides = Overrides(source=f"file:{path.name}")
            async with aclosing(convert(self._store, name, job, made, overrides=overrides)) as lines:
                async for line in lines:
                    digest = f"{name.short} {line.digest}" if line.digest else ""
                    status = f"{name.short}: {line.status}"
                    yield ImportStep(status, digest, line.total, line.completed, model=name.short)

    def find_ollama(self, folder: str = "") -> OllamaStore | None:
        """The store of an Ollama on this machine, or in `folder`; None where there is none, or it is this one."""
        return locate(folder, self._store.root)

    def count_ollama(self) -> tuple[int, int]:
        """How many models an Ollama on this machine has that are not here yet, and their bytes."""
        ollama = self.find_ollama()
        models = ollama.models() if ollama else []
        sizes = [model.size for model in models if isinstance(model, OllamaModel) and not self._has(model.name.full)]
        return len(sizes), sum(sizes)

    async def import_ollama(self, request: ImportSpec, folder: str = "") -> AsyncGenerator[ImportStep]:
        """Import models of an Ollama on this machine; the last line says `success`. Raises CreateError.

        Imports run one after the other: a second one finds what the first has made.
        """
        ollama = await asyncio.to_thread(self.find_ollama, folder)
        if ollama is None:
            raise CreateError(why_none(folder, self._store.root))
        async with self._importing:
            with storage_errors(self._store.root):
                async with aclosing(import_models(self._store, ollama, request, self._pull)) as steps:
                    async for step in steps:
                        yield step
        yield ImportStep("success")
