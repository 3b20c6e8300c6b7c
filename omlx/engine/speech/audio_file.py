"""*Audio files*: the supported formats, detected from the first bytes, and the limits of all of them."""

from __future__ import annotations

from typing import Final, Literal

SAMPLE_RATE: Final = 16_000
"""Samples a second of the models' input."""
MOST_BYTES: Final = 512 * 1000 * 1000
"""Size limit of one file."""
MOST_SECONDS: Final = 4 * 3600
"""Duration limit of one file."""
MOST_RATE: Final = 768_000
LEAST_RATE: Final = 1_000
MOST_CHANNELS: Final = 32

AudioKind = Literal["wav", "flac", "mp3", "vorbis", "mp4", "matroska", "ogg", "aac", "aiff", "caf"]
_OGG_PAGE: Final = 64
NO_AUDIO: Final = (
    "the file is not audio in a supported format: send WAV, MP3, FLAC or OGG, or with FFmpeg on the server M4A or WebM"
)
NO_FFMPEG: Final = (
    "this audio format needs FFmpeg on the server: pip install 'omlx[video]'; or send WAV, MP3, FLAC or OGG"
)


class AudioError(Exception):
    """The file cannot be used; the message says why."""


class AudioLimitError(AudioError):
    """The audio takes more CPU time, or is longer, than allowed."""


def kind(data: bytes) -> AudioKind:
    """The format of the file, detected from its content. Raises AudioError."""
    start = data[:12]
    if start[:4] in {b"RIFF", b"RIFX", b"RF64"} and start[8:] == b"WAVE":
        return "wav"
    if start[:4] == b"fLaC":
        return "flac"
    if start[:4] == b"OggS":
        return "vorbis" if b"\x01vorbis" in data[:_OGG_PAGE] else "ogg"
    if start[:3] == b"ID3":
        return "mp3"
    if start[:1] == b"\xff" and start[1:2] and start[1] & 0xE0 == 0xE0:
        # AAC has the same sync word, with 0 as its layer.
        return "aac" if start[1] & 0x06 == 0 else "mp3"
    if start[4:8] == b"ftyp":
        return "mp4"
    if start[:4] == b"\x1aE\xdf\xa3":
        return "matroska"
    if start[:4] == b"FORM" and start[8:] in {b"AIFF", b"AIFC"}:
        return "aiff"
    if start[:4] == b"caff":
        return "caf"
    raise AudioError(NO_AUDIO)


def check_size(data: bytes) -> None:
    """Raises AudioError if the file is empty or too large."""
    if not data:
        raise AudioError("the audio file is empty")
    if len(data) > MOST_BYTES:
        raise AudioError(f"the audio file has {len(data):,} bytes; the limit is {MOST_BYTES:,}")


def check_sound(rate: int, channels: int, seconds: float, most_seconds: int = MOST_SECONDS) -> None:
    """Raises AudioError if a value of the file's header exceeds its limit."""
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise AudioError(f"the audio has {rate:,} samples a second: {LEAST_RATE:,} to {MOST_RATE:,} are supported")
    if not 1 <= channels <= MOST_CHANNELS:
        raise AudioError(f"the audio has {channels} channels: 1 to {MOST_CHANNELS} are supported")
    if seconds > most_seconds:
        raise AudioLimitError(f"the audio is {seconds:,.0f} seconds long; the limit is {most_seconds:,}")
