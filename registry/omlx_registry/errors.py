"""What can go wrong in the registry, as sentences a user can act on.

Every failure the registry foresees is a `RegistryError`; its text is what a client sees, so where Ollama has a wording
for the case it is that wording.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path


class RegistryError(Exception):
    """A failure with a sentence for the user; `message` is that sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidName(RegistryError):
    """The text is no model name; `name` is the text as given."""

    def __init__(self, name: str, message: str = "invalid model name") -> None:
        super().__init__(message)
        self.name = name


class NotFound(RegistryError):
    """No such model here; `name` is the name as asked for, `normalized` its short form with tag."""

    def __init__(self, name: str, normalized: str = "") -> None:
        super().__init__(f"model '{name}' not found")
        self.name = name
        self.normalized = normalized or name


class InvalidDigest(RegistryError):
    """The text is no `sha256:` digest."""

    def __init__(self, digest: str) -> None:
        super().__init__("invalid digest format")
        self.digest = digest


class DigestMismatch(RegistryError):
    """Bytes do not have the digest they were announced with."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f'digest mismatch, expected "{expected}", got "{actual}"')
        self.expected = expected
        self.actual = actual


class Damaged(RegistryError):
    """A stored model lacks a blob or holds a broken one."""


class StorageError(RegistryError):
    """The disk does not take or give what it should: full, read-only, not permitted."""


class InvalidModel(RegistryError):
    """A folder, file or blob set is no model this registry can take in."""


class PullError(RegistryError):
    """A pull could not be done."""


class PullRefused(PullError):
    """What a repository holds cannot be run: another try changes nothing, and what was fetched is not needed."""


class CreateError(RegistryError):
    """A create request is wrong (`status` 400) or could not be done (`status` 500)."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def storage_errors(root: Path) -> Iterator[None]:
    """Turn what the system says about files of the store at `root` into a StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageError("there is no space left on the disk of the model store") from error
        raise StorageError(f"the model store cannot be used: {reason(error, root)}") from error


def reason(error: Exception, root: Path) -> str:
    """What the system says, without the way to the store: a client need not know where on the server that is."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or type(error).__name__
    with contextlib.suppress(TypeError, ValueError):  # No file, or one that is elsewhere.
        return f"{Path(error.filename).relative_to(root)}: {text}"
    return text


class ModelfileError(RegistryError):
    """A Modelfile that does not parse; `line` is 1-based, 0 where no line is to blame."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"(line {line}): {message}" if line else message)
        self.line = line
