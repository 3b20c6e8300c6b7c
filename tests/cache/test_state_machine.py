"""Whatever happens in whatever order (requests, eviction, restarts, damage), nothing wrong is ever served."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from omlx_cache import PrefixStore

from tests.cache.toy import Toy, assert_holds, open_toy, play

CAP = 5 << 20
WIDTH = 256  # A block takes 32 KiB per layer: the cap is met now and then.
KINDS = (
    ("full",),
    ("full", "full"),
    ("full", "window"),
    ("full", "state"),
    ("window",),
    ("state",),
    ("full", "window", "state"),
)

# Prompts from few tokens, made of a few long runs, so that they share prefixes and part in odd places.
runs = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=4)
prompts = runs.map(lambda parts: [token for token, count in parts for _ in range(count)])

chunks = st.sampled_from([1, 7, 16, 48, 200])


class StoreMachine(RuleBasedStateMachine):
    """The model: every sequence ever served. A restore may never claim more than the longest prefix among them; while
    nothing was lost, a model of full attention restores exactly that."""

    @initialize(kinds=st.sampled_from(KINDS))
    def start(self, kinds: tuple[str, ...]) -> None:
        self.toy = Toy(kinds, WIDTH)
        self.root = Path(tempfile.mkdtemp(prefix="omlx-cache-"))
        self.folders = 0
        self.seen: list[list[int]] = []
        self.complete = set(kinds) == {"full"}
        self.store = self.open()

    def folder(self) -> Path:
        return self.root / str(self.folders)

    def open(self, **changes: int) -> PrefixStore:
        return open_toy(self.toy, self.folder(), cold_bytes=CAP, **changes)

    def longest_known(self, tokens: list[int]) -> int:
        def common(other: list[int]) -> int:
            return next(
                (n for n, (a, b) in enumerate(zip(tokens, other, strict=False)) if a != b), min(len(tokens), len(other))
            )

        return min(max((common(other) for other in self.seen), default=0), len(tokens) - 1)

    @rule(tokens=prompts, answer=prompts, chunk=chunks)
    def serve(self, tokens: list[int], answer: list[int], chunk: int) -> None:
        known = self.longest_known(tokens)
        match = play(self.store, self.toy, tokens, answer[:40], chunk=chunk)
        assert match.cached_tokens <= known
        if self.complete and not self.lost():
            assert match.cached_tokens == known
        self.seen.append(tokens + answer[:40])
        self.settle()

    def lost(self) -> bool:
        """Whether the cap has made the store forget something."""
        counts = self.store.stats().cold_counts
        return bool(counts.evicted or counts.dropped_too_large)

    @precondition(lambda self: self.seen)
    @rule(which=st.integers(0, 99), cut=st.integers(0, 200), tokens=prompts, chunk=chunks)
    def follow(self, which: int, cut: int, tokens: list[int], chunk: int) -> None:
        """The next turn of an earlier sequence, or another way on from somewhere within it."""
        earlier = self.seen[which % len(self.seen)]
        self.serve(earlier[: cut or None] + tokens, tokens[:20], chunk)

    @precondition(lambda self: self.seen)
    @rule(which=st.integers(0, 99))
    def repeat(self, which: int) -> None:
        self.serve(self.seen[which % len(self.seen)], [1], 48)

    def settle(self) -> None:
        """Let what was pushed out of RAM arrive on disk: on its way it cannot be found."""
        assert self.store.cold is not None
        assert self.store.cold.flush(10)

    @precondition(lambda self: len(self.seen) > 1)
    @rule(tokens=prompts)
    def explain(self, tokens: list[int]) -> None:
        self.store.lookup(tokens)  # Damage on disk is only found by reading.
        self.settle()
        told = self.store.explain(tokens)
        assert told.cached_tokens == self.store.lookup(tokens).cached_tokens
        assert told.from_ram + told.from_disk == told.cached_tokens

    @rule()
    def checkpoint(self) -> None:
        assert self.store.checkpoint(10) or self.lost()

    @precondition(lambda self: len(self.seen) > 1)
    @rule(size=st.sampled_from([0, 40_000, 300_000, 32 << 20]))
    def squeeze(self, size: int) -> None:
        self.store.resize_hot(size)
        self.settle()

    @precondition(lambda self: len(self.seen) > 2)
    @rule()
    def restart(self) -> None:
        self.store.close()
        self.complete = self.complete and not self.lost()
        self.store = self.open()

    @precondition(lambda self: len(self.seen) > 2)
    @rule(checkpoint=st.booleans())
    def crash(self, checkpoint: bool) -> None:
        """What RAM alone had is lost; what was written stays."""
        self.complete = self.complete and checkpoint and self.store.checkpoint(10) and not self.lost()
        assert self.store.cold is not None
        self.store.cold.flush(10)
        before = self.folder()
        self.folders += 1
        shutil.copytree(before, self.folder())
        self.store.hot.clear()
        self.store.close(0)
        self.store = self.open()

    @precondition(lambda self: len(self.seen) > 2)
    @rule(seed=st.integers(0, 1 << 30), how=st.sampled_from(["flip", "cut", "empty", "delete", "swap"]))
    def damage(self, seed: int, how: str) -> None:
        """Something happens to a file while nobody looks; then everything is asked for again."""
        self.restart()
        source = random.Random(seed)
        files = sorted(path for path in self.folder().glob("??/*.safetensors") if path.stat().st_size)
        if not files:
            return
        path = source.choice(files)
        data = bytearray(path.read_bytes())
        if how == "flip":
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
            path.write_bytes(data)
        elif how == "cut":
            path.write_bytes(data[: source.randrange(len(data))])
        elif how == "empty":
            path.write_bytes(b"")
        elif how == "swap":
            path.write_bytes(source.choice(files).read_bytes())
        else:
            path.unlink()
        self.complete = False
        for tokens in self.seen:
            match = self.store.lookup(tokens)
            assert_holds(self.toy, match.caches, tokens[: match.cached_tokens])
        self.settle()

    @precondition(lambda self: len(self.seen) > 8)
    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.seen = []
        assert self.store.stats().hot_records == 0

    @invariant()
    def books_agree(self) -> None:
        assert self.store.check_integrity() == []
        used = sum(
            path.stat().st_size for path in self.folder().rglob("*") if path.is_file() and path.suffix == ".safetensors"
        )
        assert used <= CAP
        assert self.store.stats().cold_problem == ""
        assert self.store.stats().capture_failures == self.store.stats().restore_failures == 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close(0)
            shutil.rmtree(self.root)


StoreMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestStore = StoreMachine.TestCase
