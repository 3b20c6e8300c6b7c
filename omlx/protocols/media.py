"""Images, videos and audio in a request body: base64 text to bytes, what the bytes are, and the limits of a video."""

from __future__ import annotations

import binascii
import re
from typing import Any

from omlx.messages.request import Video
from omlx.protocols.http_error import HTTPError

MOST_FPS = 120
_PIECE = 1 << 20
"""Characters that are decoded at once, a multiple of four: each call holds Python's lock."""
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


def read_base64(value: Any) -> bytes:
    """Standard base64 with padding; line breaks are tolerated. Raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError
    text = value.replace("\n", "").replace("\r", "")
    try:
        data = memoryview(text.encode("ascii"))
        if text.find("=", 0, len(text) - 2) >= 0:
            raise binascii.Error  # padding that is the end of one piece only
        pieces = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)] or [data]
        return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
    except (binascii.Error, UnicodeEncodeError):
        bad = _NOT_BASE64.search(text.rstrip("="))
        position = bad.start() if bad else len(text) - len(text) % 4 if len(text) % 4 else len(text)
        raise ValueError(f"illegal base64 data at input byte {position}") from None


def is_audio(data: bytes) -> bool:
    """Whether a file begins like audio: clients send it where images go, as Ollama has it."""
    if data[:4] in {b"fLaC", b"OggS", b"caff"} or data[:3] == b"ID3":
        return True
    if (data[:4] == b"RIFF" and data[8:12] == b"WAVE") or (data[4:8] == b"ftyp" and data[8:11] == b"M4A"):
        return True
    # MPEG audio; a JPEG has another second byte.
    return data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE0 == 0xE0


def read_video(frames: list[bytes], fps: float, max_frames: int) -> Video:
    """A video within its limits. Raises HTTPError."""
    if not 0 < fps <= MOST_FPS:
        raise HTTPError(400, f"the fps of a video must be above 0 and at most {MOST_FPS}")
    if not frames or max_frames < 0:
        raise HTTPError(400, "a video needs frames, and max_frames must not be negative")
    return Video(frames, fps, max_frames)
