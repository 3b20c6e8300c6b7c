"""Disks that are full, read-only or slow, and files that are not what they were."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.faults.house import MODEL, House, ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
FULL = "there is no space left on the disk of the model store"
LONG = [{"role": "system", "content": "A sentence that is only there to be cached. " * 60}]


def mounted(folder: Path, options: str) -> bool:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    place = tmp_path / "disk"
    if not mounted(place, "size=12m"):
        pytest.skip("no small file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    """A file that takes all the room there is."""
    rest = place / "rest"
    with rest.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError:
            pass
    return rest


def test_a_full_disk(disk: Path) -> None:
    """Answers go on (from RAM); making a model says that there is no space and leaves nothing; with room all works."""
    with House(disk) as house:
        house.log = disk.parent / "server.log"
        house.furnish()
        rest = fill(disk)
        house.answers()
        ask(house.url, messages=[*LONG, {"role": "user", "content": "Hello"}]).raise_for_status()
        failed = house.post("/api/create", {"model": "more", "from": MODEL, "system": "x" * 200_000, "stream": False})
        assert failed.status_code >= 400
        assert "space" in failed.json()["error"]
        failing = {"name": "seed", "outcome": "failed", "detail": "x" * 400}
        for path, body in (
            ("/api/omlx/pin", {"model": MODEL, "pinned": True}),
            ("/api/omlx/selftest", {"model": MODEL, "checks": [failing] * 20}),
            ("/api/omlx/aliases", {"name": "short", "target": "hf.co/some/repository"}),
        ):
            failed = house.post(path, body)
            assert (path, failed.status_code, failed.json()) == (path, 500, {"error": FULL})
        assert "Traceback" not in house.log_text()
        assert house.status()["pinned"] == []
        names = [m["name"] for m in httpx.get(f"{house.url}/api/tags", trust_env=False).json()["models"]]
        assert names == [f"{MODEL}:latest"]
        rest.unlink()
        house.post("/api/create", {"model": "more", "from": MODEL, "system": "Be short.", "stream": False})
        assert ask(house.url, model="more").status_code == 200
        house.post("/api/omlx/verify")
        house.stop()


def test_a_read_only_disk(tmp_path: Path) -> None:
    """What is there is served; what would write says that the disk is read-only; a start is refused in a sentence."""
    place = tmp_path / "disk"
    if not mounted(place, "size=64m"):
        pytest.skip("no file system can be mounted here")
    try:
        # A file system that somebody writes to does not become read-only: the cache and the log are elsewhere.
        house = House(place, env={"OMLX_PAGED_SSD_CACHE_DIR": str(tmp_path / "kv")})
        house.log = tmp_path / "server.log"
        with house:
            house.furnish()
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            house.answers()
            failed = house.post("/api/copy", {"source": MODEL, "destination": "other"})
            assert (failed.status_code, "read-only" in failed.text.lower()) == (500, True)
            subprocess.run(["mount", "-o", "remount,rw", place], check=True)
            house.examine()
            house.stop()
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            house.folder = tmp_path
            with pytest.raises(RuntimeError, match="read-only file system"):
                house.start()
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def blobs(house: House) -> list[Path]:
    """The largest first: the weights."""
    return sorted((house.models / "blobs").iterdir(), key=lambda path: path.stat().st_size, reverse=True)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_a_blob_is_cut(tmp_path: Path) -> None:
    """verify names it and the models it belongs to; loading the model is a sentence, not a crash; repair drops it."""
    with House(tmp_path) as house:
        house.furnish()
        house.stop()
        cut(blobs(house)[0])
        house.start()
        answer = ask(house.url)
        assert answer.status_code == 500
        assert "Traceback" not in answer.text
        (damage,) = house.post("/api/omlx/verify").json()["damaged"]
        assert (damage["reason"], damage["models"]) == ("truncated", [f"{MODEL}:latest"])
        assert house.post("/api/omlx/verify", {"repair": True}).json()["repaired"]
        house.furnish()  # the same files again
        house.examine()


def test_a_bit_of_a_blob_is_flipped(tmp_path: Path) -> None:
    """verify finds it by its digest."""
    with House(tmp_path) as house:
        house.furnish()
        flip(blobs(house)[0])
        (damage,) = house.post("/api/omlx/verify").json()["damaged"]
        assert damage["reason"] == "corrupt"


@pytest.mark.parametrize("rubbish", [b"", b"{", b'{"schemaVersion": 2}', b"\0" * 100, b"[]"])
def test_a_manifest_is_rubbish(tmp_path: Path, rubbish: bytes) -> None:
    """The model is not listed or said to be damaged; no other is touched; making it anew works."""
    with House(tmp_path) as house:
        house.furnish()
        house.post("/api/copy", {"source": MODEL, "destination": "sound"})
        (manifest,) = (house.models / "manifests").glob(f"*/*/{MODEL}/latest")
        manifest.write_bytes(rubbish)
        answer = ask(house.url)
        assert answer.status_code in (404, 500)
        assert "Traceback" not in answer.text
        assert ask(house.url, model="sound").status_code == 200
        house.post("/api/omlx/prune")
        house.furnish()
        house.examine()


def _text(database: Path) -> None:
    database.write_text("this is no database")


def _empty(database: Path) -> None:
    database.write_bytes(b"")


@pytest.mark.parametrize("spoil", [_text, _empty, flip])
def test_the_index_of_the_cache_is_rubbish(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """The cache begins anew or is made from its files; answers are right all the same."""
    talk = [*LONG, {"role": "user", "content": "Hello"}]
    with House(tmp_path) as house:
        house.furnish()
        before = ask(house.url, messages=talk).json()["message"]["content"]
        house.stop()
        spoil(tmp_path / "kv" / "index.sqlite")
        house.start()
        assert ask(house.url, messages=talk).json()["message"]["content"] == before
        house.files_before = house.open_files()
        house.examine()


@pytest.mark.parametrize("name", ["pins.json", "measured.json", "selftests.json"])
def test_a_small_file_is_rubbish(tmp_path: Path, name: str) -> None:
    """The server starts without what it held."""
    house = House(tmp_path)
    house.models.mkdir(parents=True)
    (house.models / name).write_bytes(b"\xff{{{")
    with house:
        house.furnish()
        house.examine()


@pytest.mark.parametrize("text", ["max_queue = 'many'", "= = =", "\0", "no_such_setting = 1"])
def test_the_config_file_is_rubbish(tmp_path: Path, text: str) -> None:
    """The start is refused with a sentence that names the file or the setting; no traceback."""
    (tmp_path / "config.toml").write_text(text)
    house = House(tmp_path)
    with pytest.raises(RuntimeError, match="omlx serve ended with 1") as refused:
        house.start()
    assert "Error: " in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_the_cache_folder_goes_away(tmp_path: Path) -> None:
    """Answers go on."""
    with House(tmp_path) as house:
        house.furnish()
        shutil.rmtree(tmp_path / "kv")
        house.answers()
        house.examine()
