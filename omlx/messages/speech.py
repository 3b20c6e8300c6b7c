"""Speech to text, as the server asks for it and as the runner answers: *segments* of text with their times.

Pure msgspec, like the other messages: nothing here may import MLX. Times are in seconds from the start of the audio.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from omlx.messages.request import Priority, TokenUsage

SpeechTask = Literal["transcribe", "translate"]
"""Write down what is said in its own language, or in English."""


class Transcribe(msgspec.Struct, tag="transcribe", kw_only=True, omit_defaults=True):
    """One audio file to write down."""

    id: int
    audio: bytes
    """The file as it was sent; its first bytes say what it is."""
    task: SpeechTask = "transcribe"
    language: str = ""
    """Its code ("de") or English name ("german"); "": the model tells."""
    prompt: str = ""
    """Text that might stand before the audio: names, spellings, style."""
    temperature: float = 0.0
    """The first one that is tried; a window that comes out badly is tried again with higher ones."""
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
    """A stretch of speech. The names are those of Whisper's own output."""

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
    """What one window gave. `text` continues the text of the windows before."""

    id: int
    text: str
    items: list[SpeechSegment]


class Transcribed(TokenUsage, tag="transcribed", kw_only=True, omit_defaults=True):
    """The end of a transcription that went well."""

    id: int
    text: str
    """The whole text."""
    language: str
    """Its code."""
    duration: float
    """Of the audio."""
