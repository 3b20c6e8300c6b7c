"""Video files to frames: which are taken, and a process of its own for each (`omlx.engine.vision.video_decoder`), with
limits.

FFmpeg comes with PyAV, the extra `video`. Only that process imports it: a runner stays without.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from omlx.engine.vision.images import PictureError
from omlx.engine.vision.video_protocol import Order, Refused, Unreeled

MOST_BYTES: Final = 200 * 1000 * 1000
"""Of one file."""
MOST_SECONDS: Final = 60
"""To decode one file, by the clock."""
_PROCESSOR_SECONDS = 2 * MOST_SECONDS
"""Of all threads together."""
_COMMAND: Sequence[str] = (sys.executable, "-P", "-m", "omlx.engine.vision.video_decoder")
_KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV")
"""All that the process gets of the environment: nobody's tokens."""
_LOOK_S = 0.25
_BOXES = {b"moov", b"mdat", b"wide", b"free", b"skip"}
_STILLS = {b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"mif1", b"msf1"}
"""Brands of what Pillow reads, in the same kind of box."""


class Clip(NamedTuple):
    """The frames of a video as image files, 1/`fps` seconds apart; equal ones are one object."""

    frames: list[bytes]
    fps: float
    length_s: float


def kind(data: bytes) -> str:
    """FFmpeg's name of the container; "" for what is no video file. The file decides, not what it is called."""
    if data.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    box = data[4:8]
    if (box == b"ftyp" and data[8:12] not in _STILLS) or box in _BOXES:
        return "mp4"
    return ""


def frames(data: bytes, fps: float, most: int, check: Callable[[], None]) -> Clip:
    """`fps` frames a second of a file that has a `kind`, `most` at most. Raises PictureError.

    `check` is called now and then, and may raise: then the work ends.
    """
    if len(data) > MOST_BYTES:
        raise PictureError(f"a video has {len(data):,} bytes, more than the {MOST_BYTES:,} that are taken")
    if importlib.util.find_spec("av") is None:
        raise PictureError("video files need FFmpeg on the server: pip install 'omlx[video]'; or send a list of frames")
    answer = _answer(Order(kind(data), fps, most, _PROCESSOR_SECONDS), data, check)
    if isinstance(answer, Refused):
        raise PictureError(f"a video {answer.message}")
    return Clip([answer.frames[number] for number in answer.shown], answer.fps, answer.length_s)


def _answer(order: Order, data: bytes, check: Callable[[], None]) -> Unreeled | Refused:
    command = [*_COMMAND, msgspec.json.encode(order).decode()]
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    until = time.monotonic() + MOST_SECONDS
    # Through a file: what a pipe does not take at once is lost when `communicate` is called again.
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own)
    with process:
        try:
            while True:
                check()
                try:
                    out, _ = process.communicate(timeout=_LOOK_S)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() > until:
                        return _too_slow()
        finally:
            process.kill()
    if process.returncode == -signal.SIGXCPU:
        return _too_slow()
    try:
        return msgspec.msgpack.decode(out, type=Unreeled | Refused)
    except msgspec.DecodeError:
        return Refused(f"cannot be decoded: FFmpeg ended with code {process.returncode}")


def _too_slow() -> Refused:
    return Refused(
        f"takes more than {MOST_SECONDS} seconds to decode: send a shorter or smaller one, or ask for fewer frames"
    )
