"""The registry: models by name. What the server, the CLI's server side and the pool talk to.

Joins names, store, descriptions and sources. Methods without `async` touch the disk briefly; heavy work (convert,
quantize, download) runs in a worker process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import msgspec

from omlx_registry import catalog_file
from omlx_registry.aliases import Aliases
from omlx_registry.assemble import Overrides, Texts
from omlx_registry.blobs import BlobWriter, Transfer
from omlx_registry.bundled_source import BundledSource
from omlx_registry.create import CheckTemplate, CreateSpec, check_request, create
from omlx_registry.describe import describe, folder_modelfile, show
from omlx_registry.errors import (
    CreateError,
    Damaged,
    InvalidDigest,
    NotFound,
    PullError,
    storage_errors,
)
from omlx_registry.folders import add_model_folder
from omlx_registry.hub.source import HubSource, push, search
from omlx_registry.imports import Imports
from omlx_registry.integrity import VerifyReport, verify
from omlx_registry.jobs import Jobs
from omlx_registry.manifest_cache import CachedManifest, Memory
from omlx_registry.manifest_folder import ManifestFile, StoredManifest
from omlx_registry.modelfile import is_newer
from omlx_registry.names import Name, at_revision, parse_name
from omlx_registry.spec import ModelFile, ModelShow, ModelSpec, Progress, PulledModel
from omlx_registry.store import DEFAULT_CHECKER, PARTIAL_GRACE_S, UPLOAD_GRACE_S, PruneReport, Store
from omlx_registry.templates import CheckChat
from omlx_registry.versions import bring_up_to_date
from omlx_registry.views import model_files
from omlx_registry.worker_client import FoundRepository

T = TypeVar("T")


class Source(Protocol):
    """Somewhere models come from: a bundled package, the Hugging Face Hub."""

    def offers(self, name: Name) -> bool:
        """Whether this source may have the model; must not use the network."""
        ...

    def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        """Bring the model into the store under exactly this name, manifest last; raises PullError.

        Statuses between `pulling manifest` and `success`, which the registry adds.
        """
        ...


def default_sources(aliases: Aliases) -> list[Source]:
    """The bundled package, a model that needs no network; then the Hugging Face Hub."""
    return [BundledSource(), HubSource(aliases)]


class Registry:
    """Models in one folder. Thread-safe; several processes may share the folder."""

    def __init__(
        self,
        root: Path,
        sources: Iterable[Source] | None = None,
        *,
        check_template: CheckTemplate | None = None,
        check_chat: CheckChat | None = None,
        version: str = "",
        load_checker: str = DEFAULT_CHECKER,
    ) -> None:
        """`sources`: None means the bundled package, then the Hub. `check_template` and `check_chat` refuse templates
        of new models, in Go's language and in Jinja's, with a ValueError: this library renders neither. `version`: the
        version of Ollama that models are served as, for models that require one; "" is any. `load_checker`: the module
        whose process checks that new models load; this library's own knows those that mlx-lm loads.
        """
        self.store = Store(root, load_checker)
        self.aliases = Aliases(root / "omlx" / "aliases.json")
        """Names the user gave to repositories."""
        catalog_file.keep_in(root / "omlx")
        self.sources = default_sources(self.aliases) if sources is None else [*sources]
        """Asked in order by `pull`; the first that offers the name is used."""
        self._check_template = check_template
        self._check_chat = check_chat
        self._version = version
        self._jobs = Jobs()
        self._memory = Memory(root / "omlx" / "known.msgpack")
        self.imports = Imports(self.store, has=self.has, add=self.add_model_folder, pull=self.pull)

    def bring_up_to_date(self) -> None:
        """Call once before the first use: see `versions`. Raises StorageError where the store is of a newer version."""
        with storage_errors(self.store.root):
            bring_up_to_date(self.store.root)

    def names(self) -> list[Name]:
        """The names of our models, sorted."""
        return sorted(parse_name(spec.full_name) for spec in self.list())

    def list(self) -> list[ModelSpec]:
        """All our models, newest first; damaged and foreign manifests are left out."""
        entries = list(self.store.manifests.entries())
        specs = [spec for entry in entries if (spec := self._spec(entry)) is not None]
        self._memory.settle(entries)
        # Ollama orders by whole seconds; the name settles the rest.
        return sorted(specs, key=lambda spec: (-int(spec.modified_at.timestamp()), spec.name))

    def resolve(self, name: str) -> ModelSpec:
        """The model to serve under this name, in any letter case; its folder is there when this returns.

        Raises InvalidName, NotFound, or Damaged where files of the model are missing.
        """

        def open_folder(stored: ManifestFile, spec: ModelSpec) -> ModelSpec:
            self.store.materialize(stored)
            return spec

        with storage_errors(self.store.root):
            return self._use(name, open_folder)

    def require_version(self, requires: str) -> None:
        """Refuse a model that requires a newer Ollama than this one stands for. Raises CreateError."""
        if is_newer(requires, self._version):
            raise CreateError(
                f"this model requires Ollama {requires.removeprefix('v')} or newer, and this server stands for Ollama "
                f"{self._version}: update oMLX"
            )

    def has(self, name: str) -> bool:
        """Whether there is such a model, damaged or not. Raises InvalidName."""
        try:
            self.store.get(name)
        except NotFound:
            return False
        except Damaged:
            pass
        return True

    def show(
        self, name: str, *, verbose: bool = False, system: str = "", options: Mapping[str, Any] | None = None
    ) -> ModelShow:
        """Raises InvalidName, NotFound, Damaged. `verbose` lists the tensors too.

        `system` and `options` are shown as if the model had them.
        """

        def shown(stored: ManifestFile, spec: ModelSpec) -> ModelShow:
            spec = msgspec.structs.replace(spec, system=system or spec.system)
            return show(self.store, stored, spec, verbose=verbose, options=options)

        return self._use(name, shown)

    def export(self, name: str) -> tuple[str, Sequence[ModelFile]]:
        """What a folder needs to be this model without a registry: a Modelfile (`FROM .`), and the model's files.

        Raises InvalidName, NotFound, Damaged.
        """

        def listed(stored: ManifestFile, spec: ModelSpec) -> tuple[str, Sequence[ModelFile]]:
            files = model_files(stored.manifest)
            return folder_modelfile(spec), [ModelFile(path, it.size, it.digest) for path, it in files.items()]

        return self._use(name, listed)

    def open_file(self, name: str, path: str) -> BinaryIO:
        """A file of the model, open for reading. Raises InvalidName, NotFound (also for a path it does not have)."""

        def opened(stored: ManifestFile, spec: ModelSpec) -> BinaryIO:
            layer = model_files(stored.manifest).get(path)
            if layer is None:
                raise NotFound(f"{name}/{path}")
            return self.store.blobs.path(layer.digest).open("rb")

        with storage_errors(self.store.root):
            return self._use(name, opened)

    def copy(self, source: str, destination: str) -> None:
        """Let `destination` stand for the same model; overwrites silently. Raises InvalidName, NotFound."""
        target = parse_name(destination)
        with storage_errors(self.store.root), self.store.working():
            _, replaced = self.store.write(target, self.store.get(source).manifest)
        self.store.drop(replaced)

    def delete(self, name: str) -> int:
        """Forget the name and what only it needed; returns the bytes freed (0 while another model is being made).

        Works on a damaged model too. Raises InvalidName, NotFound.
        """
        with storage_errors(self.store.root):
            try:
                entry = self.store.get(name).entry
            except Damaged:
                torn = self.store.manifests.find(parse_name(name))
                if torn is None:
                    raise NotFound(name) from None
                entry = torn
            return self.store.remove(entry)

    def add_model_folder(
        self,
        name: str,
        folder: Path,
        *,
        overrides: Overrides | None = None,
        texts: Texts | None = None,
        transfer: Transfer = "link",
        trusted: Iterable[Path] = (),
    ) -> ModelSpec:
        """Register the model in `folder` under `name`. Blocking: see `folders.add_model_folder`."""
        target = parse_name(name)
        with storage_errors(self.store.root):
            stored = add_model_folder(
                self.store, target, folder, overrides=overrides, texts=texts, transfer=transfer, trusted=trusted
            )
        return describe(self.store, stored)

    # Blobs

    def has_blob(self, digest: str) -> bool:
        """Whether the blob is here and whole: it is hashed where it was written since that was last found out.

        Raises InvalidDigest.
        """
        return self.store.verified.is_right(digest)

    def blob_writer(self, digest: str | None = None) -> BlobWriter:
        """Takes the bytes of a blob and verifies them: `with registry.blob_writer(digest) as w: w.write(data)`."""
        return self.store.blob_writer(digest)

    def prune(self, *, now: bool = False, partial: bool = False, dry_run: bool = False) -> PruneReport:
        """Remove blobs that no model needs. Raises Damaged, StorageError.

        `now`: also those that were uploaded a moment ago; `partial`: also downloads that could be continued.
        `dry_run`: only report what would be removed.
        """
        with storage_errors(self.store.root):
            return self.store.prune(0 if now else UPLOAD_GRACE_S, 0 if partial else PARTIAL_GRACE_S, dry_run=dry_run)

    def verify(self, *, repair: bool = False, report: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Read and hash everything again (minutes); `repair` drops what is corrupt, so that a pull fetches it again.

        `report` is called with the bytes read so far and in all.
        """
        return verify(self.store, repair=repair, report=report)

    # Pull and create

    async def pull(self, name: str, *, revision: str = "", insecure: bool = False) -> AsyncGenerator[Progress]:
        """Fetch a model; the last line says `success`. Raises InvalidName, PullError.

        `revision`: the branch, tag or commit of the repository that the name says; as `hf.co/ORG/NAME@REVISION`.

        Pulls of one name share one job; it is cancelled when nobody follows it any more. A name keeps the letter case
        the store has for it.
        """
        wanted = self.store.manifests.locate(at_revision(parse_name(name), revision))
        self.store.require_free(wanted)
        async with aclosing(self._jobs.watch(wanted.folded, lambda: self._pull(wanted, insecure))) as lines:
            async for progress in lines:
                yield progress

    async def _pull(self, wanted: Name, insecure: bool) -> AsyncGenerator[Progress]:
        yield Progress("pulling manifest")
        source = next((source for source in self.sources if source.offers(wanted)), None)
        if source is None:
            raise PullError("pull model manifest: file does not exist")
        before = self._digests(wanted)
        with storage_errors(self.store.root):
            async with aclosing(source.pull(wanted, self.store, insecure=insecure)) as lines:
                async for progress in lines:
                    if progress.status != "pulling manifest":
                        yield progress
        after = self._digests(wanted)
        if before - after:
            yield Progress("removing unused layers")
        elif before and before == after:
            yield Progress("already up to date")
        yield Progress("success")

    async def create(self, request: CreateSpec) -> AsyncGenerator[Progress]:
        """Make a model; the last line says `success`. Raises InvalidName, CreateError, PullError, Damaged.

        A base or draft model that is not here is pulled first.
        """
        name = parse_name(request.model)
        check_request(request)
        self.require_version(request.requires)
        self.store.require_free(name)
        if request.template and self._check_template is not None:
            try:
                await asyncio.to_thread(self._check_template, request.template)
            except ValueError as error:
                raise CreateError(f"template error: {error}") from error
        for needed in (request.source, request.draft):
            if needed and not self.has(needed):
                async with aclosing(self.pull(needed)) as lines:
                    async for progress in lines:
                        if progress.status != "success":
                            yield progress
        with storage_errors(self.store.root):
            async with aclosing(create(self.store, name, request, check_chat=self._check_chat)) as lines:
                async for progress in lines:
                    yield progress
        yield Progress("success")

    async def push(self, name: str) -> AsyncGenerator[Progress]:
        """Upload a model to the Hugging Face Hub; the last line says `success`.

        Raises InvalidName, NotFound, PullError.
        """
        wanted = parse_name(name)
        yield Progress("retrieving manifest")
        try:
            spec = await asyncio.to_thread(self.resolve, name)
            stored = await asyncio.to_thread(self.store.get, name)
        except NotFound:
            yield Progress("couldn't retrieve manifest")
            raise
        async with aclosing(push(wanted, self.store, stored, spec)) as lines:
            async for progress in lines:
                yield progress
        yield Progress("success")

    async def search(self, text: str, limit: int = 20) -> Sequence[FoundRepository]:
        """MLX models on the Hugging Face Hub, most downloaded first. Raises PullError."""
        return await search(text, limit)

    async def outdated(self) -> Sequence[PulledModel]:
        """The models that were pulled from the Hub, each with its newest commit there. Raises PullError."""
        specs = await asyncio.to_thread(self.list)
        found: list[PulledModel] = []
        for source in self.sources:
            if isinstance(source, HubSource):
                found += await source.outdated(specs)
        return found

    def _digests(self, name: Name) -> set[str]:
        try:
            return self.store.get(name.full).manifest.digests
        except (NotFound, Damaged):
            return set()

    def _use(self, name: str, do: Callable[[ManifestFile, ModelSpec], T]) -> T:
        """What `do` makes of the model of that name; once more where the name was changed or removed under it."""
        while True:
            before = self.store.manifests.find(parse_name(name))
            try:
                return do(*self._look_up(name))
            except (Damaged, OSError):
                if before == self.store.manifests.find(parse_name(name)):
                    raise

    def _look_up(self, name: str) -> tuple[ManifestFile, ModelSpec]:
        """The model of that name, from memory while its manifest is unchanged."""
        entry = self.store.manifests.find(parse_name(name))
        known = None if entry is None else self._memory.recall(entry)
        if known is not None and known.spec is not None:
            return known.stored, known.spec
        stored = self.store.get(name)
        spec = describe(self.store, stored)
        self._memory.learn(CachedManifest(stored, spec))
        return stored, spec

    def _spec(self, entry: StoredManifest) -> ModelSpec | None:
        """The spec of a manifest file; None for damaged or foreign ones."""
        known = self._memory.recall(entry)
        if known is None:
            try:
                stored = self.store.manifests.read(entry)
                known = CachedManifest(stored, describe(self.store, stored) if stored.manifest.is_ours else None)
            except (Damaged, InvalidDigest, OSError):
                return None  # Not learned: a blob may come back without the manifest changing.
            self._memory.learn(known)
        return known.spec
