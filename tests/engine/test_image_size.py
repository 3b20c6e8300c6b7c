"""The size that an image file declares is found without opening it, and never less than what a decoder makes."""

from __future__ import annotations

import io
import random
import struct

import pytest
from PIL import Image

from omlx.engine.vision import images as pictures
from omlx.engine.vision.image_size import declared_pixels
from omlx.engine.vision.images import PictureError
from omlx.runner.session import cannot_take_long

NOISE = Image.effect_noise((64, 48), 80).convert("RGB")


def as_file(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


FILES = {
    "png": as_file(NOISE, "PNG"),
    "bmp": as_file(NOISE, "BMP"),
    "gif": as_file(NOISE.convert("P"), "GIF", comment=b"a note"),
    "moving gif": as_file(NOISE.convert("P"), "GIF", save_all=True, append_images=[NOISE.convert("L")]),
    "jpeg": as_file(NOISE, "JPEG", exif=b"Exif\0\0" + bytes(300)),
    "progressive jpeg": as_file(NOISE, "JPEG", progressive=True),
    "webp": as_file(NOISE, "WEBP"),
    "lossless webp": as_file(NOISE, "WEBP", lossless=True),
    "extended webp": as_file(NOISE.convert("RGBA"), "WEBP", exif=b"Exif\0\0" + bytes(300)),
    "moving webp": as_file(NOISE, "WEBP", save_all=True, append_images=[NOISE.rotate(90)]),
}


@pytest.mark.parametrize("kind", FILES)
def test_the_declared_size_is_found(kind: str) -> None:
    assert declared_pixels(FILES[kind]) == 64 * 48


@pytest.mark.parametrize("kind", FILES)
def test_no_damage_makes_a_large_picture_of_what_seems_small(kind: str) -> None:
    """A file that declares few pixels does not decode to many more."""
    chance = random.Random(5)
    for _ in range(300):
        data = bytearray(FILES[kind])
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(min(len(data), 60))] = chance.randrange(256)
        declared = declared_pixels(bytes(data))
        if declared is None or declared > pictures.MOST_PIXELS // 10:
            continue
        try:
            picture = pictures.decode(bytes(data))
        except PictureError:
            continue
        assert picture.width * picture.height <= declared, data.hex()


def test_what_cannot_be_told_is_not_small() -> None:
    for data in (b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF", b"\xff\xd8" + b"\xff\xe0\0\2" * 9000):
        assert declared_pixels(data) is None
        assert not cannot_take_long([data])


def test_small_files_of_many_pixels_are_not_small() -> None:
    small, wide = FILES["png"], as_file(Image.new("1", (6900, 6900)), "PNG")
    assert len(wide) < 100_000
    assert cannot_take_long([small]) and cannot_take_long([small, FILES["webp"]])
    assert not cannot_take_long([wide]) and not cannot_take_long([small, wide])
    assert not cannot_take_long([small] * 3)
    gif = bytearray(FILES["gif"])
    struct.pack_into("<HH", gif, bytes(gif).index(b"\x2c\0\0\0\0") + 5, 9000, 9000)
    assert not cannot_take_long([bytes(gif)])
