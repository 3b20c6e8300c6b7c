"""What a self-test found, as it travels and as it is kept; and which feature rests on which check.

A feature whose check failed is switched off for that model: slower or less able, but never wrong.
Imports nothing heavy.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Feature = Literal["cache", "batching", "joint prefill", "tools", "format"]
Outcome = Literal["passed", "failed", "skipped", "inconclusive"]

RESTS_ON: dict[str, Feature] = {
    "restore": "cache", "batch": "batching", "prefill": "joint prefill", "tools": "tools", "schema": "format",
}  # fmt: skip
"""Check → feature. The checks without one (seed, needle) tell something, but there is nothing to switch off."""

NOTES: dict[Feature, str] = {
    "cache": "its prompts are not cached",
    "batching": "its requests run one at a time",
    "joint prefill": "its prompts are prefilled one at a time",
    "tools": "it is offered no tools",
    "format": "it is held to no format",
}


CLEAR_HINT = "`omlx selftest --clear MODEL` takes this back"


class Check(msgspec.Struct, frozen=True):
    """One check: its name, how it ended, and a sentence with the figures.

    An inconclusive check was kept from its end by other work: it says nothing about the model.
    """

    name: str
    outcome: Outcome
    detail: str = ""


class SelfTest(msgspec.Struct, frozen=True, kw_only=True):
    """All checks of one model. `at` is an ISO time, `versions` what it ran on."""

    at: str
    versions: str
    checks: list[Check]

    @property
    def off(self) -> tuple[Feature, ...]:
        """The features that are switched off, in the order of the checks."""
        failed = (check.name for check in self.checks if check.outcome == "failed")
        return tuple(RESTS_ON[name] for name in failed if name in RESTS_ON)

    @property
    def notes(self) -> list[str]:
        """Sentences for people: what is switched off."""
        return [f"{feature} is off since its self-test failed: {NOTES[feature]}; {CLEAR_HINT}" for feature in self.off]


class SelfTestRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /api/omlx/selftest: keep what was found of a model; no checks: forget it."""

    model: str = ""
    checks: list[Any] = []
    """Each a `Check`."""


class SelfTestResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model and its digest: `result` is None where no self-test of these very files is known."""

    model: str
    digest: str
    off: list[Feature] = []
    result: SelfTest | None = None
    before: SelfTest | None = None
    """What was known until now."""
