"""What of a model's *thinking* concerns a prompt. Its markers are in the table of `omlx_registry.thinking`.

The parser (`output.py`) takes the markers from there; the prompt (`prompt.py`) must know whether it already ends inside
a thinking block.
"""

from __future__ import annotations

from omlx_registry.thinking import (
    KNOWN,
    ThinkMarkers,
    find_markers,
    markers_around_thinking,
    opens_suffixed,
    reads,
    thinks,
    thinks_by_default,
)

__all__ = [
    "CLOSES_ITSELF",
    "KNOWN",
    "ThinkMarkers",
    "ends_inside_thinking",
    "find_markers",
    "markers_around_thinking",
    "opens_suffixed",
    "reads",
    "thinks",
    "thinks_by_default",
]

_SEED_REFLECTS = "<seed:cot_budget_reflect>"
"""Seed-OSS with thinking off opens a thought, and in it the sentence that it has no budget; it closes both itself."""

CLOSES_ITSELF = frozenset({"<seed:think>"})
"""Openings of families that end thinking by themselves where they are told not to think."""


def ends_inside_thinking(prompt: str) -> bool:
    """Whether the prompt's last words open a thinking block, so that the model's output starts within it."""
    end = prompt.rstrip()
    _, analysis, begun = end.rpartition("<|channel|>analysis<|message|>")
    if analysis and "<|" not in begun:
        # gpt-oss: earlier thinking that the model is to go on with.
        return True
    if end.endswith(_SEED_REFLECTS):
        end = end.removesuffix(_SEED_REFLECTS)
    return any(end.endswith(markers.opening.rstrip()) for markers in KNOWN) or opens_suffixed(end)
