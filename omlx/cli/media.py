"""Media paths in a prompt: files named in the text become images (or sounds) and videos of the message."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any, NamedTuple

from omlx.cli.command import CliError
from omlx.cli.console import err

MAX_BYTES = 100 * 1000 * 1000
_LONGEST_PATH = 4096
"""Of what stands before an ending, this much may be its path: a long text with many endings is read in linear time."""
_START = re.compile(r"(?<![^\s'\"])(?:[a-zA-Z]:)?(?:\.{0,2}/|~/|\\)")
_END = re.compile(r"\.(?:jpe?g|png|webp|wav|mp4|m4v|mov|webm|mkv|gif)\b", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(\W)")


class Attachments(NamedTuple):
    """A prompt without its media paths, and the files as base64."""

    text: str
    images: list[str]
    """Sounds too, as Ollama has it."""
    videos: list[str]

    def fields(self) -> dict[str, Any]:
        """Of a message that has them."""
        fields = {"images": self.images, "videos": [{"frames": [video]} for video in self.videos]}
        return {name: files for name, files in fields.items() if files}


def begins_with_path(text: str) -> bool:
    """Whether `text` begins with what looks like the path of a media file (it need not exist)."""
    return _START.match(text) is not None and _END.search(text) is not None


def attach(text: str) -> Attachments:
    """Read the media files `text` names; each is reported on stderr. A path without a file stays text.

    Blanks in a path may be escaped or not. Raises CliError for a file that is too large or not what its name says.
    """
    images, videos = list[str](), list[str]()
    kept, position = "", 0
    for end in _END.finditer(text):
        file = _file_before(text, position, end.end())
        if file is None:
            continue
        start, path = file
        content = _read(path)
        kind = _kind(content)
        if not kind:
            raise CliError(f"invalid file type: '{path}' is no JPEG, PNG, WebP, WAV, MP4, MOV, WebM, MKV or GIF file")
        (videos if kind == "video" else images).append(base64.b64encode(content).decode("ascii"))
        err(f"Added {kind} '{path}'")
        kept += text[position:start]
        position = end.end()
        if kept.endswith("'") and text[position : position + 1] == "'":
            kept, position = kept[:-1], position + 1
    return Attachments((kept + text[position:]).strip() if images or videos else text, images, videos)


def _file_before(text: str, start: int, end: int) -> tuple[int, str] | None:
    """Where the path of an existing file that ends at `end` starts, and the path; the longest such path wins."""
    for begin in _START.finditer(text, max(start, end - _LONGEST_PATH), end):
        path = _ESCAPED.sub(r"\1", text[begin.start() : end])
        if _is_file(path):
            return begin.start(), path
    return None


def _is_file(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except OSError:  # too long for a name, or in a folder that is closed to us
        return False


def _read(path: str) -> bytes:
    file = Path(path).expanduser()
    try:
        if file.stat().st_size > MAX_BYTES:
            raise CliError(f"file size of '{path}' exceeds maximum limit (100MB)")
        content = file.read_bytes()
    except OSError as error:
        raise CliError(f"couldn't read '{path}': {error.strerror}") from error
    return content


def _kind(content: bytes) -> str:
    """What a file is, by its beginning: an image, audio or a video; "" for anything else."""
    if content.startswith(b"RIFF"):
        return {b"WEBP": "image", b"WAVE": "audio"}.get(content[8:12], "")
    if content.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
        return "image"
    # Boxes of MP4 and MOV stand behind their length.
    boxed = content[4:8] in {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}
    return "video" if boxed or content.startswith((b"\x1aE\xdf\xa3", b"GIF8")) else ""
