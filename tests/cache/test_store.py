"""What the store promises about RAM, disk, images, explanations and its own costs, seen through its public face."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from omlx_cache import Media
from omlx_cache.maintenance import clear, show, verify

from tests.cache.toy import Toy, assert_holds, open_toy, play

TOY = Toy(["full"])
HYBRID = Toy(["full", "state"])


def line(length: int, seed: int = 0) -> list[int]:
    return [(seed * 7919 + index * 31) % 60000 for index in range(length)]


def test_a_prefix_that_is_computed_as_fast_is_not_restored() -> None:
    store = open_toy(TOY, restore_least=30)
    play(store, TOY, line(100))
    assert play(store, TOY, [*line(20), *line(50, 2)]).cached_tokens == 0
    assert play(store, TOY, [*line(40), *line(50, 3)]).cached_tokens == 40


# -------------------------------------------------------------------- RAM
def test_ram_stays_within_its_bytes_and_arrays() -> None:
    store = open_toy(TOY, hot_bytes=20_000, hot_arrays=40)
    for seed in range(30):
        play(store, TOY, line(100, seed))
        stats = store.stats()
        assert stats.hot_bytes <= 20_000 and stats.hot_arrays <= 40
        assert store.check_integrity() == []
    assert store.stats().hot_evictions > 0


def test_the_beginning_of_a_chain_outlives_its_end() -> None:
    store = open_toy(TOY, hot_bytes=3000)  # Two thirds of the chain.
    play(store, TOY, line(250))
    restored = play(store, TOY, [*line(250), 1]).cached_tokens
    assert 100 <= restored < 250


def test_a_hot_tier_of_nothing_still_serves_from_disk(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path, hot_bytes=0)
    play(store, TOY, line(100))
    assert store.checkpoint(5)
    assert play(store, TOY, line(100)).from_disk == 99
    assert store.stats().hot_bytes == 0
    store.close()


def test_what_was_read_into_ram_before_it_was_asked_for_comes_from_disk_once(tmp_path: Path) -> None:
    before = open_toy(HYBRID, tmp_path)
    play(before, HYBRID, line(100))
    before.close()
    store = open_toy(HYBRID, tmp_path)
    assert store.warm(1 << 20) > 0
    assert store.explain(line(100)).from_ram > 0
    first = play(store, HYBRID, line(100))
    assert (first.from_ram, first.from_disk) == (0, first.cached_tokens)
    assert first.cached_tokens > 0
    again = play(store, HYBRID, line(100))
    assert again.from_disk == 0 and again.from_ram >= first.cached_tokens
    usage = store.usage
    assert (usage.tokens_from_disk, usage.tokens_from_ram) == (first.cached_tokens, again.cached_tokens)
    store.close()


def test_what_left_ram_unused_and_was_computed_again_comes_from_ram(tmp_path: Path) -> None:
    before = open_toy(TOY, tmp_path)
    play(before, TOY, line(100))
    before.close()
    store = open_toy(TOY, tmp_path)
    store.warm(1 << 20)
    store.clear()
    play(store, TOY, line(100))
    assert play(store, TOY, line(100)).from_disk == 0
    store.close()


def test_requests_that_run_at_the_same_time_share_what_is_computed() -> None:
    store = open_toy(TOY)
    first = store.lookup(line(100))
    capture = store.begin(line(100), match=first)
    import mlx.core as mx

    TOY(mx.array([line(100)[:64]]), first.caches)
    capture.after_chunk(first.caches, 64)
    assert store.lookup(line(100)).cached_tokens == 64


def test_an_answer_that_goes_on_replaces_the_partial_block_before_it() -> None:
    store = open_toy(TOY)
    tokens = line(40)
    for _ in range(30):
        tokens = [*tokens, *line(5, len(tokens))]
        assert play(store, TOY, tokens).cached_tokens == (len(tokens) - 5 if len(tokens) > 45 else 0)
    assert store.stats().hot_records == len(tokens) // 16 + bool(len(tokens) % 16)


# -------------------------------------------------------------------- disk
def test_what_is_pushed_out_of_ram_comes_back_from_disk(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(100))
    store.resize_hot(0)
    assert store.cold is not None and store.cold.flush(5)
    store.resize_hot(1 << 20)
    match = play(store, TOY, line(100))
    assert (match.cached_tokens, match.from_disk) == (99, 99)
    assert store.stats().lost == 0
    assert play(store, TOY, line(100)).from_ram == 99
    store.close()


def test_a_checkpoint_comes_by_itself_and_saves_from_a_kill(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_toy(TOY, tmp_path, checkpoint_interval=300.0, clock=lambda: now[0])
    play(store, TOY, line(100))
    store.tick()
    assert store.stats().cold_records == 0
    now[0] += 301
    store.tick()
    assert store.cold is not None and store.cold.flush(5)
    assert store.stats().cold_records == 7
    survivor = open_toy(TOY, tmp_path)  # The first store is never closed.
    assert play(survivor, TOY, line(100)).from_disk == 99
    survivor.close()
    store.close()


def test_a_nearly_full_ram_is_written_ahead_of_eviction(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_toy(TOY, tmp_path, hot_bytes=2200, clock=lambda: now[0])
    play(store, TOY, line(130))
    now[0] += 1
    store.tick()
    assert store.cold is not None and store.cold.flush(5)
    assert store.stats().cold_records > 0
    store.close()


def test_writing_through_needs_no_checkpoint(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path, write_through=True)
    play(store, TOY, line(100))
    assert store.cold is not None and store.cold.flush(5)
    assert store.stats().cold_records == 7
    store.close()


def test_nothing_is_written_ahead_of_need_while_power_is_saved(tmp_path: Path) -> None:
    now = [1000.0]
    store = open_toy(TOY, tmp_path, checkpoint_interval=300.0, hot_bytes=2200, write_through=True, clock=lambda: now[0])
    store.checkpoints = False
    play(store, TOY, line(130))  # RAM is nearly full
    now[0] += 301
    store.tick()
    assert store.cold is not None and store.cold.flush(5)
    assert store.stats().cold_records == 0
    play(store, TOY, line(130, 1000))  # what RAM has no room for is kept on disk
    assert store.cold.flush(5)
    assert store.stats().cold_records > 0 and store.stats().lost == 0
    store.checkpoints = True
    store.tick()
    store.close()
    assert open_toy(TOY, tmp_path).stats().cold_records >= 15


def test_closing_keeps_to_its_time(tmp_path: Path) -> None:
    wide = Toy(["full"], 20_000)
    store = open_toy(wide, tmp_path, hot_bytes=1 << 30, write_queue_bytes=8 << 20)
    play(store, wide, line(600))
    began = time.monotonic()
    store.close(0.05)
    assert time.monotonic() - began < 30


def test_stores_of_different_weights_share_a_folder_and_nothing_else(tmp_path: Path) -> None:
    first = open_toy(TOY, tmp_path, fingerprint="a", model="one:latest")
    play(first, TOY, line(100))
    first.close()
    second = open_toy(TOY, tmp_path, fingerprint="b", model="two:latest")
    assert play(second, TOY, line(100)).cached_tokens == 0
    second.close()
    third = open_toy(TOY, tmp_path, fingerprint="a", block_size=32)
    assert play(third, TOY, line(100)).cached_tokens == 0
    third.close()
    assert {use.name for use in show(tmp_path).models} >= {"one:latest", "two:latest"}


def test_reading_ahead_starts_before_the_lookup(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(100))
    store.close()
    store = open_toy(TOY, tmp_path)
    store.read_ahead(line(100))
    assert play(store, TOY, line(100)).from_disk == 99
    store.close()


def test_a_warm_start_brings_the_latest_chains_into_ram(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(100))
    store.close()
    store = open_toy(TOY, tmp_path)
    assert store.warm(1 << 20) > 0
    assert store.explain(line(100)).from_ram == 99
    assert play(store, TOY, line(100)).cached_tokens == 99
    store.close()


def test_computing_is_preferred_to_a_slow_disk(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(200))
    store.close()
    store = open_toy(TOY, tmp_path)
    assert play(store, TOY, line(33)).from_disk > 0
    store.note_prefill(1_000_000, 0.001)  # A machine that computes a million tokens in a millisecond.
    assert store.lookup(line(200)).cached_tokens == 32  # What is in RAM costs nothing.
    told = store.explain(line(200))
    assert told.reason == "recompute" and "faster" in told.message
    assert store.stats().recompute_preferred == 1
    slow = store.stats().seconds_per_cold_byte
    assert store.lookup(line(200)).cached_tokens == 32
    assert store.stats().seconds_per_cold_byte < slow  # It will be tried again: disks recover.
    store.close()


def test_a_disk_that_was_not_read_yet_is_taken_for_an_ordinary_one(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(200))
    store.close()
    for seconds, from_disk in ((0.001, False), (1000.0, True)):
        store = open_toy(TOY, tmp_path)
        store.note_prefill(1_000_000, seconds)
        assert (play(store, TOY, line(200)).from_disk > 0) == from_disk
        store.close()


# -------------------------------------------------------------------- images
def test_the_same_tokens_with_another_image_are_another_prompt() -> None:
    store = open_toy(TOY)
    tokens = line(20) + [5] * 40 + line(30, 1)
    cat, dog = [Media(20, 60, b"cat")], [Media(20, 60, b"dog")]
    play(store, TOY, tokens, media=cat)
    assert store.lookup(tokens, cat).cached_tokens == len(tokens) - 1
    assert store.lookup(tokens, dog).cached_tokens == 20
    assert store.explain(tokens, dog).reason == "other_image"
    assert store.lookup(tokens).cached_tokens == 20


def test_another_question_about_the_same_image_goes_on_behind_it() -> None:
    store = open_toy(TOY)
    tokens, image = line(5) + [5] * 18 + line(30, 1), [Media(5, 23, b"cat")]
    play(store, TOY, tokens, media=image)
    other = [*tokens[:27], *line(20, 4)]
    assert store.lookup(other, image).cached_tokens == 27
    play(store, TOY, other, media=image)


def test_nothing_is_restored_to_the_middle_of_an_image() -> None:
    store = open_toy(TOY)
    tokens = line(20) + [5] * 40 + line(30, 1)
    play(store, TOY, tokens, media=[Media(20, 60, b"cat")])
    for end in range(17, 70):
        match = store.lookup(tokens[:end] + [9] * 5, [Media(20, 60, b"cat")] if end > 60 else [])
        assert not 20 < match.cached_tokens < 60


def test_a_turn_behind_an_image_computes_only_what_is_new() -> None:
    store = open_toy(TOY)
    tokens, image = line(5) + [5] * 18 + line(4, 1), [Media(5, 23, b"cat")]
    play(store, TOY, tokens, line(3, 9), media=image)
    following = [*tokens, *line(3, 9), *line(4, 2)]
    assert store.lookup(following, image).cached_tokens == len(tokens) + 3


# -------------------------------------------------------------------- snapshots of recurrent state
def test_recurrent_state_is_kept_where_the_next_prompt_will_begin() -> None:
    store = open_toy(HYBRID, snapshot_least=1024)
    tokens, system = line(90), 37
    match = store.lookup(tokens)
    capture = store.begin(tokens, match=match, boundaries=[system])
    position = 0
    ends = []
    import mlx.core as mx

    while position < len(tokens):
        end = min(len(tokens), capture.chunk_end(position, 64))
        HYBRID(mx.array([tokens[position:end]]), match.caches)
        position = end
        capture.after_chunk(match.caches, position)
        ends.append(end)
    assert ends == [37, 89, 90]
    assert store.lookup(tokens).cached_tokens == 89
    assert store.lookup([*tokens[:system], *line(50, 3)]).cached_tokens == system


def test_where_prompts_have_parted_once_a_snapshot_is_taken() -> None:
    store = open_toy(HYBRID, snapshot_least=1024)
    shared = line(70)
    play(store, HYBRID, shared + line(40, 1))
    assert play(store, HYBRID, shared + line(40, 2)).cached_tokens == 0
    assert store.explain(shared + line(40, 3)).cached_tokens == 70
    assert play(store, HYBRID, shared + line(40, 3)).cached_tokens == 70


def test_snapshots_of_long_prompts_keep_to_a_budget() -> None:
    wide = Toy(["full", "state"], 4096)
    store = open_toy(wide, snapshot_every=16, hot_bytes=64 * 4096 * 4)
    play(store, wide, line(900), chunk=16)
    states = sum(name.kind == 2 for name in store.hot.names())
    assert 2 <= states <= 64 // 8 + 3


# -------------------------------------------------------------------- explanations
def test_explain_names_the_first_token_that_differs() -> None:
    store = open_toy(TOY)
    play(store, TOY, line(100))
    changed = line(100)
    changed[53] = 59_999
    told = store.explain(changed)
    assert (told.reason, told.divergence, told.cached_tokens) == ("diverged", 53, 53)
    assert told.prompt_tokens[:2] == [59_999, line(100)[54]]
    assert told.stored_tokens[:2] == line(100)[53:55]


def test_explain_tells_why_else_a_prompt_is_not_restored(tmp_path: Path) -> None:
    other = open_toy(TOY, tmp_path, fingerprint="old", model="old:latest")
    play(other, TOY, line(100, 5))
    other.close()
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(100))
    assert store.explain(line(100)).reason == "whole"
    assert store.explain(line(100) + line(50, 1)).reason == "stored_ends"
    assert store.explain([59_998] * 40).reason == "never_seen"
    told = store.explain(line(100, 5))
    assert told.reason == "other_weights" and "old:latest" in told.message
    store.close()
    hybrid = open_toy(HYBRID, snapshot_least=1024)
    play(hybrid, HYBRID, line(100))
    assert hybrid.explain(line(90) + line(9, 1)).reason == "no_snapshot"


def test_explain_tells_what_was_evicted() -> None:
    store = open_toy(TOY)
    play(store, TOY, line(100))
    store.resize_hot(0)
    store.resize_hot(1 << 20)
    assert store.explain(line(100)).reason == "evicted"


# -------------------------------------------------------------------- operating
def test_sessions_survive_what_evicts_others(tmp_path: Path) -> None:
    wide = Toy(["full"], 256)
    cap = 4 << 20
    store = open_toy(wide, tmp_path, cold_bytes=cap)
    play(store, wide, line(100), line(7, 9))
    assert store.sessions.save("talk", line(100) + line(7, 9)) == 107
    with pytest.raises(ValueError, match="nothing of this conversation"):
        store.sessions.save("other", line(50, 77))
    for seed in range(1, 40):
        play(store, wide, line(100, seed))
        store.resize_hot(0)
        assert store.cold is not None and store.cold.flush(5)
        store.resize_hot(32 << 20)
    assert store.stats().cold_counts.evicted > 0
    assert store.sessions.load("talk") > 0
    assert store.explain([*line(100), *line(7, 9), 1]).from_ram == 107
    assert store.lookup([*line(100), *line(7, 9), 1]).cached_tokens == 107
    assert [session.name for session in show(tmp_path).sessions] == ["talk"]
    store.sessions.remove("talk")
    store.close()
    assert show(tmp_path).sessions == []


def test_the_conversation_that_was_answered_last_is_kept_and_others_have_room(tmp_path: Path) -> None:
    wide = Toy(["full"], 256)
    store = open_toy(wide, tmp_path, cold_bytes=4 << 20)
    with pytest.raises(ValueError, match="no conversation"):
        store.sessions.save("talk")
    play(store, wide, line(100, 1), line(7, 9))
    play(store, wide, line(200, 2), line(7, 9))
    assert store.sessions.save("talk") == 207
    assert store.sessions.save("first", line(100, 1)) == 100
    play(store, wide, line(800, 3))
    with pytest.raises(ValueError, match="more than half"):
        store.sessions.save("third")
    with pytest.raises(ValueError, match="no session 'third'"):
        store.sessions.load("third")
    # A name stands for one conversation: the latest.
    assert store.sessions.save("talk", line(100, 1)) == 100
    sizes = {session.name: session.bytes for session in show(tmp_path).sessions}
    assert sizes["talk"] == sizes["first"]
    assert store.clear() > 0
    assert show(tmp_path).sessions == []
    store.close()


def test_a_conversation_that_cannot_be_written_is_not_said_to_be_kept(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path, write_budget=1)
    play(store, TOY, line(100), line(7, 9))
    with pytest.raises(ValueError, match="did not take all of it"):
        store.sessions.save("talk")
    store.close()
    assert show(tmp_path).sessions == []


def test_a_folder_can_be_listed_verified_and_cleared(tmp_path: Path) -> None:
    for name in ("a:latest", "b:latest"):
        store = open_toy(TOY, tmp_path, fingerprint=name, model=name)
        play(store, TOY, line(100))
        store.close()
    listed = show(tmp_path)
    assert {use.name: use.records for use in listed.models} == {"a:latest": 7, "b:latest": 7}
    assert listed.records == 14
    files = sorted(tmp_path.glob("??/*.safetensors"))
    files[0].write_bytes(files[0].read_bytes()[:-1])
    files[1].unlink()
    found = verify(tmp_path)
    assert (found.intact, found.damaged, found.missing) == (12, 1, 1)
    assert len(found.faults) == 2
    assert verify(tmp_path).intact == 12
    assert clear(tmp_path, "a:latest") + clear(tmp_path) == 12
    assert show(tmp_path).records == 0 and not list(tmp_path.glob("??/*.safetensors"))
    assert show(tmp_path / "nothing").records == 0


def test_clearing_a_store_forgets_everything_of_its_model(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(100))
    assert store.checkpoint(5)
    store.clear()
    assert store.lookup(line(100)).cached_tokens == 0
    assert store.stats().cold_records == 0
    store.close()


def test_statistics_are_plain_data(tmp_path: Path) -> None:
    store = open_toy(TOY, tmp_path)
    play(store, TOY, line(100))
    play(store, TOY, line(100))
    stats = msgspec.to_builtins(store.stats())
    assert (stats["lookups"], stats["hits"], stats["tokens_from_ram"], stats["tokens_looked_up"]) == (2, 1, 99, 200)
    store.close()


# -------------------------------------------------------------------- odd requests
@pytest.mark.parametrize("tokens", [[], [1], [1, 2]])
def test_prompts_of_almost_nothing_are_served(tokens: list[int]) -> None:
    store = open_toy(TOY)
    for _ in range(2):
        match = store.lookup(tokens)
        assert match.cached_tokens == 0 or match.cached_tokens == len(tokens) - 1
        assert_holds(TOY, match.caches, tokens[: match.cached_tokens])
        if tokens:
            play(store, TOY, tokens)


def test_a_capture_that_is_told_nonsense_gives_up_quietly() -> None:
    store = open_toy(TOY)
    match = store.lookup(line(40))
    capture = store.begin(line(40), match=match)
    capture.after_chunk(match.caches, 32)  # The caches hold nothing.
    capture.snapshot(match.caches, 32)
    capture.finish(match.caches, line(40))
    assert store.stats().capture_failures == 1
    assert store.stats().hot_records == 0


def test_a_block_size_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="16 to 1024"):
        open_toy(TOY, block_size=8)


def test_the_package_does_not_import_mlx() -> None:
    code = (
        "import sys, omlx_cache, omlx_cache.maintenance; sys.exit('mlx.core' in sys.modules or 'numpy' in sys.modules)"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2] / "cache"), os.environ.get("PYTHONPATH", "")])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}).returncode == 0


def test_closing_does_not_wait_for_a_budget_that_is_spent(tmp_path: Path) -> None:
    wide = Toy(["full"], 500)
    store = open_toy(wide, tmp_path, write_budget=100_000)
    play(store, wide, line(300))
    began = time.monotonic()
    store.close(120)
    assert time.monotonic() - began < 100, "it waited for the next hour's budget"
    assert 0 < store.stats().cold_counts.written_bytes <= 100_000
