"""What the *load checks* of a model found, as it travels and as it is kept. Imports nothing heavy.

A load check is made by the runner when a model is loaded for the first time (`omlx.engine.load_checks`), and again
when oMLX or a library has changed. A feature whose check failed is off for that model: slower, but never wrong.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

import msgspec

from omlx.messages.selftest import CLEAR_HINT, NOTES, RESTS_ON, Feature


class LoadCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check: its name, whether it passed, and a clause that says what was found."""

    name: str
    passed: bool
    detail: str = ""


class LoadChecks(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one model. `basis` is what they hold for: versions and device."""

    basis: str
    seconds: float
    findings: list[LoadCheck]

    def passed(self, name: str) -> bool:
        """Whether the check of this name passed; one that was not made has not failed."""
        return all(finding.passed for finding in self.findings if finding.name == name)

    @property
    def off(self) -> tuple[Feature, ...]:
        """The features that are switched off."""
        return tuple(RESTS_ON[finding.name] for finding in self.findings if not finding.passed)

    @property
    def notes(self) -> list[str]:
        """Sentences for people: what is switched off, and why."""
        return [
            f"{RESTS_ON[finding.name]} is off: {finding.detail}; {NOTES[RESTS_ON[finding.name]]}; {CLEAR_HINT}"
            for finding in self.findings
            if not finding.passed
        ]


@cache
def basis(device: str) -> str:
    """What load checks depend on beside the model: versions and device."""
    versions = [f"{name} {_version(name)}" for name in ("omlx", "mlx", "mlx-lm", "mlx-vlm")]
    return ", ".join([*versions, device])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
