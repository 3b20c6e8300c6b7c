"""Image files to pixels: what is taken, how large it may be, and what is refused with a sentence. Pillow only, no MLX.

Files come from anybody. A size is read from the header and checked before any pixel is unpacked, so that a small
file which claims to be 40,000 pixels wide costs nothing, and memory stays within `MOST_PIXELS` times a few bytes.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omlx.engine.vision.jpeg_scans import count_scans

MOST_BYTES: Final = 50 * 1000 * 1000
"""Of one file."""
MOST_PIXELS: Final = 50_000_000
"""Of one picture: a little more than the largest telephone cameras give."""
LONGEST_SIDE: Final = 20_000
SHORTEST_SIDE: Final = 2
MOST_SCANS: Final = 100
"""Of a progressive JPEG; about ten are usual."""
MOST_SCANNED_PIXELS: Final = 1_000_000_000
"""Of all scans together."""
MOST_PICTURES: Final = 256
"""In one request, frames included."""
MOST_VIDEO_PIXELS: Final = 400_000_000
"""Of all frames of an animation together."""
MOST_FRAME_PIXELS: Final = 100_000_000
"""Of the frames that are taken from a request's files: they are held unpacked, three bytes a pixel."""
FORMATS: Final = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "AVIF", "HEIF")
"""As far as the installed Pillow has them: it reads HEIF with a plugin only."""
T = TypeVar("T")
# A frame that claims to be larger than its file's header says is stopped by Pillow, at twice this.
Image.MAX_IMAGE_PIXELS = MOST_PIXELS
# What Pillow warns of (damaged EXIF notes, large sizes) is dealt with here.
warnings.filterwarnings("ignore", module=r"PIL\.")
_READ = "PNG, JPEG, WebP, GIF or BMP"
_NO_ROOM = f"the frames of videos have more than {MOST_FRAME_PIXELS:,} pixels together: ask for a smaller fps"


class PictureError(Exception):
    """The file cannot be used as a picture; the message is a sentence for the user."""


def check_bytes(data: bytes) -> None:
    """Raises PictureError where a file has no bytes, or too many."""
    if not data:
        raise PictureError("an image is empty")
    if len(data) > MOST_BYTES:
        raise PictureError(f"an image has {len(data):,} bytes, more than the {MOST_BYTES:,} that are taken")


def is_plain_bitmap(data: bytes) -> bool:
    """Whether the file is a BMP without compression, which is what the frames of videos become."""
    return data[:2] == b"BM" and data[14:18] == b"\x28\0\0\0" and data[30:34] == b"\0\0\0\0"


def decode(data: bytes) -> Image.Image:
    """The picture as RGB, upright, its first frame where it has several. Raises PictureError.

    It may take long where the file is made to: `picture_decoder.decode` does the same where it can be ended.
    """
    check_bytes(data)
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as file:
            _check_size(*file.size)
            if file.format in {"JPEG", "MPO"}:
                _check_scans(data, file.width * file.height)
            file.load()
            return _upright_rgb(file)
    except PictureError:
        raise
    except UnidentifiedImageError:
        raise PictureError(
            f"an image is no {_READ} file, or its beginning is damaged; a video has its place in `videos`"
        ) from None
    except Image.DecompressionBombError:
        raise PictureError(f"an image has more than the {MOST_PIXELS:,} pixels that are taken") from None
    except Exception as error:  # decoders raise whatever a damaged file makes them raise
        raise PictureError(f"an image cannot be read: {error or type(error).__name__}") from error


class ImageBudget:
    """What the frames of one request's videos may take, unpacked."""

    def __init__(self, pixels: int = MOST_FRAME_PIXELS) -> None:
        self.pixels = pixels

    def take(self, files: Sequence[bytes]) -> None:
        """Raises PictureError where these frames, unpacked ones, are too many. One that is repeated is there once."""
        self.pixels -= sum(len(file) for file in {id(file): file for file in files}.values()) // 3
        if self.pixels < 0:
            raise PictureError(_NO_ROOM)


def frames(data: bytes, fps: float, room: int = MOST_FRAME_PIXELS) -> tuple[list[bytes], float]:
    """An animated file as single pictures, and how many of them make a second; a file that does not move as one.

    As many as `fps` asks for; where they are more than are taken, half of them, or a quarter and so on. Raises
    PictureError, also where different frames have more than `room` pixels together.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as file:
            _check_size(*file.size)
            count = getattr(file, "n_frames", 1)
            if count == 1:
                return [data], fps
            if count * file.width * file.height > MOST_VIDEO_PIXELS:
                raise PictureError(f"an animation of {count} frames of {file.width} x {file.height} is too large")
            return _sampled(file, count, fps, room)
    except PictureError:
        raise
    except Image.DecompressionBombError:
        raise PictureError(f"an animation has frames of more than the {MOST_PIXELS:,} pixels that are taken") from None
    except UnidentifiedImageError:
        raise PictureError("a video is no MP4, MOV, WebM, MKV, GIF or WebP file, or its beginning is damaged") from None
    except Exception as error:
        raise PictureError(f"an animation cannot be read: {error or type(error).__name__}") from error


def _sampled(file: Any, count: int, fps: float, room: int) -> tuple[list[bytes], float]:
    """The frames that are shown `fps` times a second, each as a file of its own. Raises PictureError."""
    frames: list[bytes] = []
    now, step_ms = 0.0, 1000 / fps
    for number in range(count):
        file.seek(number)
        file.load()
        now += max(float(file.info.get("duration") or 100), 1.0)
        if len(frames) * step_ms >= now:
            continue
        room -= file.width * file.height
        if room < 0:
            raise PictureError(_NO_ROOM)
        buffer = io.BytesIO()
        _upright_rgb(file).save(buffer, "BMP")
        while len(frames) * step_ms < now:
            if len(frames) == MOST_PICTURES:
                frames, step_ms = frames[::2], step_ms * 2
            else:
                frames.append(buffer.getvalue())
    return frames, 1000 / step_ms


def thinned(items: Sequence[T], most: int) -> list[T]:
    """At most `most` of them (0: all), evenly spread, the first among them."""
    if not 0 < most < len(items):
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


def digest(picture: Image.Image, salt: bytes = b"") -> bytes:
    """SHA-256 of the pixels and of `salt`: equal for equal pixels, whatever file they came from."""
    state = hashlib.sha256(b"%d %d %d:" % (len(salt), *picture.size))
    state.update(salt)
    state.update(picture.tobytes())
    return state.digest()


def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _check_size(width: int, height: int) -> None:
    if min(width, height) < SHORTEST_SIDE:
        raise PictureError(
            f"an image of {width} x {height} pixels is too small: {SHORTEST_SIDE} x {SHORTEST_SIDE} is least"
        )
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        raise PictureError(
            f"an image of {width} x {height} pixels is too large: {MOST_PIXELS:,} pixels are taken, "
            f"and {LONGEST_SIDE:,} a side"
        )


def _check_scans(data: bytes, pixels: int) -> None:
    """Each scan of a JPEG file is another pass over all pixels."""
    count = count_scans(data, MOST_SCANS)
    if count > MOST_SCANS or count * pixels > MOST_SCANNED_PIXELS:
        raise PictureError(f"a progressive JPEG has too many scans: {MOST_SCANS} are taken, fewer of a large picture")


def _upright_rgb(file: Image.Image) -> Image.Image:
    try:
        picture = ImageOps.exif_transpose(file) or file
    except Exception:  # a damaged EXIF block says nothing about the pixels
        picture = file
    if picture.mode.startswith("I") or picture.mode == "F":
        return _from_deep_gray(picture)
    if "A" in picture.mode or "a" in picture.mode or "transparency" in picture.info:
        rgba = picture.convert("RGBA")
        white = Image.new("RGB", rgba.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    # Always a copy: what Pillow read from the file goes with the file.
    return picture.convert("RGB") if picture.mode != "RGB" else picture.copy()


def _from_deep_gray(picture: Image.Image) -> Image.Image:
    """Gray of 16 or more bits: Pillow itself would cut it off at 255."""
    values = np.asarray(picture).astype(np.float32)
    top = 65535.0 if picture.mode.startswith("I") else max(float(values.max()), 1.0)
    gray = (np.clip(values, 0, top) * (255.0 / top)).astype(np.uint8)
    return Image.fromarray(gray, "L").convert("RGB")
