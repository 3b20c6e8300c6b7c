"""*Pins*: models that are neither evicted nor expired, kept by full name in a small file: they survive restarts."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from omlx.folders import write_atomically
from omlx.pool.admission import gib

_MOST_PINNED = 0.3
"""Of the registered models: beyond, the pins decide what is loaded rather than the use."""
_MOST_MEMORY = 0.5
"""Of what all models may take."""

log = logging.getLogger("omlx.pool")


class Pins:
    """A set of full model names in a JSON file. A file that cannot be read counts as empty and is said in the log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names = self._read()

    def __contains__(self, full_name: str) -> bool:
        return full_name in self._names

    def names(self) -> list[str]:
        return sorted(self._names)

    def set(self, full_name: str, pinned: bool) -> None:
        """Pin or unpin, on disk before in memory. Raises OSError."""
        names = self._names | {full_name} if pinned else self._names - {full_name}
        if names == self._names:
            return
        write_atomically(self._file, msgspec.json.encode(sorted(names)))
        self._names = names

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(msgspec.json.decode(self._file.read_bytes(), type=list[str]))
        except FileNotFoundError:
            return frozenset()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the pins in %s cannot be read (%s): nothing is pinned", self._file, error)
            return frozenset()


def too_many_pins(pinned: int, registered: int, size: int, budget: int) -> str:
    """A sentence where pins leave too little for others, else "". `size`: what the pinned models take, in bytes."""
    if not pinned:
        return ""
    if size > _MOST_MEMORY * budget:
        return f"the pinned models take {gib(size)} of {gib(budget)}: other models will hardly find room"
    if pinned > _MOST_PINNED * registered:
        return f"{pinned} of {registered} models are pinned: they are never unloaded, so little room is left to others"
    return ""
