"""Wire types of OpenAI's audio routes: what a transcription answers, whole and as events."""

from __future__ import annotations

import msgspec


class AudioUsage(msgspec.Struct, tag="duration", kw_only=True):
    seconds: float


class TranscriptionResponse(msgspec.Struct, kw_only=True):
    """`response_format` json."""

    text: str
    usage: AudioUsage


class TranscriptionSegment(msgspec.Struct, kw_only=True):
    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float | None
    compression_ratio: float | None
    no_speech_prob: float | None


class TranscriptionWord(msgspec.Struct, kw_only=True):
    word: str
    start: float
    end: float


class VerboseTranscription(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`response_format` verbose_json; segments and words where `timestamp_granularities` asks for them."""

    task: str
    language: str
    """Its English name."""
    duration: float
    text: str
    segments: list[TranscriptionSegment] | None = None
    words: list[TranscriptionWord] | None = None
    usage: AudioUsage


class TranscriptTextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta", kw_only=True):
    delta: str


class TranscriptTextDone(msgspec.Struct, tag_field="type", tag="transcript.text.done", kw_only=True):
    text: str
    usage: AudioUsage


class TranscriptVerboseDone(
    VerboseTranscription, tag_field="type", tag="transcript.text.done", kw_only=True, omit_defaults=True
):
    """The end of a stream whose `response_format` is verbose_json (oMLX's own)."""


class TranscriptProgress(msgspec.Struct, tag_field="type", tag="omlx.progress", kw_only=True):
    """Seconds of the audio that are written down, where the field `progress` of the form asks for it (oMLX's own)."""

    done: float
    total: float
