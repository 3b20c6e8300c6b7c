"""A download is fetched in parallel ranges, goes on after kill -9 at any moment, and is never wrong.

The real downloader, in processes of its own where it is killed, talks to a stand-in Hub on loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from omlx_registry import PullError, Registry
from omlx_registry.hub.source import HubSource
from omlx_registry.partial_file import PartialFile, bytes_kept, plan_segments, record_path
from omlx_registry.transfer import RemoteFile, RetryPolicy, fetch

from tests.support.hub import FakeHub, Faults
from tests.support.tiny import tiny_model

MIB = 1 << 20
SIZE = 24 * MIB + 12_345


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    (root / "org" / "large").mkdir(parents=True)
    (root / "org" / "large" / "weights.bin").write_bytes(random.Random(1).randbytes(SIZE))
    shutil.copytree(tiny_model("llama"), root / "org" / "tiny")
    with FakeHub(root) as hub:
        yield hub


@pytest.fixture
def hub(running: FakeHub) -> Iterator[FakeHub]:
    running.reset()
    yield running
    running.reset()


def remote(hub: FakeHub) -> RemoteFile:
    content = (hub.root / "org" / "large" / "weights.bin").read_bytes()
    return RemoteFile(
        path="weights.bin",
        size=len(content),
        url=f"{hub.url}/org/large/resolve/main/weights.bin",
        sha256=hashlib.sha256(content).hexdigest(),
    )


def download(file: RemoteFile, partial: Path, attempts: int = 3) -> list[int]:
    """Fetch it; the byte counts that were reported."""
    seen: list[int] = []
    with httpx.Client(headers={"Authorization": "Bearer hf_secret"}) as client:
        digest = fetch(file, partial, client, seen.append, RetryPolicy(attempts=attempts, first_pause_s=0.01))
    assert digest == file.sha256 == hashlib.sha256(partial.read_bytes()).hexdigest()
    assert not record_path(partial).exists()
    return seen


@pytest.mark.parametrize(
    ("size", "count"),
    [(0, 0), (1, 1), (8 * MIB, 1), (8 * MIB + 1, 2), (64 * MIB, 8), (65 * MIB, 8), (512 * MIB, 8), (600 * MIB, 16)],
)
def test_segments_cover_a_file_and_are_even(size: int, count: int) -> None:
    segments = plan_segments(size)
    assert len(segments) == count
    position = 0
    for index, segment in enumerate(segments):
        assert (segment.index, segment.start) == (index, position)
        position += segment.length
    assert position == size
    assert max((it.length for it in segments), default=0) - min((it.length for it in segments), default=0) < 16


def test_a_large_file_comes_in_parallel_ranges_and_each_byte_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.bytes_per_s = 8e6
    seen = download(remote(hub), tmp_path / "partial")
    assert hub.most_at_once == len(plan_segments(SIZE)) == 4
    assert hub.sent["weights.bin"] == max(seen) == SIZE
    # The token is the Hub's alone, also where a range goes to the CDN at once.
    assert hub.authorizations["cdn"] == {""}


def test_broken_ranges_go_on_where_they_broke(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.drop_after = [100_000, 2 * MIB, 0, 3_000_000, 1]
    hub.faults.file_status = [503, 500]
    download(remote(hub), tmp_path / "partial")
    assert hub.sent["weights.bin"] == SIZE


def test_a_server_without_ranges_sends_the_file_once_more_as_a_whole(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.no_range = True
    download(remote(hub), tmp_path / "partial")


def test_a_direct_address_that_expired_is_asked_for_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.drop_after = [1000]
    hub.faults.expired = 2
    download(remote(hub), tmp_path / "partial")
    assert hub.faults.expired == 0


def test_a_file_that_an_older_version_began_is_continued(hub: FakeHub, tmp_path: Path) -> None:
    file, partial = remote(hub), tmp_path / "partial"
    begun = 10 * MIB + 7
    partial.write_bytes((hub.root / "org" / "large" / "weights.bin").read_bytes()[:begun])
    assert bytes_kept(partial, SIZE) == begun
    download(file, partial)
    assert hub.sent["weights.bin"] == SIZE - begun


@pytest.mark.parametrize("damage", ["torn record", "record of another file", "file gone", "wrong bytes"])
def test_what_cannot_be_continued_is_begun_again(hub: FakeHub, tmp_path: Path, damage: str) -> None:
    file, partial = remote(hub), tmp_path / "partial"
    with PartialFile(partial, SIZE + MIB if damage == "record of another file" else SIZE) as begun:
        begun.write(begun.segments[1], b"\0" * MIB)
    if damage == "torn record":
        record_path(partial).write_bytes(record_path(partial).read_bytes()[:20])
    elif damage == "file gone":
        partial.unlink()
    download(file, partial)


def test_several_causes_of_a_failure_are_all_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.file_status = [500, 503, 500, 502] * 20
    with pytest.raises(PullError) as caught:
        download(remote(hub), tmp_path / "partial", attempts=3)
    assert "failed 3 times in a row: the server answered 50" in caught.value.message


def test_a_web_page_in_place_of_a_file_is_named(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.portal = True
    with pytest.raises(PullError, match="a web page instead of the file: sign in to the network"):
        download(remote(hub), tmp_path / "partial")


_FETCH = """
import sys
from pathlib import Path
import httpx
from omlx_registry.transfer import RemoteFile, fetch
url, sha256, size, partial = sys.argv[1:]
file = RemoteFile(path="weights.bin", size=int(size), url=url, sha256=sha256)
with httpx.Client() as client:
    fetch(file, Path(partial), client, lambda done: None)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9_loses_no_more_than_the_pieces_under_way(hub: FakeHub, tmp_path: Path, kills: int) -> None:
    file, partial, dice = remote(hub), tmp_path / "partial", random.Random(32)
    hub.faults.bytes_per_s = 1e6
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for _ in range(kills):
        kept = bytes_kept(partial, SIZE)
        process = subprocess.Popen(
            [sys.executable, "-c", _FETCH, file.url, str(file.sha256), str(SIZE), str(partial)], env=env
        )
        until = kept + dice.randrange(1, SIZE // (kills + 2))
        while process.poll() is None and bytes_kept(partial, SIZE) < until:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert bytes_kept(partial, SIZE) >= kept
    hub.faults.bytes_per_s = 0
    kept = bytes_kept(partial, SIZE)
    settle(hub)
    before = hub.sent["weights.bin"]
    download(file, partial)
    assert hub.sent["weights.bin"] - before == SIZE - kept > 0


def settle(hub: FakeHub) -> None:
    """Wait until the stand-in has noticed that connections are gone."""
    while hub.sending:
        time.sleep(0.01)


_PULL = """
import asyncio, sys
from pathlib import Path
from omlx_registry import Registry
async def main():
    async for line in Registry(Path(sys.argv[1])).pull(sys.argv[2]):
        print(line.completed, flush=True)
asyncio.run(main())
"""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_9_of_a_pull_under_faults_never_lists_a_part(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """The fault list of the stand-in, one fault a pull, each pull killed at a random moment with its worker."""
    for name, value in hub.env.items():
        monkeypatch.setenv(name, value)
    dice, root, name = random.Random(32), tmp_path / "models", "hf.co/org/tiny"
    weights = (hub.root / "org" / "tiny" / "model.safetensors").stat().st_size
    faults = [
        Faults(bytes_per_s=200_000), Faults(drop_after=[50_000] * 3, bytes_per_s=400_000), Faults(no_range=True),
        Faults(file_status=[500, 503, 429], retry_after="0"), Faults(api_status=503, retry_after="0"),
        Faults(flip_byte=True, bytes_per_s=400_000), Faults(gated=True), Faults(portal=True),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    listed = 0
    for number in range(kills):
        fault = faults[number % len(faults)]
        hub.faults = Faults(**{**vars(fault), "drop_after": [*fault.drop_after], "file_status": [*fault.file_status]})
        process = subprocess.Popen(
            [sys.executable, "-c", _PULL, str(root), name],
            env=env,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        until = hub.sent["model.safetensors"] + dice.randrange(1, weights)
        patience = time.monotonic() + dice.uniform(1, 4)
        while process.poll() is None and hub.sent["model.safetensors"] < until and time.monotonic() < patience:
            time.sleep(0.005)
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGKILL)
        process.wait()
        psutil.wait_procs(workers, 20)
        registry = Registry(root)
        if registry.list():
            # It was done before it was killed: whole, then. From the start again.
            assert registry.verify().damaged == []
            listed += 1
            registry.delete(name)
    hub.reset()
    registry = Registry(root, [HubSource(attempts=3)])

    async def pull() -> None:
        async for _ in registry.pull(name):
            pass

    asyncio.run(pull())
    assert [spec.name for spec in registry.list()] == ["hf.co/org/tiny:latest"]
    assert registry.verify().damaged == []
    assert listed < kills


@pytest.mark.slow
def test_the_bandwidth_is_that_of_eight_parallel_ranges(hub: FakeHub, tmp_path: Path) -> None:
    """Against the fastest that eight plain requests give, on a CDN that limits each connection."""
    size = 64 * MIB
    folder = hub.root / "org" / "wide"
    folder.mkdir(exist_ok=True)
    (folder / "weights.bin").write_bytes(random.Random(2).randbytes(size))
    url = f"{hub.url}/org/wide/resolve/main/weights.bin"
    hub.faults.bytes_per_s = 2e6

    def plain(part: int) -> int:
        headers = {"Range": f"bytes={part * size // 8}-{(part + 1) * size // 8 - 1}"}
        return len(httpx.get(url, headers=headers, follow_redirects=True).content)

    with ThreadPoolExecutor(8) as pool:
        begun = time.monotonic()
        assert sum(pool.map(plain, range(8))) == size
        baseline = time.monotonic() - begun
    file = RemoteFile(
        path="weights.bin", size=size, url=url, sha256=hashlib.sha256((folder / "weights.bin").read_bytes()).hexdigest()
    )
    begun = time.monotonic()
    download(file, tmp_path / "partial")
    ours = time.monotonic() - begun
    print(f"eight ranges {baseline:.2f} s, ours with the hash {ours:.2f} s: {baseline / ours:.3f} x")
    assert baseline / ours >= 0.9
