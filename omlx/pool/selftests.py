"""What self-tests found, by the digest of the model, in a small file: what is switched off stays off."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from omlx.folders import write_atomically
from omlx.messages.selftest import Feature, SelfTest

log = logging.getLogger("omlx.pool")

_MOST = 500
"""Models that are remembered, the latest tested ones."""


class SelfTests:
    """A file that cannot be read counts as empty, and is said in the log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known = self._read()

    def find(self, digest: str) -> SelfTest | None:
        return self._known.get(digest)

    def off(self, digest: str) -> frozenset[Feature]:
        """The features that are switched off for a model."""
        result = self._known.get(digest)
        return frozenset(result.off) if result is not None else frozenset()

    def keep(self, digest: str, result: SelfTest | None) -> None:
        """Remember or, with None, forget; on disk before in memory. Raises OSError."""
        known = {other: test for other, test in self._known.items() if other != digest}
        if result is not None:
            known[digest] = result
        known = dict(list(known.items())[-_MOST:])
        if known != self._known:
            write_atomically(self._file, msgspec.json.encode(known))
        self._known = known

    def _read(self) -> dict[str, SelfTest]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, SelfTest])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the self-tests in %s cannot be read (%s): nothing is switched off", self._file, error)
            return {}
