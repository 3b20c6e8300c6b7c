"""Prefix dedup: of prompts that begin alike and are read at the same time, one computes the common part.

The later one *follows* the earlier, its *leader*: it is not read until the leader has come to where they part, and
then takes the common part from the prefix store. The leader makes a restore point there.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any, NamedTuple

from omlx.engine.scheduler import WEIGHTS
from omlx.engine.sequence import Sequence


class _Link(NamedTuple):
    follower: Sequence
    leader: Sequence
    shared: int


class PrefixDedup:
    """Who waits for whom. `least`: tokens in common below which nobody waits."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._links: dict[int, _Link] = {}

    def attach(self, newcomer: Sequence, ahead: Rows[Sequence]) -> None:
        """Let `newcomer` follow the one of those `ahead` of it with which it has most in common, if any."""
        self._links = {id: link for id, link in self._links.items() if link.follower.phase == "waiting"}
        leader, most = None, self._least - 1
        for other in ahead:
            if _may_lead(other, newcomer) and _agree_at(other.tokens, newcomer.tokens, most):
                shared = common_part(other, newcomer)
                if shared > most and other.position < shared:
                    leader, most = other, shared
        if leader is not None:
            self._links[newcomer.id] = _Link(newcomer, leader, most)
            leader.stops.append(most)
            if leader.capture is not None:
                leader.capture.stop_at(most)

    def waits(self, sequence: Sequence, reading: Rows[Sequence]) -> bool:
        """Whether it still waits for its leader; `reading` are all prompts that are read, in order of their arrival."""
        link = self._links.get(sequence.id)
        if link is None:
            return False
        if link.leader.position >= link.shared:
            del self._links[sequence.id]
        elif link.leader.phase == "done":  # It was cancelled, or failed; another may take its place.
            del self._links[sequence.id]
            self.attach(sequence, reading[: reading.index(sequence)])
        return sequence.id in self._links


def _may_lead(leader: Sequence, follower: Sequence) -> bool:
    """Whether its prompt is still being read, and no slower than the follower's would be."""
    return (
        leader.phase in {"waiting", "prefill"}
        and leader.generated == 0
        and not leader.made_up
        and WEIGHTS[leader.spec.priority] >= WEIGHTS[follower.spec.priority]
    )


def _agree_at(a: Rows[int], b: Rows[int], position: int) -> bool:
    """A quick look before the long one: prompts with more than `at` tokens in common agree on this one."""
    return position < len(a) and position < len(b) and a[position] == b[position]


def common_part(a: Sequence, b: Sequence) -> int:
    """Number of first tokens that two prompts share, pictures included; one of `b` is always left out."""
    shared = min(common_prefix(a.tokens, b.tokens), len(b.tokens) - 1)
    unlike = {*a.media_keys} ^ {*b.media_keys}
    return min([shared, *(picture.start for picture in unlike)])


def common_prefix(a: Rows[Any], b: Rows[Any]) -> int:
    """Length of the beginning that two lists (or texts) share."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
