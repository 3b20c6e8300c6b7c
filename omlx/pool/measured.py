"""What models really took: measured at a load and kept in a small file, so that the next load is planned by it."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from omlx.folders import write_atomically

log = logging.getLogger("omlx.pool")

_MOST = 500
"""Models that are remembered, the latest measured ones."""


class Measurement(msgspec.Struct, frozen=True):
    """Bytes: `fixed` is the model, what a forward needs beside it and its process; `token` the KV of one token."""

    fixed: int
    token: int

    def with_context(self, tokens: int) -> int:
        """Bytes with the KV of one context of `tokens`."""
        return self.fixed + self.token * tokens


class Measurements:
    """By digest and manner of holding the weights. A file that cannot be read or written is done without."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known = self._read()

    def find(self, digest: str, weights: str) -> Measurement | None:
        return self._known.get(f"{digest} {weights}")

    def note(self, digest: str, weights: str, measurement: Measurement) -> None:
        key = f"{digest} {weights}"
        if self._known.get(key) == measurement:
            return
        self._known.pop(key, None)
        self._known[key] = measurement
        self._known = dict(list(self._known.items())[-_MOST:])
        try:
            write_atomically(self._file, msgspec.json.encode(self._known))
        except OSError as error:
            log.warning("what models take cannot be remembered in %s: %s", self._file, error)

    def _read(self) -> dict[str, Measurement]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, Measurement])
        except (OSError, msgspec.MsgspecError):
            return {}
