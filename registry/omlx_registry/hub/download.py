"""The worker's side of a pull from the Hugging Face Hub: list a repository, fetch what a model needs into blobs.

Runs in a worker process, never in the server. A file ends as `blobs/sha256-<hex>` once its hash is right; until then
it is `blobs/sha256-<hex>-partial`, which a later pull continues (see `partial_file`). What the user's Hugging Face
cache or the store already holds is linked, not fetched again. Writing the manifest is the caller's: a pull that dies
here leaves nothing listed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from omlx_registry.blobs import BlobStore
from omlx_registry.disk_space import lack_of_space
from omlx_registry.errors import PullError, PullRefused
from omlx_registry.hub import precheck
from omlx_registry.hub.gguf_choice import TEXT_FILES, choose_gguf
from omlx_registry.hub.pushed import DESCRIPTION, is_beside
from omlx_registry.locks import try_exclusive
from omlx_registry.model_files import is_safe_path, select
from omlx_registry.model_json import decode_object
from omlx_registry.partial_file import bytes_allocated, bytes_kept, remove_partial
from omlx_registry.quantize import find_recipe
from omlx_registry.transfer import WEB_PAGE, RemoteFile, RetryPolicy, connections, fetch, hash_file
from omlx_registry.verified import VerifiedBlobs
from omlx_registry.worker_client import Fetched, FetchedFile, JobProgress, PullHub

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_PARALLEL_FILES = 4
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".onnx", ".msgpack", ".h5", ".ckpt", ".nemo", ".npz", ".mlmodel")
_CHECKED_FROM = 32 << 20
"""Bytes of weights from which on their headers are read first."""
_REPORT_EVERY_S = 0.06
_LOOK_AGAIN_S = 0.2
"""Between two looks at a download of another pull."""
Report = Callable[[JobProgress], None]


def run(job: PullHub, report: Report) -> Fetched:
    """Fetch `job`; raises PullError with a sentence for the user."""
    with clear_errors(job.repository):
        commit, listed = _list_patiently(job)
    blobs = BlobStore(Path(job.blobs))
    verified = VerifiedBlobs(blobs)
    if job.have_commit == commit:
        report(JobProgress("verifying sha256 digest"))
        damaged = [digest for digest in job.have_digests if not verified.is_right(digest)]
        if not damaged:
            return Fetched(commit, [], unchanged=True)
        report(JobProgress(f"note: {len(damaged)} damaged files are replaced"))
        for digest in damaged:
            blobs.remove(digest)
    files, notes = _choose(job, listed)
    for note in notes:
        report(JobProgress(f"note: {note}"))
    blobs.folder.mkdir(parents=True, exist_ok=True)
    _check_space(files, blobs)
    with _client() as client:
        pull = _Pull(job, commit, blobs, verified, client, _ProgressLines(report))
        weights = [file for file in files if _is_weights(file.path)]
        others = [file for file in files if not _is_weights(file.path)]
        fetched = pull.all(others)
        _refuse(job, weights, {file.path: blobs.path(f"sha256:{file.digest}") for file in fetched}, client, blobs)
        fetched += pull.all(weights)
    report(JobProgress("verifying sha256 digest"))
    return Fetched(commit, fetched)


# ---------------------------------------------------------------- listing
def _list_patiently(job: PullHub) -> tuple[str, dict[str, RemoteFile]]:
    """List the repository; a busy or stumbling Hub is asked again with back-off."""
    from huggingface_hub import errors

    policy = RetryPolicy(attempts=job.attempts)
    for failures in range(1, policy.attempts + 1):
        try:
            return _list(job)
        except errors.HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            if status not in {429, 500, 502, 503, 504} or failures == policy.attempts:
                raise
            retry_after = error.response.headers.get("Retry-After", "")
            time.sleep(policy.pause(failures, float(retry_after) if retry_after.isdigit() else None))
    raise AssertionError("unreachable")


def _list(job: PullHub) -> tuple[str, dict[str, RemoteFile]]:
    """The commit, and its files by path."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(library_name="omlx")
    commit = api.model_info(job.repository, revision=job.revision).sha or job.revision
    tree = [
        item
        for item in api.list_repo_tree(job.repository, revision=commit, recursive=True)
        if isinstance(item, RepoFile)
    ]
    return commit, {
        item.path: RemoteFile(
            path=item.path,
            size=item.size,
            url=hf_hub_url(job.repository, item.path, revision=commit, endpoint=api.endpoint),
            sha256=item.lfs.sha256 if item.lfs else None,
            git_sha1=None if item.lfs else item.blob_id,
        )
        for item in tree
    }


def _choose(job: PullHub, listed: dict[str, RemoteFile]) -> tuple[list[RemoteFile], list[str]]:
    """The files to fetch, and what the user must know; PullRefused where there is nothing that MLX can run."""
    chosen = select(listed)
    has_model = "config.json" in chosen and any(path.endswith(".safetensors") for path in chosen)
    named_gguf = job.tag is not None and job.repository.lower().endswith("gguf")
    if not has_model or named_gguf or (job.tag is not None and find_recipe(job.tag) is None):
        choice = choose_gguf({path: file.size for path, file in listed.items()}, job.repository, job.tag, job.memory)
        if choice is not None:
            texts = [path for path in sorted(listed) if path in TEXT_FILES]
            return [listed[path] for path in (*texts, *choice.files.paths)], choice.notes
    if not has_model:
        raise PullRefused(_no_model(job.repository, listed))
    if job.tag is not None and find_recipe(job.tag) is None:
        raise PullRefused(
            f"pull model manifest: file does not exist: {job.tag} is no quantization oMLX knows, and {job.repository} "
            "has no GGUF files; use q4, q8, bf16, mxfp4 and the like, or leave the tag out"
        )
    if DESCRIPTION in listed:
        chosen += [path for path in listed if is_beside(path) and is_safe_path(path) and path not in chosen]
    return [listed[path] for path in chosen], []


def _no_model(repository: str, listed: dict[str, RemoteFile]) -> str:
    """Why a repository cannot be run, and what to do."""
    if "adapter_config.json" in listed:
        return (
            f"{repository} holds a LoRA adapter and no model: pull its base model, and name the adapter's folder in a "
            "Modelfile (FROM, ADAPTER)"
        )
    needs = "it needs config.json and safetensors weights, or a GGUF file"
    other = next((path for path in sorted(listed) if path.endswith(_OTHER_WEIGHTS)), None)
    hint = f" (its weights are in {other}, which MLX cannot read)" if other else ""
    return f"{repository} holds no model oMLX can run: {needs}{hint}"


def _is_weights(path: str) -> bool:
    return path.lower().endswith((".safetensors", ".gguf"))


def _refuse(
    job: PullHub, weights: list[RemoteFile], others: dict[str, Path], client: httpx.Client, blobs: BlobStore
) -> None:
    """Refuse a model that cannot be run before its weights are fetched. Raises PullRefused."""
    if "config.json" in others:
        config = decode_object(others["config.json"].read_bytes(), "config.json")
        precheck.check_config(config, job.repository)
    weights = [file for file in weights if not is_beside(file.path)]
    others = {path: place for path, place in others.items() if not is_beside(path)}
    missing = [file for file in weights if not file.sha256 or blobs.size(f"sha256:{file.sha256}") != file.size]
    # Of little that is missing, the header is seen as soon when all of it is here; of what has begun, it was seen.
    begun = any(partial_path(file, blobs).exists() for file in missing)
    if sum(file.size for file in missing) >= _CHECKED_FROM and not begun:
        precheck.check_headers(weights, others, client, blobs, job.repository)


@contextlib.contextmanager
def clear_errors(repository: str, doing: str = "pull model manifest") -> Iterator[None]:
    """Hub errors as PullErrors whose sentences say what was being done and what to do now."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise PullError(f"{doing}: unauthorized: access denied: {_gate(error, repository)}") from error
    except errors.RevisionNotFoundError as error:
        raise PullError(f"{doing}: file does not exist: {repository} has no such revision") from error
    except errors.RepositoryNotFoundError as error:
        if error.response is not None and "invalid" in _said(error).lower():
            raise PullError(f"{doing}: unauthorized: access denied: {_NOT_ACCEPTED}") from error
        raise PullError(
            f"{doing}: file does not exist: no repository {repository} on Hugging Face (if it is private, set HF_TOKEN)"
        ) from error
    except errors.HFValidationError as error:
        raise PullError(f"{doing}: file does not exist: {repository} is no repository name") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status in {401, 403}:
            raise PullError(f"{doing}: unauthorized: access denied: {_NOT_ACCEPTED}") from error
        hint = "Hugging Face answered with an error: try again later"
        if status == 429:
            hint = "Hugging Face limits requests: wait a while, or set HF_TOKEN for a higher limit"
        raise PullError(f"{doing}: {status}: {hint}") from error
    except json.JSONDecodeError as error:
        # Before OSError: requests' class of this name is one as well.
        raise PullError(f"{doing}: {WEB_PAGE}") from error
    except (errors.HTTPError, OSError) as error:
        from huggingface_hub import constants

        raise PullError(
            f"{doing}: {constants.ENDPOINT} cannot be reached ({_in_words(error)}). "
            "Check the network, HTTPS_PROXY and HF_ENDPOINT"
        ) from error


_NOT_ACCEPTED = (
    "Hugging Face does not accept the token in HF_TOKEN: make a new one at https://huggingface.co/settings/tokens, "
    "with access to this repository"
)


def _gate(error: HfHubHTTPError, repository: str) -> str:
    """What opens a gated repository: a licence that is not accepted is another matter than a token without rights."""
    page = f"https://huggingface.co/{repository}"
    if "fine-grained" in _said(error):
        return (
            f"the token in HF_TOKEN may not read gated repositories such as {repository}: allow it that at "
            "https://huggingface.co/settings/tokens"
        )
    if error.response is not None and error.response.status_code == 403:
        return f"{repository} is gated, and the account of HF_TOKEN has no access: accept the licence at {page}"
    return f"{repository} is gated. Accept its licence at {page} and set HF_TOKEN to a token of that account"


def _said(error: HfHubHTTPError) -> str:
    return str(error.response.headers.get("X-Error-Message", "")) if error.response is not None else ""


def _in_words(error: Exception) -> str:
    """The first line of an error, without the number that the system has for it."""
    text = re.sub(r"\[Errno -?\d+\] ", "", str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__


# ---------------------------------------------------------------- fetching
def _client() -> httpx.Client:
    from huggingface_hub.utils import build_hf_headers

    # httpx drops Authorization when a redirect leaves the host: the CDN never sees the token.
    return httpx.Client(headers=build_hf_headers(library_name="omlx"))


def _check_space(files: list[RemoteFile], blobs: BlobStore) -> None:
    missing = sum(
        max(0, file.size - bytes_allocated(partial_path(file, blobs)))
        for file in files
        if file.sha256 and blobs.size(f"sha256:{file.sha256}") != file.size
    )
    if lack := lack_of_space(blobs.folder, missing, "the download"):
        raise PullError(lack)


def partial_path(file: RemoteFile, blobs: BlobStore) -> Path:
    """Where a file grows: named by its hash, so that any later pull of the same content continues it."""
    return blobs.folder / (f"sha256-{file.sha256}-partial" if file.sha256 else f"sha1-{file.git_sha1}-partial")


class _ProgressLines:
    """Progress lines from several threads, at most one per file and `_REPORT_EVERY_S`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def show(self, digest: str, total: int, completed: int) -> None:
        with self._lock:
            now = time.monotonic()
            if completed < total and now - self._last.get(digest, 0.0) < _REPORT_EVERY_S:
                return
            self._last[digest] = now
            self._report(JobProgress(f"pulling {digest[:12]}", total, completed, f"sha256:{digest}"))


class _Pull:
    """The files of one repository on their way into the blobs, several at once."""

    def __init__(
        self,
        job: PullHub,
        commit: str,
        blobs: BlobStore,
        verified: VerifiedBlobs,
        client: httpx.Client,
        lines: _ProgressLines,
    ) -> None:
        self._job = job
        self._commit = commit
        self._blobs = blobs
        self._verified = verified
        self._client = client
        self._lines = lines
        self._lanes = connections()

    def all(self, files: list[RemoteFile]) -> list[FetchedFile]:
        """Every file as a blob. Raises the first error at once; what else was under way stays as partial files."""
        pool = ThreadPoolExecutor(_PARALLEL_FILES)
        running = [pool.submit(self._one, file) for file in files]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
            return [
                FetchedFile(file.path, future.result(), file.size) for file, future in zip(files, running, strict=True)
            ]
        finally:
            # After an error the worker ends: it does not wait for connections that may be stalled.
            pool.shutdown(wait=False, cancel_futures=True)

    def _one(self, file: RemoteFile) -> str:
        """Bring one file into the blobs and return its SHA-256."""
        partial = partial_path(file, self._blobs)
        # Two pulls that want the same content share one download: the second waits, then finds the blob. A few lock
        # files serve all contents: a lock file that came and went could be held twice.
        with self._alone(file, partial):
            if file.sha256 and self._verified.is_right(f"sha256:{file.sha256}", file.size):
                digest = file.sha256
            else:
                digest = self._from_cache(file, partial) or self._plainly(file, partial)
                self._blobs.settle(partial, f"sha256:{digest}")
                self._verified.note(f"sha256:{digest}")
        self._lines.show(digest, file.size, file.size)
        return digest

    @contextlib.contextmanager
    def _alone(self, file: RemoteFile, partial: Path) -> Iterator[None]:
        """Hold the lock of a content; while another pull fetches it, show how far that is."""
        lock = self._blobs.folder.parent / "locks" / f"pull-{(file.sha256 or file.git_sha1 or '0')[:2]}"
        while True:
            with try_exclusive(lock) as held:
                if held:
                    yield
                    return
            if file.sha256:
                self._lines.show(file.sha256, file.size, min(bytes_kept(partial, file.size), file.size - 1))
            time.sleep(_LOOK_AGAIN_S)

    def _plainly(self, file: RemoteFile, partial: Path) -> str:
        def on_bytes(done: int) -> None:
            if file.sha256:
                self._lines.show(file.sha256, file.size, done)

        return fetch(file, partial, self._client, on_bytes, RetryPolicy(attempts=self._job.attempts), self._lanes)

    def _from_cache(self, file: RemoteFile, partial: Path) -> str | None:
        """Link the file from the user's Hugging Face cache into place when it is there and its hash is right."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self._job.repository, file.path, revision=self._commit)
        if not isinstance(cached, str):
            return None
        source = Path(cached).resolve()
        sha256, sha1 = hash_file(source, git=file.sha256 is None)
        if (sha256 != file.sha256) if file.sha256 else (sha1 != file.git_sha1):
            return None
        remove_partial(partial)
        try:
            os.link(source, partial)
        except OSError:
            # Another file system, or one without links.
            shutil.copyfile(source, partial)
        return sha256
