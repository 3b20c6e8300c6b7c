"""A failing disk, a killed process, a neighbour in the same folder: a miss at worst, never a wrong answer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omlx_cache.cold import ColdTier
from omlx_cache.database import FILE
from omlx_cache.record_file import FORMAT
from omlx_cache.records import RecordName

from tests.cache import busy_process
from tests.cache.busy_process import content, host_record, open_tier, pieces
from tests.cache.toy import Toy, open_toy, play

ROOT = Path(__file__).parents[2]
PATHS = [path for path in (os.environ.get("PYTHONPATH"),) if path]
CAP = 4 << 20
TOKENS = list(range(100, 180))


def start_busy(folder: Path, seed: int, seconds: float, *, cap: int = CAP, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, busy_process.__file__, str(folder), str(seed), str(cap), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cache"), *PATHS])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, **options)  # type: ignore[call-overload]
    assert process.stdout.readline() == "ready\n"
    return process  # type: ignore[no-any-return]


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def check_everything(tier: ColdTier) -> int:
    """Read all that the index offers; returns how many records came back, each checked."""
    names = tier.ask(lambda index: index.names_in(None), [])
    found = tier.read(names)
    assert all(bytes(host.arrays[0].data) == content(name) for name, host in found.items())
    return len(found)


def kill_in_mid_write(folder: Path, rounds: int) -> None:
    source = random.Random(1)
    for number in range(rounds):
        process = start_busy(folder, number, 30)
        time.sleep(source.uniform(0.02, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert bytes_in(folder) <= CAP
        tier = open_tier(folder, CAP)
        assert tier.problem == ""
        assert check_everything(tier) > 0 or number == 0
        assert tier.snapshot().damaged == 0
        assert tier.snapshot().missing <= 5  # Killed between deleting a file and saying so.
        tier.close(10)
        assert not list((folder / "tmp").iterdir())


def test_after_kill_9_the_store_opens_with_what_was_committed(tmp_path: Path) -> None:
    kill_in_mid_write(tmp_path, 6)


@pytest.mark.slow
def test_after_kill_9_many_times(tmp_path: Path) -> None:
    kill_in_mid_write(tmp_path, 50)


def test_two_processes_share_a_folder_and_its_cap(tmp_path: Path) -> None:
    processes = [start_busy(tmp_path, seed, 2.5) for seed in (1, 2)]
    largest = 0
    while any(process.poll() is None for process in processes):
        largest = max(largest, bytes_in(tmp_path))
        time.sleep(0.02)
    reports = [json.loads(process.communicate()[0]) for process in processes]
    assert largest <= CAP
    for report in reports:
        assert report["wrong"] == report["damaged"] == report["write_errors"] == 0
        assert report["written"] > 0 and report["read"] > 0
        assert report["problem"] == "it is closed"
    tier = open_tier(tmp_path, CAP)
    assert check_everything(tier) > 0
    size, count = tier.ask(lambda index: index.totals(), (0, 0))
    assert count == sum(1 for _ in tmp_path.glob("??/*.safetensors"))
    assert size <= CAP
    tier.close(10)


# -------------------------------------------------------------------- damaged files
def flip(data: bytearray, at: int) -> bytearray:
    data[at] ^= 0x10
    return data


DAMAGE: dict[str, Callable[[bytearray], bytes | bytearray]] = {
    "a bit of a tensor": lambda data: flip(data, len(data) - 5),
    "a bit of the header": lambda data: flip(data, 300),
    "a bit of the checksum": lambda data: flip(data, data.index(b"checksum:") + 10),
    "a bit of the length": lambda data: flip(data, 0),
    "cut in the tensors": lambda data: data[:-1],
    "cut in the header": lambda data: data[:40],
    "cut in the length": lambda data: data[:3],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"0",
    "another version": lambda data: data.replace(FORMAT.encode(), b"omlx-kv-9"),
    "not ours at all": lambda data: b"hello, world" * 100,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_a_miss_and_is_removed(tmp_path: Path, damage: str) -> None:
    toy = Toy(["full"])
    store = open_toy(toy, tmp_path)
    play(store, toy, TOKENS)
    store.close()
    (victim,) = [path for path in tmp_path.glob("??/*-kv.safetensors") if b'"start":"32"' in path.read_bytes()]
    victim.write_bytes(DAMAGE[damage](bytearray(victim.read_bytes())))
    store = open_toy(toy, tmp_path)
    assert play(store, toy, [*TOKENS, 1]).cached_tokens == 32  # The toy checks what is restored.
    assert store.stats().cold_counts.damaged == 1
    store.close()  # The block was computed again and is written again.
    store = open_toy(toy, tmp_path)
    assert play(store, toy, [*TOKENS, 2]).cached_tokens == len(TOKENS)
    assert store.stats().cold_counts.damaged == 0
    store.close()


def test_a_file_that_is_gone_is_a_miss(tmp_path: Path) -> None:
    toy = Toy(["full"])
    store = open_toy(toy, tmp_path)
    play(store, toy, TOKENS)
    store.close()
    for path in tmp_path.glob("??/*.safetensors"):
        path.unlink()
    store = open_toy(toy, tmp_path)
    assert play(store, toy, TOKENS).cached_tokens == 0
    assert store.stats().cold_counts.missing > 0
    store.close()


# -------------------------------------------------------------------- a damaged index
def overwrite(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 400)


def older_version(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = -1")
    database.close()


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [overwrite, older_version, delete, empty])
def test_a_damaged_index_is_made_anew_from_the_files(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    toy = Toy(["full", "state"])
    store = open_toy(toy, tmp_path)
    play(store, toy, TOKENS)
    store.close()
    damage(tmp_path / FILE)
    (tmp_path / "ab").mkdir(exist_ok=True)
    (tmp_path / "ab" / "stray.safetensors").write_bytes(b"what is this")
    store = open_toy(toy, tmp_path)
    assert store.stats().cold_problem == ""
    assert play(store, toy, TOKENS).cached_tokens == len(TOKENS) - 1
    assert not (tmp_path / "ab" / "stray.safetensors").exists()
    store.close()


# -------------------------------------------------------------------- folders that cannot be used
def test_a_folder_that_cannot_be_used_leaves_ram_working(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    toy = Toy(["full"])
    store = open_toy(toy, blocked / "kv")
    assert "cannot be used" in store.stats().cold_problem
    play(store, toy, TOKENS)
    assert play(store, toy, TOKENS).cached_tokens == len(TOKENS) - 1
    store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_a_read_only_folder_leaves_ram_working(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    test_a_folder_that_cannot_be_used_leaves_ram_working(tmp_path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], capture_output=True).returncode
    ):
        pytest.skip("no small file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_stops_writing_and_nothing_else(small_disk: Path) -> None:
    process = start_busy(small_disk, 3, 1.5, cap=64 << 20)
    output, _ = process.communicate()
    assert process.returncode == 0
    report = json.loads(output)
    assert report["wrong"] == report["damaged"] == 0 and report["written"] > 0 and report["write_errors"] > 0
    tier = open_tier(small_disk, 2 << 20)
    check_everything(tier)
    assert not list((small_disk / "tmp").iterdir())
    tier.close(5)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    tier = open_tier(tmp_path, CAP, clock=lambda: now[0])
    written = iter([100, 100])

    def full(descriptor: int, data: memoryview) -> int:
        return next(written, None) or fail()

    def fail() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("omlx_cache.files.os.write", full)
        assert tier.write(host_record(pieces(1)[0]), 0.0, None)
        assert tier.flush(5)
    assert tier.snapshot().write_errors == 1
    assert not [*tmp_path.glob("??/*"), *(tmp_path / "tmp").iterdir()]
    assert tier.ask(lambda index: index.totals(), (1, 1)) == (0, 0)
    assert not tier.write(host_record(pieces(1)[0]), 0.0, None)  # It waits a while before it tries again.
    now[0] += 60
    assert tier.write(host_record(pieces(1)[0]), 0.0, None)
    assert tier.flush(5)
    assert check_everything(tier) == 1
    tier.close(5)


def test_an_index_that_cannot_grow_switches_the_tier_off(tmp_path: Path) -> None:
    limit = 30_000
    process = start_busy(tmp_path, 3, 0.2, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    output, _ = process.communicate()
    assert process.returncode == 0
    assert "cannot be used" in json.loads(output)["problem"]


def test_a_folder_deleted_while_in_use_harms_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    toy = Toy(["full"])
    store = open_toy(toy, folder)
    play(store, toy, TOKENS)
    assert store.checkpoint(5)
    shutil.rmtree(folder)
    store.resize_hot(0)
    assert play(store, toy, [*TOKENS, 1]).cached_tokens == 0
    store.close()


# -------------------------------------------------------------------- bounds
def test_the_cap_holds_and_the_least_recently_used_go_first(tmp_path: Path) -> None:
    now = [1000.0]
    tier = open_tier(tmp_path, 3 << 20, clock=lambda: now[0])
    kept = pieces(7)
    for piece in kept:
        tier.write(host_record(piece), now[0], None)
    for seed in range(20, 90):
        now[0] += 1
        for piece in pieces(seed):
            assert tier.write(host_record(piece), now[0], None)
        tier.touch([RecordName(piece.key, host_record(piece).identity.kind) for piece in kept])
        assert tier.flush(10)
        assert bytes_in(tmp_path) <= 3 << 20
    assert tier.snapshot().evicted > 0
    assert len(tier.find([piece.key for piece in kept])) == len(kept)
    assert not tier.find([piece.key for piece in pieces(20)])
    tier.close(5)


def test_a_smaller_cap_is_honoured_at_the_next_start(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, 6 << 20)
    for seed in range(100):
        for piece in pieces(seed):
            tier.write(host_record(piece), time.time(), None)
    tier.close(10)
    assert bytes_in(tmp_path) > 3 << 20
    tier = open_tier(tmp_path, 3 << 20)
    assert bytes_in(tmp_path) <= 3 << 20
    tier.close(5)


def test_the_write_budget_of_an_hour_holds(tmp_path: Path) -> None:
    now = [3600.0 * 1000]
    tier = open_tier(tmp_path, 8 << 20, hourly_bytes=300_000, clock=lambda: now[0])
    for seed in range(20):
        for piece in pieces(seed * 10):
            tier.write(host_record(piece), now[0], None)
    tier.flush(10)
    assert 0 < tier.snapshot().written_bytes <= 300_000
    assert tier.snapshot().dropped_over_budget > 0
    written = tier.snapshot().written
    now[0] += 3600
    for piece in pieces(500):
        tier.write(host_record(piece), now[0], None)
    tier.flush(10)
    assert tier.snapshot().written > written
    tier.close(5)


def test_a_full_queue_drops_and_never_waits(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, 64 << 20, queue_bytes=200_000)
    began = time.thread_time()
    taken = [tier.write(host_record(piece), 0.0, None) for seed in range(200) for piece in pieces(seed * 10)]
    assert time.thread_time() - began < 5
    assert any(taken) and not all(taken)
    assert tier.snapshot().dropped_queue_full == taken.count(False)
    assert tier.flush(20)
    assert tier.snapshot().written + 0 <= taken.count(True)
    tier.close(5)


def test_pinned_chains_are_not_evicted(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, 3 << 20)
    kept = pieces(3)
    for piece in kept:
        tier.write(host_record(piece), 0.0, None)
    tier.change(lambda index: index.pins.pin("talk", busy_process.NAMESPACE, [piece.key for piece in kept]))
    for seed in range(20, 90):
        for piece in pieces(seed):
            tier.write(host_record(piece), time.time(), None)
    tier.flush(10)
    assert tier.snapshot().evicted > 0
    assert len(tier.find([piece.key for piece in kept])) == len(kept)
    tier.close(5)


def test_only_the_owner_may_read_what_users_wrote(tmp_path: Path) -> None:
    tier = open_tier(tmp_path / "kv", CAP)
    for piece in pieces(1):
        tier.write(host_record(piece), 0.0, None)
    tier.close(5)
    files = list((tmp_path / "kv").glob("??/*.safetensors"))
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in [*files, tmp_path / "kv"])


def test_an_index_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    tier = open_tier(tmp_path, CAP)
    for piece in pieces(1):
        tier.write(host_record(piece), 0.0, None)
    tier.close(5)
    with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
        database.execute("PRAGMA user_version = 99")
        database.commit()
    files = {path: path.read_bytes() for path in tmp_path.glob("??/*")}
    tier = open_tier(tmp_path, CAP)
    assert "newer program" in tier.problem
    tier.close(5)
    assert {path: path.read_bytes() for path in tmp_path.glob("??/*")} == files
    with contextlib.closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (99,)


@pytest.mark.parametrize("lost", ["DROP TABLE records", "DROP TABLE sessions", "DROP TRIGGER added"])
def test_an_index_of_the_right_version_that_lost_a_part_is_made_anew(tmp_path: Path, lost: str) -> None:
    tier = open_tier(tmp_path, CAP)
    written = pieces(1)
    for piece in written:
        tier.write(host_record(piece), 0.0, None)
    tier.close(5)
    database = sqlite3.connect(tmp_path / "index.sqlite")
    database.execute(lost)
    database.commit()
    database.close()
    tier = open_tier(tmp_path, CAP)
    assert tier.snapshot().index_rebuilt == 1
    assert len(tier.find([piece.key for piece in written])) == len(written)
    tier.close(5)


def test_what_was_queued_when_a_write_failed_is_let_go_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a runner waits for the queue: hundreds of writes that fail alike must not hold it up."""
    tier = open_tier(tmp_path, 64 << 20)
    for drafts in tmp_path.rglob("tmp"):
        shutil.rmtree(drafts)
    taken = sum(tier.write(host_record(piece), 0.0, None) for seed in range(100) for piece in pieces(seed * 10))
    assert tier.flush(60)
    assert len(tier.done()) == taken > 1
    assert tier.snapshot().write_errors == 1 and tier.snapshot().written == 0
    assert caplog.text.count("nothing is written to the cache folder") == 1
    tier.close(5)
