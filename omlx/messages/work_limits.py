"""*Work limits*: how much a runner may work, to save power, to keep the machine cool or for the user at the keyboard.

The server decides them (`omlx.power`) and sends them as a frame; the scheduler and the pacer of the runner apply them.
"""

from __future__ import annotations

import msgspec


class WorkLimits(msgspec.Struct, tag="work_limits", frozen=True, kw_only=True, omit_defaults=True):
    """The default limits nothing. The *lower classes* are batch and background requests."""

    pace: float = 1.0
    """Part of the time that decode steps may take, above 0. First tokens of interactive requests are exempt."""
    share: float = 1.0
    """Part of the time that steps with lower classes may take, above 0."""
    background: bool = True
    """False: requests of the class background wait."""
    places: int = 0
    """Maximum number of requests of lower classes that run at once; 0: no limit of their own."""
    prefill: float = 1.0
    """Part of the usual prefill time of a step for prompts of lower classes, above 0."""
    speculation: bool = True
    """False: no tokens are guessed, neither by a draft model nor by prompt lookup."""
    checkpoints: bool = True
    """False: cached prefixes are written to SSD only where RAM has no room for them, and when the model is unloaded."""
    keep_alive: float | None = None
    """Most seconds that an idle model stays loaded with the default keep-alive. For the server; None: no limit."""


UNLIMITED = WorkLimits()


def strictest(first: WorkLimits, second: WorkLimits) -> WorkLimits:
    """The stricter value of each field."""
    times = [seconds for seconds in (first.keep_alive, second.keep_alive) if seconds is not None]
    return WorkLimits(
        pace=min(first.pace, second.pace),
        share=min(first.share, second.share),
        background=first.background and second.background,
        places=min(filter(None, (first.places, second.places)), default=0),
        prefill=min(first.prefill, second.prefill),
        speculation=first.speculation and second.speculation,
        checkpoints=first.checkpoints and second.checkpoints,
        keep_alive=min(times, default=None),
    )
