"""Sending a model to the Hugging Face Hub. Runs in a worker: it uses the network and the user's token."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from omlx_registry.conversion import WHOLE_MODEL
from omlx_registry.errors import PullError
from omlx_registry.hub.download import clear_errors
from omlx_registry.worker_client import JobProgress, PushHub


def run(job: PushHub, report: Callable[[JobProgress], None]) -> str:
    """Upload the files of `job.folder` to `job.repository`; returns the address of the commit.

    The repository is made where there is none. Large files travel in parts, as the Hub asks for them. Raises PullError
    with a sentence for the user.
    """
    from huggingface_hub import HfApi, constants, get_token

    if get_token() is None:
        raise PullError(
            "unauthorized: access denied: pushing needs a Hugging Face token with write access. Make one at "
            "https://huggingface.co/settings/tokens and set HF_TOKEN"
        )
    # Xet reports its progress to nobody but a terminal.
    constants.HF_HUB_DISABLE_XET = True
    folder = Path(job.folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sent = _Sent(sum(path.stat().st_size for path in files), report)
    api = HfApi(library_name="omlx")
    with clear_errors(job.repository, "push model"):
        api.create_repo(job.repository, exist_ok=True)
        made = api.create_commit(
            job.repository,
            [_addition(path, path.relative_to(folder).as_posix(), sent) for path in files],
            commit_message="Upload with oMLX",
        )
    sent.all()
    report(JobProgress("pushing manifest"))
    return str(made.commit_url)


class _Sent:
    """The bytes that have been sent of each file. Thread-safe."""

    def __init__(self, total: int, report: Callable[[JobProgress], None]) -> None:
        self._total = total
        self._report = report
        self._lock = threading.Lock()
        self._files: dict[str, int] = {}
        self._shown = 0
        report(JobProgress("pushing model", total, 0, WHOLE_MODEL))

    def up_to(self, path: str, position: int) -> None:
        """A file has been read up to there; a part that is sent again does not count twice."""
        with self._lock:
            self._files[path] = max(position, self._files.get(path, 0))
            done = sum(self._files.values())
            if done - self._shown >= self._total / 200:
                self._shown = done
                self._report(JobProgress("pushing model", self._total, min(done, self._total), WHOLE_MODEL))

    def all(self) -> None:
        self._report(JobProgress("pushing model", self._total, self._total, WHOLE_MODEL))


class _CountedFile(io.FileIO):
    """A file that says how far it was read."""

    def __init__(self, path: Path, on_read: Callable[[int], None]) -> None:
        super().__init__(path)
        self._on_read = on_read

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._on_read(self.tell())
        return data


def _addition(path: Path, name: str, sent: _Sent) -> Any:
    """The commit operation for one file, which reports what is read of it to be sent."""
    from huggingface_hub import CommitOperationAdd

    class Addition(CommitOperationAdd):  # type: ignore[misc, unused-ignore]
        @contextmanager
        def as_file(self, with_tqdm: bool = False) -> Iterator[BinaryIO]:
            if not with_tqdm:
                with super().as_file() as plain:
                    yield plain
                return
            with _CountedFile(path, lambda position: sent.up_to(name, position)) as counted:
                yield counted

    return Addition(path_in_repo=name, path_or_fileobj=str(path))
