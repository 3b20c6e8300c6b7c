"""Decoding pictures in processes that can be ended (see `omlx.engine.decoder_process`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec
from PIL import Image

from omlx.engine.decoder_process import DecoderDied, DecoderPool, TooSlow, serve
from omlx.engine.vision import images as pictures
from omlx.engine.vision.images import PictureError

PICTURE_SECONDS: Final = 10
"""Of processor time for one picture; one of 50 million pixels takes two or three."""
ANIMATION_SECONDS: Final = 60
_MEMORY_BYTES: Final = 2 << 30


class _Decode(msgspec.Struct, tag=True):
    data: bytes


class _Frames(msgspec.Struct, tag=True):
    data: bytes
    fps: float
    room: int


class _Picture(msgspec.Struct, tag=True):
    """Three bytes a pixel."""

    width: int
    height: int
    pixels: bytes


class _Animation(msgspec.Struct, tag=True):
    """`frames` without repetition; `shown` says which of them each moment shows."""

    frames: list[bytes]
    shown: list[int]
    fps: float


class _Refused(msgspec.Struct, tag=True):
    message: str


T = TypeVar("T", _Picture, _Animation)


# ---------------------------------------------------------------- the runner's side
def decode(data: bytes, check: Callable[[], None] = lambda: None) -> Image.Image:
    """As `pictures.decode`. `check` is called now and then and may raise: then the work ends."""
    if pictures.is_plain_bitmap(data):  # frames of videos, for one: nothing in them can take long
        return pictures.decode(data)
    pictures.check_bytes(data)
    picture = _ask(_Decode(data), PICTURE_SECONDS, check, _Picture)
    return Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)


def frames(
    data: bytes, fps: float, room: int = pictures.MOST_FRAME_PIXELS, check: Callable[[], None] = lambda: None
) -> tuple[list[bytes], float]:
    """As `pictures.frames`; `check` as in `decode`."""
    animation = _ask(_Frames(data, fps, room), ANIMATION_SECONDS, check, _Animation)
    return [animation.frames[number] for number in animation.shown], animation.fps


_pool = DecoderPool("omlx.engine.vision.image_decoder", _MEMORY_BYTES)


def _ask(order: _Decode | _Frames, seconds: int, check: Callable[[], None], kind: type[T]) -> T:
    try:
        with _pool.process() as decoder:
            answer = msgspec.msgpack.decode(
                decoder.ask(msgspec.msgpack.encode(order), seconds, check), type=_Picture | _Animation | _Refused
            )
    except TooSlow:
        raise PictureError(f"an image takes more than {seconds} seconds to decode: send a simpler file") from None
    except (DecoderDied, msgspec.MsgspecError) as error:
        raise PictureError("an image cannot be read: decoding it takes too much memory, or fails") from error
    if not isinstance(answer, kind):
        raise PictureError(answer.message if isinstance(answer, _Refused) else "an image cannot be read")
    return answer


# ---------------------------------------------------------------- the decoder's side
def _answer(order: _Decode | _Frames) -> _Picture | _Animation | _Refused:
    try:
        if isinstance(order, _Decode):
            image = pictures.decode(order.data)
            return _Picture(image.width, image.height, image.tobytes())
        frames, fps = pictures.frames(order.data, order.fps, order.room)
        numbers = {id(frame): number for number, frame in enumerate({id(it): it for it in frames}.values())}
        return _Animation(list({id(it): it for it in frames}.values()), [numbers[id(frame)] for frame in frames], fps)
    except PictureError as error:
        return _Refused(str(error))
    except MemoryError:
        return _Refused("an image takes too much memory to decode")


def _answers(order: bytearray) -> Iterator[bytes]:
    yield msgspec.msgpack.encode(_answer(msgspec.msgpack.decode(order, type=_Decode | _Frames)))


if __name__ == "__main__":
    serve(_answers, _MEMORY_BYTES)
