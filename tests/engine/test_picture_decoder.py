"""Pictures are decoded where it can be ended: hostile files cost their own request, and others do not wait for them."""

from __future__ import annotations

import io
import struct
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from PIL import Image

from omlx.engine.decoder_process import DecoderPool
from omlx.engine.vision import image_decoder as picture_decoder
from omlx.engine.vision import images as pictures
from omlx.engine.vision.images import PictureError
from omlx.engine.vision.jpeg_scans import count_scans
from tests.support.processes import command_line


def as_file(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


NOISE = Image.effect_noise((64, 48), 80).convert("RGB")


def many_scans(count: int, side: int = 64) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    data = as_file(NOISE.resize((side, side)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * count + data[-2:]


def many_segments(count: int) -> bytes:
    data = as_file(NOISE, "JPEG")
    return data[:2] + b"\xff\xe0\x00\x02" * count + data[2:]


def many_chunks(count: int, kind: bytes = b"abCd", content: bytes = b"") -> bytes:
    data = as_file(NOISE, "PNG")
    check = struct.pack(">I", zlib.crc32(kind + content))
    return data[:33] + (struct.pack(">I", len(content)) + kind + content + check) * count + data[33:]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "image_decoder" in command_line(child)}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF"])
def test_a_decoder_gives_the_same_pixels(kind: str) -> None:
    for image in (NOISE, NOISE.convert("L"), NOISE.convert("P")):
        data = as_file(image if kind not in {"WEBP", "AVIF", "JPEG"} else image.convert("RGB"), kind)
        ours, theirs = picture_decoder.decode(data), pictures.decode(data)
        assert (ours.mode, ours.size, ours.tobytes()) == ("RGB", theirs.size, theirs.tobytes())


def test_frames_come_as_they_are_shown() -> None:
    images = [Image.new("RGB", (16, 16), (value, 0, 0)) for value in (0, 90, 180)]
    data = as_file(images[0], "GIF", save_all=True, append_images=images[1:], duration=1000)
    assert picture_decoder.frames(data, 2.0) == pictures.frames(data, 2.0)
    frames, fps = picture_decoder.frames(data, 2.0)
    assert (len(frames), fps, frames[0] is frames[1]) == (6, 2.0, True)


def test_what_is_wrong_with_a_file_is_said_as_before() -> None:
    tiff = as_file(NOISE, "TIFF")
    for data in (b"", b"hello", tiff, as_file(NOISE, "PNG")[:200], bytes(pictures.MOST_BYTES + 1)):
        sentences = set()
        for decode in (pictures.decode, picture_decoder.decode):
            with pytest.raises(PictureError) as caught:
                decode(data)
            sentences.add(str(caught.value))
        assert len(sentences) == 1, sentences


@pytest.mark.parametrize(("data", "count"), [(as_file(NOISE, "JPEG"), 1), (many_scans(40), 50), (b"GIF89a", 0)])
def test_scans_are_counted(data: bytes, count: int) -> None:
    assert count_scans(data, 1000) == count
    assert count_scans(data + many_scans(99), 1000) == count, "what comes behind the picture is none of it"
    assert count_scans(data, 20) == min(count, 21)


@pytest.mark.parametrize("data", [many_scans(40_000), many_scans(300, side=2000), many_scans(40, side=7000)])
def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(data: bytes) -> None:
    for decode in (pictures.decode, picture_decoder.decode):
        with pytest.raises(PictureError, match="has too many scans"):
            decode(data)


@pytest.mark.parametrize(
    "data",
    [many_segments(1_500_000), many_chunks(500_000), many_chunks(400_000, b"tEXt", b"k\0v")],
    ids=["segments", "chunks", "texts"],
)
def test_a_file_that_takes_too_long_is_given_up_and_the_next_one_is_read(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture_decoder.decode(as_file(NOISE, "PNG"))
    monkeypatch.setattr(picture_decoder, "PICTURE_SECONDS", 0.3)
    before = children()
    with pytest.raises(PictureError, match=r"takes more than 0\.3 seconds to decode"):
        picture_decoder.decode(data)
    assert len(children()) == len(before) - 1, "its process was ended"
    monkeypatch.undo()
    assert picture_decoder.decode(as_file(NOISE, "PNG")).size == NOISE.size


def claiming(kind: str) -> bytes:
    """A file of some bytes that says to be as large as its format can tell."""
    if kind == "WEBP":
        data = bytearray(as_file(NOISE, "WEBP", lossless=True))
        at = data.index(b"VP8L") + 9
        struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] | 0xFFFFFFF)
    else:
        data = bytearray(as_file(NOISE.convert("P"), "GIF"))
        at = 6 if kind == "GIF" else data.index(b"\x2c") + 5
        data[at : at + 4] = b"\xff\xff\xff\xff"
    return bytes(data)


@pytest.mark.parametrize("kind", ["GIF", "GIF frame", "WEBP"])
def test_gif_and_webp_that_claim_to_be_huge_are_refused_unread(kind: str) -> None:
    for decode in (picture_decoder.decode, lambda data: picture_decoder.frames(data, 2.0)):
        with pytest.raises(PictureError, match="more than the 50,000,000 pixels that are taken"):
            decode(claiming(kind))


def with_chunk(kind: bytes, content: bytes) -> bytes:
    return many_chunks(1, kind, content)


def with_segment(content: bytes) -> bytes:
    data = as_file(NOISE, "JPEG")
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + data[2:]


def exif_of(entries: int, *pointers: int) -> bytes:
    """Notes that claim texts of 2 GB each, and directories that are this one again."""
    notes = [struct.pack("<HHII", 0x010E, 2, 0x7FFFFFFF, 8)] * entries
    notes += [struct.pack("<HHII", tag, 4, 1, 8) for tag in pointers]
    return b"II*\0" + struct.pack("<IH", 8, len(notes)) + b"".join(notes) + struct.pack("<I", 8)


@pytest.mark.parametrize(
    "data",
    [
        with_segment(b"Exif\0\0" + exif_of(5000)),
        with_segment(b"Exif\0\0" + exif_of(1, 0x8769, 0x8825, 0xA005)),
        with_chunk(b"eXIf", exif_of(65_000)),
        with_chunk(b"iCCP", b"icc\0\0" + zlib.compress(bytes(100_000_000), 9)),
        with_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(100_000_000), 9)),
    ],
    ids=["exif", "exif loop", "exif of a png", "icc", "text"],
)
def test_bombs_in_what_comes_beside_the_pixels_cost_nobody_anything(data: bytes) -> None:
    """Notes, colour profiles and texts that claim or become much: the picture is read or refused, within the limits."""
    before = psutil.Process().memory_info().rss
    try:
        assert picture_decoder.decode(data).size == NOISE.size
    except PictureError as error:
        assert "an image" in str(error)
    assert psutil.Process().memory_info().rss - before < 100_000_000
    assert picture_decoder.decode(as_file(NOISE, "PNG")).size == NOISE.size


def test_other_pictures_do_not_wait_for_one_that_takes_long() -> None:
    hostile, sound = many_segments(12_000_000), as_file(NOISE, "PNG")
    begun = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(picture_decoder.decode, hostile, begun.set)
        assert begun.wait(120)
        for _ in range(20):
            assert picture_decoder.decode(sound).size == NOISE.size
        assert not slow.done()
        with pytest.raises(PictureError, match="takes more than 10 seconds"):
            slow.result(timeout=120)


class _Left(Exception):
    """The client has gone."""


def test_the_work_ends_when_nobody_waits_for_it() -> None:
    def check() -> None:
        raise _Left

    work: list[Callable[[], object]] = [
        lambda: picture_decoder.decode(many_segments(3_000_000), check),
        lambda: picture_decoder.frames(many_segments(3_000_000), 1.0, check=check),
    ]
    for job in work:
        before = children()
        with pytest.raises(_Left):
            job()
        assert len(children()) <= len(before)


def test_a_decoder_that_has_ended_is_replaced() -> None:
    sound = as_file(NOISE, "PNG")
    picture_decoder.decode(sound)
    ended = [psutil.Process(pid) for pid in children()]
    for process in ended:
        process.kill()
    assert psutil.wait_procs(ended, timeout=60)[1] == []
    assert picture_decoder.decode(sound).size == NOISE.size


def test_memory_is_watched_where_the_kernel_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where the limit of address space is taken and not kept."""
    monkeypatch.setattr(picture_decoder, "_pool", DecoderPool("omlx.engine.vision.image_decoder", 1))
    with pytest.raises(PictureError, match="takes too much memory"):
        picture_decoder.decode(many_segments(3_000_000))
