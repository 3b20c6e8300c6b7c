"""Who runs next and how much: the engine's policy, as pure functions and one queue. No tensors, no text, no clock.

*Admission* takes waiting sequences into one of `max_concurrent_requests` places. A *prefill budget* says how many
prompt tokens may be computed between two decode steps. A *class* (interactive, batch, background) gets its weight's
share of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from omlx.engine.latency import PrefillChunks
from omlx.engine.sequence import Sequence
from omlx.messages.request import Priority

WEIGHTS: dict[Priority, int] = {"interactive": 16, "batch": 4, "background": 1}
IDLE_S = 0.5
"""Longest prefill while nothing decodes; bounds the delay of a cancel."""
IDLE_MOST_S = 2.0
"""The same where a larger chunk costs hardly more: a loaded machine, weights that are read from disk."""
EAGER_TOKENS = 2048
"""So much of every prompt is read as fast as the decode gap allows: most prompts are no longer."""
EAGER_S = 0.5
"""On a device that cannot hold the gap it is no more than takes so long: all others stand nearly still meanwhile."""
DECODE_SHARE = 0.5
"""Of the device's time that decode steps are to keep while more of a prompt than that is read."""

_REST = 0.25
"""Of a chunk."""
_PADDING = 0.25
"""Of a forward over several prompts, or of what the first of them could take."""


class FairShare:
    """Weighted turns between classes: each pays for its service by weight, and the one that has paid least is next."""

    def __init__(self) -> None:
        self._paid: dict[Priority, float] = dict.fromkeys(WEIGHTS, 0.0)
        self._floor = 0.0

    def choose(self, candidates: Iterable[Priority]) -> Priority:
        """The class whose turn it is, of those that want one. A class that was idle gets no credit for that time."""
        paid = {name: max(self._paid[name], self._floor) for name in candidates}
        chosen = min(paid, key=lambda name: (paid[name], -WEIGHTS[name]))
        self._floor = paid[chosen]
        return chosen

    def copy(self) -> FairShare:
        """A copy that can be charged for planned work."""
        other = FairShare()
        other._paid, other._floor = {**self._paid}, self._floor
        return other

    def charge(self, name: Priority, tokens: int) -> None:
        self._paid[name] = max(self._paid[name], self._floor) + tokens / WEIGHTS[name]


class WaitingLine:
    """Sequences that wait for a place: first come, first served within a class."""

    def __init__(self) -> None:
        self._lines: dict[Priority, deque[Sequence]] = {name: deque() for name in WEIGHTS}
        self._share = FairShare()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for line in self._lines.values():
            yield from line

    def push(self, sequence: Sequence) -> None:
        self._lines[sequence.spec.priority].append(sequence)

    def pop(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """The next sequence if it fits, else None. Later sequences of its class do not overtake it."""
        waiting = [name for name, line in self._lines.items() if line]
        while waiting:
            name = self._share.choose(waiting)
            if fits(self._lines[name][0]):
                sequence = self._lines[name].popleft()
                self._share.charge(name, len(sequence.tokens))
                return sequence
            waiting.remove(name)
        return None

    def remove(self, ids: set[int]) -> list[Sequence]:
        """Remove and return the sequences with these ids."""
        removed: list[Sequence] = []
        for name, line in self._lines.items():
            removed += [sequence for sequence in line if sequence.id in ids]
            if any(sequence.id in ids for sequence in line):
                self._lines[name] = deque(sequence for sequence in line if sequence.id not in ids)
        return removed


class Candidate(NamedTuple):
    """A prompt that is being prefilled, as the plan sees it."""

    id: int
    remaining: int
    """Tokens still to be computed; an upper bound until its prefix is restored."""
    computed: int
    """Tokens computed so far, without restored ones."""
    priority: Priority = "interactive"
    ready: bool = True
    """No part of it is being read from disk."""
    fresh: bool = True
    """No part of it has been computed or restored."""
    shares: bool = True
    """It may share a forward with other prompts."""


class PrefillState(NamedTuple):
    """The input of a step's plan."""

    candidates: tuple[Candidate, ...]
    """In order of arrival."""
    decoding: bool
    """Whether the step also decodes sequences."""
    turn: int
    """Forwards planned so far."""
    share: FairShare
    padding: Callable[[bool], bool | None] | None
    """As in `choose_together`; None: each forward has one prompt."""
    logits_rows: int = 1 << 20
    """As in `chunk_end`."""
    held: frozenset[Priority] = frozenset()
    """Classes that pause in this step."""
    lower_part: float = 1.0
    """Of the usual time, for prompts of classes other than interactive (`WorkLimits.prefill`)."""

    @property
    def admitted(self) -> list[Candidate]:
        """The prompts that the work limits allow; if lower classes are limited, theirs wait for interactive ones."""
        left = [candidate for candidate in self.candidates if candidate.priority not in self.held]
        interactive = [candidate for candidate in left if candidate.priority == "interactive"]
        return interactive if interactive and self.lower_part < 1 else left


class PrefillCosts(Protocol):
    """Prefill costs and limits (`PrefillBudget`), in seconds and tokens."""

    @property
    def owes(self) -> bool: ...
    @property
    def eager_tokens(self) -> int: ...
    def seconds(self, *, decoding: bool, eager: bool) -> float: ...
    def left(self, seconds: float, read: PrefillChunks) -> float: ...
    def tokens(self, seconds: float) -> int: ...
    def forward_tokens(self, seconds: float) -> int: ...


class PlannedForward(NamedTuple):
    """A forward of the step: prompt `id`, with other prompts if they fit."""

    id: int
    tokens: int
    """Most tokens of one prompt."""
    together: int
    """Most tokens of all its prompts, including padding."""
    eager: bool
    """The prompt is within its first tokens, which do not count against decode steps."""


class StepPlan(NamedTuple):
    """The forwards of a step, in order. Prefixes restored meanwhile reduce them."""

    forwards: tuple[PlannedForward, ...] = ()


def plan(state: PrefillState, costs: PrefillCosts) -> StepPlan:
    """The forwards of one step: eager prompts before long ones, in the time that decode steps leave.

    A step in which the first prompt of all ends is over with it, and one beside decodes with a chunk that owes them.
    """
    line = {candidate.id: candidate for candidate in state.admitted}
    eager_tokens, spent = costs.eager_tokens, PrefillChunks()
    eager = {candidate.id: candidate.computed < eager_tokens for candidate in line.values()}
    seconds = costs.seconds(decoding=state.decoding, eager=any(eager.values()))
    if not any(candidate.priority == "interactive" for candidate in line.values()):
        seconds *= state.lower_part
    share, forwards = state.share.copy(), list[PlannedForward]()
    while (left := costs.left(seconds, spent)) > 0:
        readable = readable_now([*line.values()], eager, decoding=state.decoding, owes=costs.owes)
        if not readable:
            break
        first = next_prefill(readable, share, state.turn + len(forwards))
        forward = PlannedForward(first.id, costs.tokens(left), costs.forward_tokens(left), eager[first.id])
        forwards.append(forward)
        alike = [one for one in readable if one.priority == first.priority and eager[one.id] == forward.eager]
        taken = _expected(first, alike, forward, state)
        spent = spent.plus(len(taken) * max(taken.values()), owing=not forward.eager)
        ended = False
        for id, tokens in taken.items():
            before = line[id]
            share.charge(before.priority, tokens)
            rest, computed = before.remaining - tokens, before.computed + tokens
            line[id], eager[id] = (
                before._replace(remaining=rest, computed=computed, fresh=False),
                computed < eager_tokens,
            )
            if rest <= (1 if len(taken) > 1 else 0):  # the last token of several is left to the first decode step
                del line[id]
                ended = True
        if (ended and not state.decoding) or (spent.owing and state.decoding):
            break
    return StepPlan(tuple(forwards))


def readable_now(line: list[Candidate], eager: Mapping[int, bool], *, decoding: bool, owes: bool) -> list[Candidate]:
    """Prompts that may be prefilled now: while decodes are owed time, only `eager` ones.

    One that is still on its way from disk waits while there is anything else to do.
    """
    wanted = [candidate for candidate in line if not (decoding and owes) or eager[candidate.id]]
    ready = [candidate for candidate in wanted if candidate.ready]
    return ready if ready or decoding else wanted


def _expected(first: Candidate, alike: list[Candidate], forward: PlannedForward, state: PrefillState) -> dict[int, int]:
    """The expected tokens of each prompt of a forward, by id."""

    def chunk(candidate: Candidate) -> Chunk:
        return Chunk(candidate.id, min(candidate.remaining - 1, forward.tokens), candidate.fresh)

    alone = {first.id: chunk_end(0, first.remaining, forward.tokens, logits_rows=state.logits_rows)}
    if state.padding is None or not first.shares or first.remaining <= 1:
        return alone
    others = (chunk(one) for one in alike if one.id != first.id and one.shares and one.remaining > 1)
    taken = choose_together(chunk(first), others, forward.together, padding=state.padding)
    return taken if len(taken) > 1 else alone


def next_prefill(candidates: list[Candidate], share: FairShare, turn: int) -> Candidate:
    """Whose prompt is read next: in turn the oldest of its class and the one with the fewest tokens left.

    So a short prompt waits for at most as many chunks of long ones as it has itself, and a long one keeps at least half
    of the device however many short ones arrive.
    """
    name = share.choose({candidate.priority for candidate in candidates})
    line = [candidate for candidate in candidates if candidate.priority == name]
    return line[0] if turn % 2 == 0 else min(line, key=lambda candidate: candidate.remaining)


def chunk_end(position: int, total: int, budget: int, *, logits_rows: int) -> int:
    """Where the chunk of a prompt of `total` tokens that starts at `position` ends.

    The last token of more than `logits_rows` goes alone: only its logits are wanted, and the output layer over a long
    chunk costs more than one more step does. A small rest beyond `budget` is read along, since it would cost a forward
    of its own.
    """
    last = total - 1 if total - position > max(logits_rows, 1) else total
    return last if last - position <= budget * (1 + _REST) else position + budget


class Chunk(NamedTuple):
    """Tokens of a prompt in the next forward."""

    id: int
    tokens: int
    fresh: bool
    """Nothing of the prompt has been prefilled or restored yet."""


def choose_together(
    first: Chunk, others: Iterable[Chunk], budget: int, *, padding: Callable[[bool], bool | None]
) -> dict[int, int]:
    """Which prompts are prefilled in one forward with `first`, and how many tokens each takes, by id.

    A forward costs its rows times its widest row, which stays within `budget` tokens. `padding(fresh)` says whether
    rows may take unequal numbers of tokens (`caches.padding`): where they may, padding is kept to `_PADDING` of the
    forward, else every row takes as many as the smallest. `others` is asked for no more than fit.
    """
    allowed = padding(first.fresh)
    taken = {first.id: first.tokens}
    width = first.tokens
    if allowed is None:
        return taken
    for other in others:
        if other.fresh != first.fresh:
            continue
        rows = len(taken) + 1
        wide = max(width, other.tokens) if allowed else min(width, other.tokens)
        if rows * wide > budget:
            if rows * width > budget:
                break
            continue
        used = sum(taken.values()) + other.tokens if allowed else rows * wide
        if used < (1 - _PADDING) * rows * wide or wide < (1 - _PADDING) * first.tokens:
            continue
        width = wide
        taken[other.id] = other.tokens
    return taken if allowed else dict.fromkeys(taken, width)


def choose_group(lengths: list[int], groups: list[list[int]], *, token_bytes: int, weight_bytes: int) -> int | None:
    """Which group of running rows (by their lengths) sequences of `lengths` join; None: one of their own.

    A group's rows are padded to its longest: reading all of its padding costs bandwidth, and memory holds it; a group
    of its own costs one more reading of the weights in every step. The cheaper one is chosen.
    """
    best: tuple[int, int, int] | None = None
    for index, group in enumerate(groups):
        if not group:
            return index
        padding = _padding_of([*group, *lengths])
        more = padding - _padding_of(group)
        if best is None or more < best[0]:
            best = (more, padding, index)
    return best[2] if best is not None and best[1] * token_bytes <= weight_bytes else None


def _padding_of(lengths: list[int]) -> int:
    """Tokens of padding where all rows are as long as the longest."""
    return len(lengths) * max(lengths) - sum(lengths)
