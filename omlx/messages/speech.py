"""Messages of speech to text: the server's request, and the runner's *segments* of text with their times.

Pure msgspec, like the other messages: nothing here may import MLX. Times are in seconds from the start of the audio.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from omlx.messages.request import Priority, TokenUsage

SpeechTask = Literal["transcribe", "translate"]
"""Text in the language of the speech, or in English."""


class Transcribe(msgspec.Struct, tag="transcribe", kw_only=True, omit_defaults=True):
    """One audio file to transcribe."""

    id: int
    audio: bytes
    """The file as sent; its first bytes identify the format."""
    task: SpeechTask = "transcribe"
    language: str = ""
    """Code ("de") or English name ("german"); "": the model detects it."""
    prompt: str = ""
    """Text that precedes the audio, for names, spellings and style."""
    temperature: float = 0.0
    """For the first attempt; a window with a poor result is decoded again with higher ones."""
    words: bool = False
    """Also the times of each word."""
    priority: Priority = "batch"
    trace: str = ""
    """As in GenerateRequest."""


class Word(msgspec.Struct, frozen=True):
    word: str
    start: float
    end: float
    probability: float


class SpeechSegment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A segment of speech. Field names are Whisper's."""

    id: int
    seek: int
    """Where its window begins, in hundredths of a second."""
    start: float
    end: float
    text: str
    """ "" where the model found no words."""
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] = []


class Segments(msgspec.Struct, tag="segments", kw_only=True, omit_defaults=True):
    """The result of one window. `text` continues the text of the windows before."""

    id: int
    text: str
    items: list[SpeechSegment]


class Transcribed(TokenUsage, tag="transcribed", kw_only=True, omit_defaults=True):
    """The end of a successful transcription."""

    id: int
    text: str
    """The whole text."""
    language: str
    """Its code."""
    duration: float
    """Of the audio."""
