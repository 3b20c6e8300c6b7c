"""A transfer: one file of a repository brought to disk, whole and verified.

huggingface_hub lists files and knows tokens, but it neither verifies a hash nor resumes after a killed process, and
its Xet client does not resume either. So the bytes are fetched here: several ranges at once into one file of the final
size (see `partial_file`), each retried with back-off while progress is made, and hashed at the end. The partial file
belongs to the transfer; the verified file is handed to the caller by rename.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import msgspec

from omlx_registry.disk_space import full_disk
from omlx_registry.errors import PullError
from omlx_registry.partial_file import PARALLEL, FileSegment, PartialFile, bytes_allocated, record_path, remove_partial

_CHUNK = 1 << 20
_TIMEOUT = httpx.Timeout(30.0, connect=20.0)
"""Seconds without a byte before the connection counts as lost."""


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as the Hub lists it. Large files carry a SHA-256, small ones only git's SHA-1 of the blob."""

    path: str
    size: int
    url: str
    sha256: str | None = None
    git_sha1: str | None = None


class RetryPolicy(msgspec.Struct, frozen=True):
    """How patient a transfer is: attempts that bring nothing new, one after another, before it gives up."""

    attempts: int = 6
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0

    def pause(self, failures: int, asked_s: float | None = None) -> float:
        """Seconds to wait after `failures` failures in a row; what the server asked for wins, within a minute."""
        if asked_s is not None:
            return min(max(asked_s, 0.0), 60.0)
        return min(self.first_pause_s * 2.0 ** (failures - 1), self.longest_pause_s)


class _Retry(Exception):
    """An attempt failed in a way that a further one may mend."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


class _NoRanges(Exception):
    """The server sends the whole file whatever it is asked for."""


class _Stopped(Exception):
    """Another segment of the file failed for good."""


def connections() -> threading.Semaphore:
    """A limit on connections for transfers that run at the same time."""
    return threading.Semaphore(PARALLEL)


def fetch(
    file: RemoteFile,
    partial: Path,
    client: httpx.Client,
    on_bytes: Callable[[int], None],
    policy: RetryPolicy | None = None,
    lanes: threading.Semaphore | None = None,
) -> str:
    """Bring `file` to `partial` and return its SHA-256 (hex). Continues a partial file that is already there.

    `on_bytes` is called with the number of bytes on disk so far, by several threads; `lanes` limits the connections
    (see `connections`). Raises PullError: a wrong hash (the partial file is removed, one fresh try is made first), a
    refusal, no network, a full disk (the partial file stays for the next try).
    """
    policy, lanes = policy or RetryPolicy(), lanes or connections()
    for last_try in (False, True):
        try:
            with PartialFile(partial, file.size) as content:
                _Transfer(file, content, client, on_bytes, policy, lanes).run()
        except OSError as error:
            raise PullError(_disk_sentence(error, file, partial)) from error
        sha256, sha1 = hash_file(partial, git=file.sha256 is None)
        wanted, actual = (file.sha256, sha256) if file.sha256 else (file.git_sha1, sha1)
        if wanted is None or wanted == actual:
            record_path(partial).unlink(missing_ok=True)
            return sha256
        remove_partial(partial)
        if last_try:
            raise PullError(
                f"digest mismatch, file must be downloaded again: want {wanted}, got {actual} ({file.path})"
            )
    raise AssertionError("unreachable")


class _Transfer:
    """One try at all that is missing of a file."""

    def __init__(
        self,
        file: RemoteFile,
        content: PartialFile,
        client: httpx.Client,
        on_bytes: Callable[[int], None],
        policy: RetryPolicy,
        lanes: threading.Semaphore,
    ) -> None:
        self._file = file
        self._content = content
        self._client = client
        self._on_bytes = on_bytes
        self._policy = policy
        self._lanes = lanes
        self._stop = threading.Event()
        self._direct: httpx.URL | None = None
        """Where the Hub redirected to: further ranges go there at once."""

    def run(self) -> None:
        try:
            self._all_segments()
        except _NoRanges:
            self._segment(self._content.join())

    def _all_segments(self) -> None:
        open_segments = [segment for segment in self._content.segments if segment.missing]
        if len(open_segments) <= 1:
            for segment in open_segments:
                self._segment(segment)
            return
        pool = ThreadPoolExecutor(min(PARALLEL, len(open_segments)))
        running = [pool.submit(self._segment, segment) for segment in open_segments]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
            for error in (future.exception() for future in running if future.done()):
                if error is not None and not isinstance(error, _Stopped):
                    raise error
        finally:
            self._stop.set()
            # A connection may be stalled. What it still brings is refused by the partial file, which is closed.
            pool.shutdown(wait=False, cancel_futures=True)
            self._stop = threading.Event()

    def _segment(self, segment: FileSegment) -> None:
        """Fill one segment. Raises PullError, OSError, _NoRanges."""
        stop = self._stop
        failures: list[str] = []
        while segment.missing:
            before = segment.done
            try:
                with self._lanes:
                    self._attempt(segment, stop)
                reason, after_s = "the connection closed early", None
            except _Retry as retry:
                reason, after_s = str(retry), retry.after_s
            except (httpx.TransportError, httpx.DecodingError) as error:
                reason, after_s = f"{type(error).__name__}: {error}".rstrip(": "), None
            if not segment.missing:
                return
            if segment.done > before:
                failures.clear()
            failures.append(reason)
            if len(failures) >= self._policy.attempts:
                raise PullError(
                    f"downloading {self._file.path} failed {len(failures)} times in a row: {_causes(failures)}"
                )
            stop.wait(self._policy.pause(len(failures), after_s))

    def _attempt(self, segment: FileSegment, stop: threading.Event) -> None:
        if stop.is_set():
            raise _Stopped
        with contextlib.closing(self._request(segment)) as response:
            if response.status_code == 416:
                # What lies here is no part of the file: begin again.
                self._content.empty(segment)
                raise _Retry("the server refused to resume")
            self._check(response, segment)
            whole = segment.length == self._file.size
            if response.status_code != 206:
                if not whole:
                    raise _NoRanges
                self._content.empty(segment)
            for chunk in response.iter_bytes():
                if stop.is_set():
                    raise _Stopped
                if whole and len(chunk) > segment.missing:
                    self._content.empty(segment)
                    raise _Retry("the server sent more than the file's size")
                # A server may send on to the end of the file: the rest is another segment's.
                self._content.write(segment, chunk[: segment.missing])
                self._on_bytes(self._content.done)
                if not segment.missing and not whole:
                    break

    def _request(self, segment: FileSegment) -> httpx.Response:
        headers = {"Accept-Encoding": "identity"}
        if segment.done or segment.length < self._file.size:
            headers["Range"] = f"bytes={segment.position}-{segment.start + segment.length - 1}"
        direct = self._direct
        request = self._client.build_request("GET", direct or self._file.url, headers=headers, timeout=_TIMEOUT)
        if direct is not None and direct.host != httpx.URL(self._file.url).host:
            # As a redirect does: the token is the Hub's alone.
            request.headers.pop("Authorization", None)
        response = self._client.send(request, stream=True, follow_redirects=True)
        if direct is None and response.history and response.status_code < 400:
            self._direct = response.url
        elif direct is not None and response.status_code in {401, 403, 404, 410}:
            self._direct = None  # Its signature is out of date: ask the Hub for another.
            response.close()
            raise _Retry(f"the server answered {response.status_code}", 0.0)
        return response

    def _check(self, response: httpx.Response, segment: FileSegment) -> None:
        _raise_for_status(response, self._file)
        if response.status_code == 206:
            if not str(response.headers.get("Content-Range", "")).startswith(f"bytes {segment.position}-"):
                raise _Retry("the server sent another part than asked for")
        elif is_web_page(response) and not self._file.path.endswith((".html", ".htm")):
            raise _Retry(WEB_PAGE)


WEB_PAGE = (
    "the network answered with a web page instead of the file: sign in to the network (a captive portal), or check "
    "HTTPS_PROXY and HF_ENDPOINT"
)


def is_web_page(response: httpx.Response) -> bool:
    """Whether an answer is HTML, which the Hub's files and lists never are."""
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower() == "text/html"


def _causes(failures: list[str]) -> str:
    """The causes of failed attempts, each once: "the server answered 500 (3 times), ReadTimeout"."""
    return ", ".join(f"{cause} ({times} times)" if times > 1 else cause for cause, times in Counter(failures).items())


def _disk_sentence(error: OSError, file: RemoteFile, partial: Path) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = shutil.disk_usage(partial.parent).free
        full = full_disk(file.path, file.size - bytes_allocated(partial), free)
        return f"{full}. Free some space and pull again: what was downloaded is kept"
    return f"the download of {file.path} cannot be written: {error.strerror or type(error).__name__}"


def _raise_for_status(response: httpx.Response, file: RemoteFile) -> None:
    status = response.status_code
    if status < 400:
        return
    if status in {429, 500, 502, 503, 504, 408}:
        retry_after = response.headers.get("Retry-After", "")
        raise _Retry(f"the server answered {status}", float(retry_after) if retry_after.isdigit() else None)
    if status in {401, 403} and response.history:
        # The Hub gave access and a signed address; what was signed may be out of date by now.
        raise _Retry(f"the server answered {status}")
    if status in {401, 403}:
        raise PullError(
            f"unauthorized: access denied to {file.path} (status {status}). Accept the model's licence on its Hugging "
            "Face page and set HF_TOKEN to a token of your account"
        )
    raise PullError(f"{status}: {file.path} could not be downloaded from {response.url.host}")


def hash_file(path: Path, *, git: bool = False) -> tuple[str, str]:
    """SHA-256 of a file and, where `git` asks for it, the SHA-1 git gives the same content ("" otherwise)."""
    sha256 = hashlib.sha256()
    sha1 = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False) if git else None
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            sha256.update(chunk)
            if sha1 is not None:
                sha1.update(chunk)
    return sha256.hexdigest(), sha1.hexdigest() if sha1 is not None else ""
