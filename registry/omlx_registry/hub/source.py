"""The Hugging Face Hub as a source: any MLX, safetensors or GGUF repository, by short name, alias or `ORG/REPO`.

Workers download and convert (`download`, `quantize_model`, `gguf.importer`); here the steps are put in order and their
result becomes a model, manifest last.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from omlx_registry.aliases import Aliases
from omlx_registry.assemble import Overrides, Texts
from omlx_registry.catalog import PullTarget, resolve, unknown_name
from omlx_registry.conversion import convert, run_lines
from omlx_registry.create import check_request, create
from omlx_registry.describe import read_config
from omlx_registry.errors import CreateError, Damaged, InvalidModel, NotFound, PullError, PullRefused
from omlx_registry.folders import add_model_blobs, file_layers
from omlx_registry.hub.gguf_choice import TEXT_FILES, is_kind
from omlx_registry.hub.outdated import commit_of, compare, plan, questions
from omlx_registry.hub.pushed import DESCRIPTION, request_of, write_pushed
from omlx_registry.loadable import prepare_checks, require_loadable
from omlx_registry.manifest_folder import ManifestFile
from omlx_registry.names import DEFAULT_HOST, Name
from omlx_registry.quantize import find_recipe
from omlx_registry.spec import ModelSpec, Progress, PulledModel
from omlx_registry.store import Store
from omlx_registry.views import model_files
from omlx_registry.worker_client import (
    Commit,
    Fetched,
    FetchedFile,
    FoundRepository,
    ImportGguf,
    Job,
    JobResult,
    LatestHub,
    PullHub,
    PushHub,
    Quantize,
    SearchHub,
)

_LONGEST_TEXT: Final = 1 << 20


class HubSource:
    """See `registry.Source`."""

    def __init__(self, aliases: Aliases | None = None, *, attempts: int = 6) -> None:
        """`attempts`: failures in a row, with growing pauses, before a pull gives up."""
        self._aliases = aliases
        self._attempts = attempts

    def offers(self, name: Name) -> bool:
        """Every name without a foreign host: one that means nothing gets its error, with near names, from `pull`."""
        return name.is_hub or name.host.lower() == DEFAULT_HOST

    async def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        del insecure  # The Hub is reached as HF_ENDPOINT says.
        target = self._target(name, store)
        if target.note:
            yield Progress(f"note: {target.note}")
        seen: set[str] = set()
        try:
            async with aclosing(self._fetch(name, store, target, seen)) as lines:
                async for line in lines:
                    yield line
        except (PullRefused, InvalidModel):
            await asyncio.to_thread(store.drop, seen)  # Another try would end the same way.
            raise
        # What was only downloaded to be converted is not needed any more; files of a model as it came are.
        await asyncio.to_thread(store.drop, seen)

    async def _fetch(self, name: Name, store: Store, target: PullTarget, seen: set[str]) -> AsyncGenerator[Progress]:
        """Download and register; `seen` takes the digests of what was fetched."""
        with store.working():
            result: list[Fetched] = []
            job = PullHub(
                target.repository,
                str(store.blobs.folder),
                revision=target.revision,
                tag=target.quantize,
                memory=psutil.virtual_memory().total,
                attempts=self._attempts,
                **await asyncio.to_thread(self._have, name, store, target),
            )
            async with aclosing(run_lines(job)) as lines:
                async for line in lines:
                    if isinstance(line, JobResult):
                        result.append(msgspec.convert(line.result, Fetched))
                    else:
                        if line.digest:
                            prepare_checks(store)
                        if line.digest and line.completed == line.total:
                            seen.add(line.digest)
                        yield line
            fetched = result[0]
            if fetched.unchanged:
                return
            async with aclosing(_register(name, store, target, fetched)) as steps:
                async for progress in steps:
                    yield progress

    def _have(self, name: Name, store: Store, target: PullTarget) -> dict[str, Any]:
        """What is here under the name that is pulled, for `PullHub`; nothing where the name may mean another thing now:
        an alias can have another quantization than before.
        """
        if self._aliases is not None and self._aliases.resolve(name) is not None:
            return {}
        try:
            stored = store.get(name.full)
            config = read_config(store, stored)
        except (NotFound, Damaged, OSError, msgspec.MsgspecError):
            return {}
        repository, commit = commit_of(config.omlx.source if config.omlx else "")
        if repository != target.repository or (config.omlx and config.omlx.parent_model):
            return {}
        return {"have_commit": commit, "have_digests": sorted(stored.manifest.digests)}

    def meaning(self, name: Name) -> PullTarget | None:
        """What a pull of the name fetches; None where it means nothing. Raises PullError for what cannot be run."""
        return (self._aliases.resolve(name) if self._aliases is not None else None) or resolve(name)

    async def outdated(self, specs: Iterable[ModelSpec]) -> list[PulledModel]:
        """Those of the models that were pulled, with the newest commit of each. Raises PullError without a network."""
        planned = plan(specs, self.meaning)
        states = questions(planned)
        commits: list[Commit] = []
        if states:
            async with aclosing(run_lines(LatestHub(states))) as lines:
                async for line in lines:
                    if isinstance(line, JobResult):
                        commits = msgspec.convert(line.result["commits"], list[Commit])
        return compare(planned, dict(zip(states, commits, strict=True)))

    def _target(self, name: Name, store: Store) -> PullTarget:
        target = self.meaning(name)
        if target is None:
            raise PullError(unknown_name(name, [entry.name for entry in store.manifests.entries()]))
        if target.quantize is not None and not _may_be_gguf(target) and find_recipe(target.quantize) is None:
            raise PullError(
                f"pull model manifest: file does not exist: {target.quantize} is no quantization oMLX knows; "
                "use q4, q8, bf16, mxfp4 and the like, or leave the tag out"
            )
        return target


def _may_be_gguf(target: PullTarget) -> bool:
    """Whether the tag can mean a GGUF file, going by the names."""
    return "gguf" in target.repository.lower() or (target.quantize is not None and is_kind(target.quantize))


async def _register(name: Name, store: Store, target: PullTarget, fetched: Fetched) -> AsyncGenerator[Progress]:
    """Make the model out of what was fetched."""
    overrides = Overrides(source=f"hf:{target.repository}@{fetched.commit}", capabilities=target.capabilities)
    ggufs = [file for file in fetched.files if file.path.lower().endswith(".gguf")]
    if DESCRIPTION in {file.path for file in fetched.files}:
        async with aclosing(_make_again(name, store, target, fetched, overrides.source)) as steps:
            async for step in steps:
                yield step
        return
    if not ggufs and target.quantize is None:
        files = {file.path: f"sha256:{file.digest}" for file in fetched.files}
        with store.workspace() as place:
            try:
                layers = await asyncio.to_thread(file_layers, store.blobs, files)
                await require_loadable(store, layers, place / "loads", overrides.capabilities, renders=True)
            except CreateError as error:
                raise (PullRefused if error.status == 400 else PullError)(error.message) from error
        yield Progress("writing manifest")
        await asyncio.to_thread(add_model_blobs, store, name, files, overrides=overrides)
        return
    texts, notes = await asyncio.to_thread(_texts, store, fetched) if ggufs else (None, [])
    for note in notes:
        yield Progress(f"note: {note}")
    with store.workspace() as place:
        made = place / "model"
        if ggufs:
            source = _linked(place / "source", store, ggufs)
            job: Job = ImportGguf(str(source / ggufs[0].path), str(made))
        else:
            assert target.quantize is not None
            job = Quantize(str(_linked(place / "source", store, fetched.files)), str(made), target.quantize)
        async with aclosing(convert(store, name, job, made, overrides=overrides, texts=texts)) as steps:
            async for step in steps:
                yield step


async def _make_again(
    name: Name, store: Store, target: PullTarget, fetched: Fetched, source: str
) -> AsyncGenerator[Progress]:
    """A model that was pushed from a store, with all that belonged to it."""
    files = {file.path: f"sha256:{file.digest}" for file in fetched.files}
    request = request_of(name, files, store.blobs.path(files[DESCRIPTION]), target.quantize or "")
    try:
        check_request(request)
        async with aclosing(create(store, name, request, source=source)) as steps:
            async for step in steps:
                if not step.status.startswith(("using existing layer", "creating new layer")):
                    yield step
    except CreateError as error:
        raise (PullRefused if error.status == 400 else PullError)(error.message) from error


def _texts(store: Store, fetched: Fetched) -> tuple[Texts, list[str]]:
    """What the author of a GGUF repository put beside the weights, and what of it is not used."""
    files = {file.path: store.blobs.path(f"sha256:{file.digest}") for file in fetched.files}
    notes: list[str] = []
    contents = {}
    for name in TEXT_FILES & files.keys():
        if files[name].stat().st_size > _LONGEST_TEXT:
            notes.append(f"the file {name} of the repository is not used: it is too long")
        else:
            contents[name] = files[name].read_text("utf-8", "replace")
    parameters: dict[str, Any] = {}
    if "params" in contents:
        try:
            parameters = msgspec.json.decode(contents["params"].encode(), type=dict[str, Any])
        except msgspec.MsgspecError:
            notes.append("the file params of the repository is not used: it is no JSON object")
    return Texts(contents.get("template"), contents.get("system", ""), parameters), notes


def _linked(folder: Path, store: Store, files: Iterable[FetchedFile]) -> Path:
    """Fetched blobs as a folder of named files."""
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(store.blobs.path(f"sha256:{file.digest}"), path)
    return folder


async def push(name: Name, store: Store, stored: ManifestFile, spec: ModelSpec) -> AsyncGenerator[Progress]:
    """Upload a model with all that belongs to it to the repository its name says. Raises PullError."""
    if name.repository is None:
        raise PullError(
            f"{name.short} is no repository of yours: copy it to hf.co/YOUR-NAME/{name.model} first, then push that"
        )
    if name.revision:
        raise PullError(f"{name.short} names a revision: a push makes a new one, so push hf.co/{name.repository}")
    with store.working(), store.workspace() as place:
        folder = place / "model"
        await asyncio.to_thread(_fill, folder, store, stored, spec)
        async with aclosing(run_lines(PushHub(name.repository, str(folder)))) as lines:
            async for line in lines:
                if isinstance(line, Progress):
                    yield line


def _fill(folder: Path, store: Store, stored: ManifestFile, spec: ModelSpec) -> None:
    """The folder that is pushed: the model's files by link, and what describes it."""
    files = model_files(stored.manifest)
    _linked(folder, store, [FetchedFile(path, layer.digest[7:], layer.size) for path, layer in files.items()])
    write_pushed(folder, spec, read_config(store, stored).capabilities)


async def search(text: str, limit: int) -> list[FoundRepository]:
    """MLX repositories on the Hub that match `text`, most downloaded first. Raises PullError."""
    found: list[FoundRepository] = []
    async with aclosing(run_lines(SearchHub(text, limit))) as lines:
        async for line in lines:
            if isinstance(line, JobResult):
                found = msgspec.convert(line.result["models"], list[FoundRepository])
    return found
