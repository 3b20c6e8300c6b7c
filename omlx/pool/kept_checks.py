"""What the load checks of models found, by fingerprint, in a small file: each model is checked once per version."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from omlx.folders import write_atomically
from omlx.messages.load_checks import LoadChecks

log = logging.getLogger("omlx.pool")

_MOST = 500
"""Models that are remembered, the latest checked ones."""


class KeptChecks:
    """A file that cannot be read or written is done without: the checks are made again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known = self._read()

    def find(self, fingerprint: str) -> LoadChecks | None:
        return self._known.get(fingerprint)

    def note(self, fingerprint: str, result: LoadChecks) -> None:
        if self._known.get(fingerprint) == result:
            return
        known = {other: checks for other, checks in self._known.items() if other != fingerprint}
        self._write(dict([*known.items(), (fingerprint, result)][-_MOST:]))

    def forget(self, fingerprint: str) -> None:
        self._write({other: checks for other, checks in self._known.items() if other != fingerprint})

    def _write(self, known: dict[str, LoadChecks]) -> None:
        self._known = known
        try:
            write_atomically(self._file, msgspec.json.encode(known))
        except OSError as error:
            log.warning("what load checks found cannot be remembered in %s: %s", self._file, error)

    def _read(self) -> dict[str, LoadChecks]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, LoadChecks])
        except (OSError, msgspec.MsgspecError):
            return {}
