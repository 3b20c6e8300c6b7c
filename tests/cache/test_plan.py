"""The decision from where to restore: pure, so checked by tables and against trying everything."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from omlx_cache.keys import Media, child, common_media, common_tokens, media_mark, pack, unpack
from omlx_cache.placement import snapshot_stops
from omlx_cache.plan import Needs, Rates, RecordMatch, plan_restore
from omlx_cache.records import Kind, RecordName

B = 8


def found(kind: Kind, start: int, end: int, *, cold: int = 0, exact: bool = True) -> RecordMatch:
    return RecordMatch(RecordName(b"%d-%d" % (start, end), kind), start, end - start, exact, cold)


def levels(*records: RecordMatch) -> list[list[RecordMatch]]:
    table: list[list[RecordMatch]] = [[] for _ in range(5)]
    for record in records:
        table[record.start // B].append(record)
    return table


FULL = Needs(frozenset({Kind.KV}))
WINDOWED = Needs(frozenset({Kind.KV, Kind.WINDOW}), window=10)
HYBRID = Needs(frozenset({Kind.KV, Kind.STATE}))
KV = [found(Kind.KV, start, start + B) for start in range(0, 40, B)]


def position(records: list[RecordMatch], needs: Needs, tokens: int = 41, **more: object) -> int:
    return plan_restore(levels(*records), B, needs, tokens, **more).position  # type: ignore[arg-type]


def test_full_attention_goes_as_far_as_its_blocks_without_a_gap() -> None:
    assert position(KV, FULL) == 40
    assert position(KV, FULL, tokens=40) == 39
    assert position(KV[:2] + KV[3:], FULL) == 16
    assert position([*KV[:2], found(Kind.KV, 16, 21, exact=False)], FULL) == 21
    assert position(KV[1:], FULL) == 0
    assert position([], FULL) == 0


def test_windows_need_their_last_tokens_only() -> None:
    window = [found(Kind.WINDOW, start, start + B) for start in range(0, 40, B)]
    assert position(KV + window[3:], WINDOWED) == 40
    assert position(KV + window[4:], WINDOWED) == 0
    assert position(KV + window[:3], WINDOWED) == 24
    assert position([*KV, found(Kind.WINDOW, 30, 32), window[4]], WINDOWED) == 40
    assert position([*KV, found(Kind.WINDOW, 31, 32), window[4]], WINDOWED) == 0


def test_recurrent_state_is_restored_where_it_was_taken() -> None:
    assert position([*KV, found(Kind.STATE, 8, 13)], HYBRID) == 13
    assert position([*KV, found(Kind.STATE, 8, 13), found(Kind.STATE, 32, 40)], HYBRID, tokens=40) == 13
    assert position([*KV, found(Kind.STATE, 8, 13, exact=False)], HYBRID) == 0
    assert position([*KV[:1], found(Kind.STATE, 8, 13)], HYBRID) == 0
    assert position([found(Kind.STATE, 32, 36)], Needs(frozenset({Kind.STATE}))) == 36


def test_no_position_lies_within_an_image() -> None:
    assert position(KV, FULL, media=[Media(30, 45, b"x")]) == 30
    assert position([*KV, found(Kind.STATE, 32, 36)], HYBRID, media=[Media(30, 45, b"x")]) == 0


def test_the_disk_is_read_only_where_that_is_faster() -> None:
    records = KV[:2] + [found(Kind.KV, start, start + B, cold=1000) for start in (16, 24, 32)]
    fast, slow = Rates(1e-6, 1.0), Rates(1.0, 1e-6)
    assert position(records, FULL, rates=fast) == 40
    assert position(records, FULL, rates=Rates(1.0, 0.0)) == 40  # Nothing to weigh it against.
    plan = plan_restore(levels(*records), B, FULL, 41, (), slow)
    assert (plan.position, plan.cold_bytes, plan.possible) == (16, 0, 40)


def test_ram_is_preferred_to_disk() -> None:
    plan = plan_restore(levels(found(Kind.KV, 0, 8, cold=10), found(Kind.KV, 0, 7, exact=False)), B, FULL, 8)
    assert plan.position == 7 and not plan.uses[0].cold


records = st.builds(
    lambda kind, level, skip, size, cold: found(kind, level * B + min(skip, size - 1), level * B + size, cold=cold),
    st.sampled_from(list(Kind)), st.integers(0, 4), st.sampled_from([0, 0, 0, 3]), st.sampled_from([3, 5, 8, 8, 8]),
    st.sampled_from([0, 100]),
)  # fmt: skip


@given(st.lists(records, max_size=18), st.sampled_from([FULL, WINDOWED, HYBRID]), st.integers(2, 41))
def test_no_better_position_exists(stored: list[RecordMatch], needs: Needs, tokens: int) -> None:
    stored = [record._replace(start=record.start) for record in stored]

    def possible(at: int) -> bool:
        for kind in needs.kinds:
            mine = [record for record in stored if record.name.kind == kind]
            if kind == Kind.STATE:
                if not any(record.end == at for record in mine):
                    return False
                continue
            first = 0 if kind == Kind.KV else max(0, at - needs.window)
            for level in range(first // B, (at - 1) // B + 1):
                begin, end = max(first, level * B), min(at, (level + 1) * B)
                if not any(r.start <= begin and r.end >= end and r.start // B == level for r in mine):
                    return False
        return True

    plan = plan_restore(levels(*stored), B, needs, tokens)
    assert plan.position == max((at for at in range(1, tokens) if possible(at)), default=0)
    for use in plan.uses:
        assert use.take > 0 and use.start + use.take <= plan.position


def test_stops_are_where_snapshots_pay() -> None:
    settings = {"every": 2048, "block_size": 256, "state_bytes": 1000, "budget": 1 << 30}
    grid = [64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 896, 1024, 1152]
    assert snapshot_stops(1300, 0, known=[100], **settings) == sorted([*grid, 100, 1299])
    assert snapshot_stops(1300, 1024, known=[100], **settings) == [1152, 1299]
    assert 3 not in snapshot_stops(1300, 0, known=[3], **settings)  # Three tokens are not worth their bytes.
    # Where a chunk of its own costs more than it saves, stops are farther apart.
    assert snapshot_stops(1300, 0, known=[], least=256, **settings) == [256, 512, 768, 1024, 1280, 1299]
    # A long prompt has no wider gap than it is told.
    far = snapshot_stops(60_000, 0, known=[], **settings)
    assert max(after - before for before, after in pairwise(far)) == 2048
    scarce = settings | {"budget": 24_000}  # Room for three.
    assert len(snapshot_stops(10_000, 0, known=[], **scarce)) <= 4


@given(st.integers(20, 50_000), st.data(), st.integers(1, 200))
def test_a_prompt_that_parts_anywhere_computes_little_again(length: int, data: st.DataObject, room: int) -> None:
    settings = {"every": 2048, "block_size": 64, "state_bytes": 1000}
    stops = snapshot_stops(length, 0, known=[], budget=1 << 40, **settings)
    parting = data.draw(st.integers(1, length - 1))
    restored = max((stop for stop in stops if stop <= parting), default=0)
    assert parting - restored <= max(0.15 * parting, 64)
    # And never more snapshots than there is memory for, beside the one at the end.
    assert len(snapshot_stops(length, 0, known=[], budget=8000 * room, **settings)) <= room + 1


tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, tokens)
def test_packed_tokens_compare_like_tokens(a: list[int], b: list[int]) -> None:
    assert unpack(pack(a)) == a
    assert (pack(a) < pack(b)) == (a < b)
    shared = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_tokens(pack(a), pack(b)) == shared


@given(tokens, tokens, st.binary(max_size=4))
def test_keys_depend_on_everything_before(a: list[int], b: list[int], media: bytes) -> None:
    assert (child(b"p" * 32, pack(a), media) == child(b"p" * 32, pack(b), media)) == (a == b)
    assert child(b"p" * 32, pack(a), media) != child(b"q" * 32, pack(a), media)
    assert child(b"p" * 32, pack(a), media + b"x") != child(b"p" * 32, pack(a), media)


def test_an_image_marks_the_blocks_it_touches() -> None:
    image = [Media(10, 20, b"cat")]
    assert media_mark(image, 0, 10) == media_mark(image, 20, 30) == b""
    assert media_mark(image, 0, 16) != media_mark([Media(10, 20, b"dog")], 0, 16) != b""
    assert media_mark(image, 0, 16) != media_mark([Media(11, 20, b"cat")], 0, 16)


def test_pieces_agree_up_to_the_first_image_that_is_another() -> None:
    cat, dog, bird = Media(10, 20, b"cat"), Media(30, 70, b"dog"), Media(30, 50, b"bird")
    both, other = media_mark([cat, dog], 0, 64), media_mark([cat, bird], 0, 64)
    assert common_media(both, both, 64) == 64
    assert common_media(both, other, 64) == common_media(both, media_mark([cat], 0, 64), 64) == 30
    assert common_media(both, other, 25) == 25
    assert common_media(media_mark([cat], 16, 32), b"", 16) == 0, "the image began in the block before"
    for damaged in (b"x", both[:-1], b"y" * 32):
        assert common_media(damaged, both, 64) == common_media(both, damaged, 64) == 0
