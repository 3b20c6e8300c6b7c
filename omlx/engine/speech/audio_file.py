"""*Audio files*: which kinds are taken, told from their first bytes, and the limits that hold for all of them."""

from __future__ import annotations

from typing import Final, Literal

SAMPLE_RATE: Final = 16_000
"""Samples a second of what the models hear."""
MOST_BYTES: Final = 512 * 1000 * 1000
"""Of one file."""
MOST_SECONDS: Final = 4 * 3600
"""Of sound in one file."""
MOST_RATE: Final = 768_000
LEAST_RATE: Final = 1_000
MOST_CHANNELS: Final = 32

AudioKind = Literal["wav", "flac", "mp3", "vorbis", "mp4", "matroska", "ogg", "aac", "aiff", "caf"]
_OGG_PAGE: Final = 64
NO_AUDIO: Final = (
    "the file is no audio that can be read: send WAV, MP3, FLAC or OGG, or with FFmpeg on the server M4A or WebM"
)
NO_FFMPEG: Final = (
    "files of this kind need FFmpeg on the server: pip install 'omlx[video]'; or send WAV, MP3, FLAC or OGG"
)


class AudioError(Exception):
    """The file cannot be used; the message says why."""


def kind(data: bytes) -> AudioKind:
    """The kind of the file. The file decides, not what it is called. Raises AudioError."""
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
        # AAC has the same beginning, with 0 for its layer.
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
    """Raises AudioError."""
    if not data:
        raise AudioError("the audio file is empty")
    if len(data) > MOST_BYTES:
        raise AudioError(f"the audio file has {len(data):,} bytes, more than the {MOST_BYTES:,} that are taken")


def check_sound(rate: int, channels: int, seconds: float) -> None:
    """Raises AudioError where the file's own figures are beyond the limits."""
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise AudioError(f"the audio has {rate:,} samples a second: {LEAST_RATE:,} to {MOST_RATE:,} are taken")
    if not 1 <= channels <= MOST_CHANNELS:
        raise AudioError(f"the audio has {channels} channels: 1 to {MOST_CHANNELS} are taken")
    if seconds > MOST_SECONDS:
        raise AudioError(f"the audio is {seconds:,.0f} seconds long: at most {MOST_SECONDS:,} are taken")
