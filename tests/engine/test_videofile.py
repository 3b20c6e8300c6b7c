"""Video files: the frames that are shown when they are wanted, and a sentence for whatever strangers send instead."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from functools import cache

import pytest
from PIL import Image

from omlx.engine.vision import video_file as videofile
from omlx.engine.vision.images import PictureError
from tests.support.films import film, turned
from tests.support.tiny_vlm import as_file, draw

STEP = 12
"""Of brightness, from one frame to the next."""


def grays(count: int, size: tuple[int, int] = (96, 64)) -> list[Image.Image]:
    return [Image.new("RGB", size, (number * STEP % 240,) * 3) for number in range(count)]


@cache
def counted(form: str = "mp4", codec: str = "libx264") -> bytes:
    """Two seconds, ten frames each, that can be told by their brightness."""
    return film(grays(20), form, codec)


def opened(data: bytes, fps: float = 2.0, most: int = 256) -> videofile.Clip:
    return videofile.frames(data, fps, most, lambda: None)


def numbers(clip: videofile.Clip) -> list[int]:
    """Which frames these are."""
    found = []
    for file in clip.frames:
        with Image.open(io.BytesIO(file)) as image:
            found.append(round(image.convert("RGB").getpixel((20, 20))[1] / STEP))  # type: ignore[index]
    return found


@pytest.mark.parametrize(
    ("form", "codec"),
    [("mp4", "libx264"), ("mov", "libx265"), ("webm", "libvpx"), ("webm", "libvpx-vp9"), ("matroska", "mpeg4"),
     ("mp4", "libsvtav1")],
)  # fmt: skip
def test_the_frame_that_is_shown_at_each_wanted_moment(form: str, codec: str) -> None:
    clip = opened(counted(form, codec))
    assert numbers(clip) == [0, 5, 10, 15]
    assert (clip.fps, round(clip.length_s, 3)) == (2.0, 2.0)


def test_more_frames_than_are_wanted_are_thinned_out_over_the_whole_video() -> None:
    clip = opened(counted(), fps=10, most=5)
    assert (numbers(clip), clip.fps) == ([0, 4, 8, 12, 16], 2.5)
    assert numbers(opened(counted(), fps=10)) == list(range(20))
    again = opened(counted(), fps=20)
    assert numbers(again) == [number // 2 for number in range(40)], "a frame is shown until the next one"
    assert len({id(frame) for frame in again.frames}) == 20


def test_a_telephone_held_upright_gives_upright_frames() -> None:
    left = Image.new("RGB", (64, 32), "white")
    left.paste((0, 0, 0), (0, 0, 32, 32))
    (frame,) = opened(turned(film([left] * 2)), fps=1).frames
    with Image.open(io.BytesIO(frame)) as image:
        assert image.size == (32, 64)
        assert image.getpixel((16, 8))[0] < 60 < 200 < image.getpixel((16, 56))[0]  # type: ignore[index]


def test_large_frames_are_scaled_down() -> None:
    noise = Image.effect_noise((1600, 1600), 90).convert("RGB")
    large = film([noise] * 2, codec="libx264rgb")
    assert len(large) > 1_000_000, "more than a pipe takes at once"
    (frame,) = opened(large, fps=1).frames
    with Image.open(io.BytesIO(frame)) as image:
        assert image.size == (1024, 1024)


def _first_part(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def _sound() -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("pcm_s16le", rate=16000)
        frame = av.AudioFrame(format="s16", layout="mono", samples=1024)
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
    return buffer.getvalue()


def _claiming(mp4: bytes, width: int, height: int) -> bytes:
    at = mp4.index(b"avc1") + 28
    return mp4[:at] + width.to_bytes(2, "big") + height.to_bytes(2, "big") + mp4[at + 4 :]


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "no film at all": (lambda: b"\0\0\0\x20ftyp" + bytes(range(256)) * 8, "damaged or cut off"),
    "only its head": (lambda: counted()[:40], "damaged or cut off"),
    "the index is missing": (lambda: counted()[:-300], "damaged or cut off"),
    "the end is missing": (lambda: _first_part(film(grays(60), movflags="faststart")), "cut off"),
    "an empty container": (lambda: b"\x1aE\xdf\xa3" + bytes(500), "damaged or cut off"),
    "half a WebM": (lambda: _first_part(film(grays(200), "webm", "libvpx")), "cut off"),
    "nothing but sound": (_sound, "no pictures"),
    "a lie about its size": (lambda: _claiming(film(grays(2)), 20_000, 20_000), "a video"),
    "too large": (lambda: film([Image.new("RGB", (4800, 3000))]), "too large"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_gets_a_sentence(name: str) -> None:
    make, says = HOSTILE[name]
    data = make()
    assert videofile.kind(data)
    try:
        clip = opened(data)
    except PictureError as error:
        assert says in str(error) and len(str(error)) < 200
    else:  # the head of the file lies, the pictures themselves do not
        assert name == "a lie about its size" and len(clip.frames) == 1


def test_damaged_files_never_do_worse_than_a_sentence() -> None:
    chance = random.Random(5)
    for form, codec in (("mp4", "libx264"), ("webm", "libvpx-vp9")):
        whole = counted(form, codec)
        for _ in range(5):
            data = bytearray(whole)
            for _ in range(chance.randint(1, 30)):
                data[chance.randrange(12, len(data))] = chance.randrange(256)
            try:
                assert opened(bytes(data)).frames
            except PictureError as error:
                assert str(error).startswith("a video ") and len(str(error)) < 200


def test_the_work_ends_when_nobody_waits_or_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class GoneError(Exception):
        pass

    def gone() -> None:
        raise GoneError

    with pytest.raises(GoneError):
        videofile.frames(counted(), 2.0, 256, gone)
    monkeypatch.setattr(videofile, "MOST_SECONDS", 0)
    monkeypatch.setattr(videofile, "_LOOK_S", 0)
    with pytest.raises(PictureError, match="seconds to decode"):
        opened(film(grays(100)), fps=100)


def test_a_server_without_ffmpeg_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(videofile.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PictureError, match=r"pip install 'omlx\[video\]'"):
        opened(counted())


def test_files_of_other_kinds_are_left_to_others() -> None:
    red = draw("red", "circle")
    assert not any(map(videofile.kind, (b"", as_file(red), as_file(red, "GIF"), as_file(red, "AVIF"), b"%PDF-1.7")))
