"""Disk space: checks that a write fits, and the error if it does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 256 * 1024 * 1024
"""Disk space that downloads and conversions leave free."""

_UNITS: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def lack_of_space(folder: Path, needed: int, what: str, *, reserve: int = RESERVE_BYTES) -> str:
    """The error if `needed` more bytes do not fit on the disk of the existing `folder`; "" if they fit."""
    free = shutil.disk_usage(folder).free
    return "" if needed <= 0 or needed + reserve <= free else full_disk(what, needed, free, reserve)


def full_disk(what: str, needed: int, free: int, reserve: int = RESERVE_BYTES) -> str:
    """The error for a disk that is too small; all figures in the unit of the largest."""
    size, unit = next((it for it in _UNITS if max(needed, free, reserve) >= it[0]), _UNITS[-1])
    return (
        f"the disk is full: {what} needs {needed / size:.2f} {unit}, {free / size:.2f} {unit} are free, and "
        f"{reserve / size:.2f} {unit} of the disk are kept in reserve"
    )
