"""Reading ahead is bounded, takes nothing twice, and lets go of what nobody asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from omlx_cache import readahead
from omlx_cache.files import RecordFiles
from omlx_cache.keys import child, pack
from omlx_cache.readahead import ReadAhead
from omlx_cache.record_file import HostArray, HostRecord, Identity, encode
from omlx_cache.records import Kind, Piece, RecordName

SPACE = b"n" * 32


@pytest.fixture
def files(tmp_path: Path) -> RecordFiles:
    return RecordFiles(tmp_path)


def write(files: RecordFiles, number: int) -> RecordName:
    packed = pack([number])
    piece = Piece(child(SPACE, packed), SPACE, 0, packed, b"")
    name = RecordName(piece.key, Kind.KV)
    array = HostArray("U8", (8,), memoryview(bytes([number] * 8)))
    files.write(name, encode(HostRecord(Identity(piece, Kind.KV, SPACE), (array,), "")))
    return name


def test_no_more_is_read_ahead_than_the_budget_and_the_rest_when_it_is_taken(files: RecordFiles) -> None:
    names = [write(files, number) for number in range(5)]
    ahead = ReadAhead(files, 250)
    reading = ahead.start((name, 100) for name in names)
    assert len(ahead) == 2
    taken = [future.result() for future in ahead.take(names)]
    assert [record.arrays[0].data[0] for record in taken] == [0, 1, 2, 3, 4]
    assert reading.done
    assert len(ahead) == 0
    seconds, nbytes = ahead.take_speed()
    assert seconds > 0
    assert nbytes == 5 * 8
    assert ahead.take_speed() == (0.0, 0)
    ahead.close()


def test_a_file_is_read_once_for_several_who_wait_for_it(files: RecordFiles) -> None:
    name = write(files, 1)
    ahead = ReadAhead(files)
    first, second = ahead.start([(name, 100)]), ahead.start([(name, 100)])
    ahead.take([name])[0].result()
    assert first.done and second.done
    assert ahead.take_speed()[1] == 8
    ahead.close()


def test_what_nobody_takes_is_let_go_and_leaves_room(files: RecordFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [write(files, number) for number in range(2)]
    ahead = ReadAhead(files, 100)
    ahead.start([(names[0], 100)])
    ahead.drop_stale()
    assert len(ahead) == 1
    monkeypatch.setattr(readahead, "_STALE_S", 0.0)
    ahead.drop_stale()
    assert len(ahead) == 0
    ahead.start([(names[1], 100)])
    assert len(ahead) == 1
    ahead.close()
