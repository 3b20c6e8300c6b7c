"""The explanation: why a prompt was not restored farther.

Made from the same scan and plan as a lookup, so it tells what happened and not what should have. `explain` is pure;
`Gone` answers whether a record was there once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from omlx_cache.chain import Chain
from omlx_cache.keys import TOKEN_BYTES, unpack
from omlx_cache.plan import RestorePlan
from omlx_cache.scan import Scan

Reason = Literal[
    "whole", "diverged", "stored_ends", "no_snapshot", "evicted", "other_weights", "other_image", "recompute",
    "never_seen", "disabled",
]  # fmt: skip
_SHOWN = 16
"""Tokens shown on each side of a divergence."""


class Explanation(msgspec.Struct, kw_only=True):
    """Where a prompt's tokens would come from, and what ends the restored part."""

    tokens: int
    cached_tokens: int = 0
    from_ram: int = 0
    from_disk: int = 0
    reason: Reason
    message: str
    divergence: int | None = None
    """Index of the first token that differs from what is stored."""
    prompt_tokens: list[int] = []
    """The prompt from there on (a few tokens)."""
    stored_tokens: list[int] = []
    """What is stored from there on (a few tokens)."""

    @classmethod
    def disabled(cls, tokens: int, why: str) -> Explanation:
        """Nothing is stored at all."""
        return cls(tokens=tokens, reason="disabled", message=f"nothing is cached: {why}")


def explain(
    chain: Chain, scan: Scan, plan: RestorePlan, *, gone: Callable[[bytes], bool], others: Callable[[bytes], list[str]]
) -> Explanation:
    """Why the plan ends where it ends. `gone(key)`: was it evicted? `others(tokens)`: models that have it."""
    result = Explanation(
        tokens=len(chain), cached_tokens=plan.position, from_disk=plan.from_disk,
        from_ram=plan.position - plan.from_disk, reason="whole", message="all but the last token is restored",
    )  # fmt: skip
    if plan.position >= len(chain) - 1:
        return result
    result.reason, result.message = _reason(chain, scan, plan, gone, others)
    nearest, matched = scan.edge.nearest, scan.edge.matched
    if result.reason == "diverged" and nearest is not None:
        result.divergence = matched
        result.prompt_tokens = unpack(chain.tokens(matched, matched + _SHOWN))
        result.stored_tokens = unpack(nearest.packed[(matched - nearest.start) * TOKEN_BYTES :])[:_SHOWN]
    return result


def _reason(
    chain: Chain, scan: Scan, plan: RestorePlan, gone: Callable[[bytes], bool], others: Callable[[bytes], list[str]]
) -> tuple[Reason, str]:
    edge, position = scan.edge, plan.position
    if plan.possible > position:
        return "recompute", f"tokens {position} to {plan.possible} are on disk, but computing them again is faster"
    if not edge.same_images:
        return "other_image", f"the same tokens are stored with another image behind token {edge.matched}"
    if position < min(edge.matched, len(chain) - 1):
        return "no_snapshot", (
            f"tokens up to {edge.matched} are known, but no snapshot of this model's state was kept behind {position}"
        )
    if edge.level < len(chain.blocks) and gone(chain.blocks[edge.level].key):
        return "evicted", f"the block behind token {edge.level * chain.block_size} was stored once and has been evicted"
    if edge.matched and edge.nearest is not None and edge.nearest.end > edge.matched:
        return "diverged", f"the prompt differs from what is stored at token {edge.matched}"
    if position:
        return "stored_ends", f"nothing is stored behind token {position}"
    if chain.blocks and (models := others(chain.blocks[0].packed)):
        return "other_weights", f"this prompt is stored for other weights only: {', '.join(models)}"
    return "never_seen", "no prompt that begins like this one is stored"
