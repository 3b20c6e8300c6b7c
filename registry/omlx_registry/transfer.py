"""A transfer: one file of a repository brought to disk, whole and verified.

huggingface_hub lists files and knows tokens, but it neither verifies a hash nor resumes after a killed process. So the
bytes are fetched here: with Range from where the partial file ends, retried with back-off while progress is made, and
hashed. The partial file belongs to the transfer; the verified file is handed to the caller by rename.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec

from omlx_registry.errors import PullError

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


def fetch(
    file: RemoteFile,
    partial: Path,
    client: httpx.Client,
    on_bytes: Callable[[int], None],
    policy: RetryPolicy | None = None,
) -> str:
    """Bring `file` to `partial` and return its SHA-256 (hex). Continues a partial file that is already there.

    `on_bytes` is called with the number of bytes on disk so far. Raises PullError: a wrong hash (the partial file is
    removed, one fresh try is made first), a refusal, no network, a full disk (the partial file stays for the next try).
    """
    policy = policy or RetryPolicy()
    for last_try in (False, True):
        _receive(file, partial, client, on_bytes, policy)
        digest, right = _verify(file, partial)
        if right:
            return digest
        partial.unlink(missing_ok=True)
        if last_try:
            raise PullError(
                f"digest mismatch, file must be downloaded again: want {file.sha256 or file.git_sha1}, got {digest} "
                f"({file.path})"
            )
    raise AssertionError("unreachable")


def _receive(
    file: RemoteFile, partial: Path, client: httpx.Client, on_bytes: Callable[[int], None], policy: RetryPolicy
) -> None:
    failures = 0
    while (have := size_on_disk(partial)) != file.size or not partial.exists():
        if have > file.size:
            partial.unlink()
            have = 0
        try:
            _attempt(file, partial, have, client, on_bytes)
            reason, after_s = "the connection closed early", None
        except _Retry as retry:
            reason, after_s = str(retry), retry.after_s
        except (httpx.TransportError, httpx.DecodingError) as error:
            reason, after_s = f"{type(error).__name__}: {error}".rstrip(": "), None
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise PullError(
                    f"the disk is full: {file.path} needs {file.size} bytes. Free some space and pull again: "
                    "what was downloaded is kept"
                ) from error
            raise PullError(f"{partial} cannot be written: {error.strerror or error}") from error
        if size_on_disk(partial) == file.size and partial.exists():
            return
        failures = 1 if size_on_disk(partial) > have else failures + 1
        if failures >= policy.attempts:
            raise PullError(f"downloading {file.path} failed {failures} times in a row: {reason}")
        time.sleep(policy.pause(failures, after_s))


def size_on_disk(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _attempt(file: RemoteFile, partial: Path, have: int, client: httpx.Client, on_bytes: Callable[[int], None]) -> None:
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", file.url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as response:
        if response.status_code == 416:
            # What lies here is no prefix of the file: begin again.
            partial.unlink(missing_ok=True)
            raise _Retry("the server refused to resume")
        _raise_for_status(response, file)
        resumed = response.status_code == 206 and _starts_at(response, have)
        if response.status_code == 206 and not resumed:
            raise _Retry("the server sent another part than asked for")
        with partial.open("ab" if resumed else "wb") as out:
            done = have if resumed else 0
            for chunk in response.iter_bytes():
                done += len(chunk)
                if done > file.size:
                    partial.unlink(missing_ok=True)
                    raise _Retry("the server sent more than the file's size")
                out.write(chunk)
                on_bytes(done)


def _starts_at(response: httpx.Response, position: int) -> bool:
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {position}-")


def _raise_for_status(response: httpx.Response, file: RemoteFile) -> None:
    status = response.status_code
    if status < 400:
        return
    if status in {429, 500, 502, 503, 504, 408}:
        asked = response.headers.get("Retry-After", "")
        raise _Retry(f"the server answered {status}", float(asked) if asked.isdigit() else None)
    if status in {401, 403}:
        raise PullError(
            f"unauthorized: access denied to {file.path} (status {status}). Accept the model's licence on its Hugging "
            "Face page and set HF_TOKEN to a token of your account"
        )
    raise PullError(f"{status}: {file.path} could not be downloaded from {response.url.host}")


def _verify(file: RemoteFile, partial: Path) -> tuple[str, bool]:
    sha256, sha1 = hash_file(partial, git=file.sha256 is None)
    if file.sha256 is not None:
        return sha256, sha256 == file.sha256
    return sha256, file.git_sha1 is None or sha1 == file.git_sha1


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
