"""Decoding pictures in processes that can be ended: a file that never ends costs its own request and nobody else.

A *decoder* is a process (`python -m omlx.engine.vision.image_decoder`) that decodes one file after the other, with a
limit of memory, and is killed where one takes too much processor time. Decoders are started as they are needed and
kept for the next pictures. A thread of a runner that decodes only waits, and does not hold the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Final, TypeVar

import msgspec
import psutil
from PIL import Image

from omlx.engine.vision import images as pictures
from omlx.engine.vision.images import PictureError

PICTURE_SECONDS: Final = 10
"""Of processor time for one picture; one of 50 million pixels takes two or three."""
ANIMATION_SECONDS: Final = 60
MOST_IDLE: Final = 4
"""Decoders that are kept."""
_CLOCK_FACTOR: Final = 3
"""By the clock a file may take so many times as long: other work shares the cores."""
_MEMORY_BYTES: Final = 2 << 30
_MOST_ANSWER: Final = 1 << 30
"""Bytes of a message between the two."""
_LOOK_S: Final = 0.1
_COMMAND: Sequence[str] = (sys.executable, "-P", "-m", "omlx.engine.vision.image_decoder")
_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")
"""All that a decoder gets of the environment: nobody's tokens."""
_LENGTH = struct.Struct(">Q")


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
    found = _ask(_Decode(data), PICTURE_SECONDS, check, _Picture)
    return Image.frombytes("RGB", (found.width, found.height), found.pixels)


def frames(
    data: bytes, fps: float, room: int = pictures.MOST_FRAME_PIXELS, check: Callable[[], None] = lambda: None
) -> tuple[list[bytes], float]:
    """As `pictures.frames`; `check` as in `decode`."""
    found = _ask(_Frames(data, fps, room), ANIMATION_SECONDS, check, _Animation)
    return [found.frames[number] for number in found.shown], found.fps


_idle: list[_Decoder] = []
_lock = threading.Lock()


def _ask(order: _Decode | _Frames, seconds: int, check: Callable[[], None], kind: type[T]) -> T:
    with _lock:
        decoder = _idle.pop() if _idle else None
    if decoder is None or not decoder.alive:
        decoder = _Decoder()
    try:
        answer = decoder.ask(order, seconds, check)
    except BaseException:
        decoder.end()
        raise
    with _lock:
        keep = len(_idle) < MOST_IDLE
        if keep:
            _idle.append(decoder)
    if not keep:
        decoder.end()
    if not isinstance(answer, kind):
        raise PictureError(answer.message if isinstance(answer, _Refused) else "an image cannot be read")
    return answer


@atexit.register
def _end_all() -> None:
    with _lock:
        while _idle:
            _idle.pop().end()


class _Decoder:
    """One process, used by one thread at a time."""

    def __init__(self) -> None:
        own = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own, bufsize=0
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait()

    def ask(
        self, order: _Decode | _Frames, seconds: int, check: Callable[[], None]
    ) -> _Picture | _Animation | _Refused:
        """Raises PictureError where the file takes too long or ends the process, and what `check` raises."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        used = self._processor_seconds()
        try:
            _send(stdin, order)
            started = time.monotonic()
            while not select.select([stdout], [], [], _LOOK_S)[0]:
                check()
                late = time.monotonic() - started > seconds * _CLOCK_FACTOR
                if late or self._processor_seconds() - used > seconds:
                    raise PictureError(f"an image takes more than {seconds} seconds to decode: send a simpler file")
            return msgspec.msgpack.decode(_receive(stdout), type=_Picture | _Animation | _Refused)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise PictureError("an image cannot be read: decoding it takes too much memory, or fails") from error

    def _processor_seconds(self) -> float:
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)


def _send(stream: IO[bytes], message: msgspec.Struct) -> None:
    body = memoryview(msgspec.msgpack.encode(message))
    for part in (memoryview(_LENGTH.pack(len(body))), body):
        done = 0
        while done < len(part):
            done += stream.write(part[done:]) or 0


def _receive(stream: IO[bytes]) -> bytes:
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    if length > _MOST_ANSWER:
        raise EOFError
    return bytes(_read(stream, length))


def _read(stream: IO[bytes], length: int) -> bytearray:
    found = bytearray(length)
    view, done = memoryview(found), 0
    while done < length:
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
    view.release()
    return found


# ---------------------------------------------------------------- the decoder's side
def _answer(order: _Decode | _Frames) -> _Picture | _Animation | _Refused:
    try:
        if isinstance(order, _Decode):
            image = pictures.decode(order.data)
            return _Picture(image.width, image.height, image.tobytes())
        found, fps = pictures.frames(order.data, order.fps, order.room)
        numbers = {id(frame): number for number, frame in enumerate({id(it): it for it in found}.values())}
        return _Animation(list({id(it): it for it in found}.values()), [numbers[id(frame)] for frame in found], fps)
    except PictureError as error:
        return _Refused(str(error))
    except MemoryError:
        return _Refused("an image takes too much memory to decode")


def _limit() -> None:
    os.nice(5)
    for what, most in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of address space
            resource.setrlimit(what, (most, most))


def main() -> None:
    _limit()
    stdin, stdout = os.fdopen(0, "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            _send(stdout, _answer(msgspec.msgpack.decode(_receive(stdin), type=_Decode | _Frames)))


if __name__ == "__main__":
    main()
