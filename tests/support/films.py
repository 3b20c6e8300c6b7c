"""Video files, encoded here: `film(pictures)` is an MP4 of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import av
from PIL import Image


def film(
    pictures: Sequence[Image.Image], form: str = "mp4", codec: str = "libx264", *, fps: int = 10, **options: str
) -> bytes:
    """The bytes of a video file of the pictures, which have one size. `options` are the container's.

    Of libx264rgb exactly the pixels come out that went in; of the others about these.
    """
    with (
        _same_scheduling(),
        tempfile.NamedTemporaryFile() as file,
        av.open(file.name, "w", format=form, options=options) as container,
    ):
        stream: Any = container.add_stream(codec, rate=fps)
        stream.width, stream.height = pictures[0].size
        stream.codec_context.gop_size = 8
        if codec == "libx264rgb":
            stream.pix_fmt, stream.options = "rgb24", {"qp": "0"}
        else:
            stream.pix_fmt, stream.bit_rate = "yuv420p", 2_000_000
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode(None))
        container.close()
        return file.read()


@contextmanager
def _same_scheduling() -> Iterator[None]:
    """Take back what SVT-AV1 does to the thread that encodes, where it may: real-time priority, for good.

    All processes that a test starts later would inherit it, and starve each other: such ones do not share a core.
    """
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, param)


def turned(mp4: bytes) -> bytes:
    """The MP4 with a note, as telephones write it, that it is to be shown turned right by 90 degrees."""
    plain = b"".join(value.to_bytes(4, "big") for value in (0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000))
    right = b"".join(value.to_bytes(4, "big") for value in (0, 0x10000, 0, 0xFFFF0000, 0, 0, 0, 0, 0x40000000))
    at = mp4.index(plain, mp4.index(b"tkhd"))
    return mp4[:at] + right + mp4[at + len(plain) :]
