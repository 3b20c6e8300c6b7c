"""What is said between a runner and the process that decodes a video file for it."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    """What is wanted of a file."""

    kind: str
    """FFmpeg's name of the container."""
    fps: float
    most: int
    """Frames at most: more are thinned out evenly."""
    seconds: int
    """Of processor time."""


class Unreeled(msgspec.Struct, tag=True):
    """`frames` are image files without repetition; `shown` says which of them each wanted moment shows."""

    frames: list[bytes]
    shown: list[int]
    fps: float
    """Of `shown`: less than was asked for where they are thinned out."""
    length_s: float


class Refused(msgspec.Struct, tag=True):
    """What is wrong with the file, to stand behind "a video "."""

    message: str
