"""OpenAI's audio routes: form fields to a `Transcribe`, and segments to the five response formats."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from omlx.messages.speech import SpeechSegment, SpeechTask, Transcribe, Transcribed
from omlx.protocols.http_error import HTTPError
from omlx.protocols.openai import audio_wire as wire
from omlx.protocols.openai.languages import language_name

Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
_GRANULARITIES: Final = ("segment", "word")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"", "false", "0", "no", "off"})
_LONGEST_PROMPT: Final = 10_000
"""Characters; the model uses the last 223 tokens."""


class AudioFields(NamedTuple):
    """The form fields as sent: "" or an empty list for a missing one."""

    model: str
    language: str
    prompt: str
    response_format: str
    temperature: str
    granularities: Sequence[str]
    stream: str
    progress: str


class AudioRequest(NamedTuple):
    """A request to transcribe or translate one file."""

    model: str
    transcribe: Transcribe
    format: Format
    granularities: frozenset[str]
    stream: bool
    progress: bool
    """Send progress events."""


def read_request(fields: AudioFields, audio: bytes, task: SpeechTask) -> AudioRequest:
    """Raises HTTPError."""
    form = fields.response_format or "json"
    if form not in get_args(Format):
        raise HTTPError(
            400, f"response_format {form[:50]!r} is not supported: use json, text, srt, vtt or verbose_json"
        )
    granularities = frozenset(fields.granularities)
    if unknown := sorted(granularities.difference(_GRANULARITIES)):
        raise HTTPError(400, f"timestamp_granularities {unknown[0][:50]!r} is unknown: use segment, word or both")
    if granularities and form != "verbose_json":
        raise HTTPError(400, "timestamp_granularities needs response_format verbose_json")
    if len(fields.prompt) > _LONGEST_PROMPT:
        raise HTTPError(400, f"the prompt is longer than {_LONGEST_PROMPT:,} characters")
    request = Transcribe(
        id=0,
        audio=audio,
        task=task,
        language=fields.language,
        prompt=fields.prompt,
        temperature=_temperature(fields.temperature),
        words="word" in granularities,
    )
    stream, progress = _flag("stream", fields.stream), _flag("progress", fields.progress)
    if stream and form in {"srt", "vtt"}:
        raise HTTPError(400, f"response_format {form} cannot be streamed: use json, text or verbose_json")
    return AudioRequest(fields.model, request, form, granularities or frozenset({"segment"}), stream, progress)  # type: ignore[arg-type]


def check_speech(name: str, capabilities: Collection[str]) -> None:
    """Raises HTTPError if the model does not support transcription."""
    if "transcription" not in capabilities:
        raise HTTPError(400, f'"{name}" does not support transcription: use a speech model such as whisper')


def _temperature(text: str) -> float:
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise HTTPError(400, "temperature must be a number from 0 to 1")
    return value


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise HTTPError(400, f"{name} must be true or false")
    return text.lower() in _TRUE


# ---------------------------------------------------------------- answers
class WholeTranscription(NamedTuple):
    """A whole transcription."""

    segments: Sequence[SpeechSegment]
    end: Transcribed


def content_type(form: Format) -> str:
    kinds = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
    return f"{kinds.get(form, 'application/json')}; charset=utf-8"


def plain(form: Format, transcription: WholeTranscription) -> str:
    """The response body of the formats text, srt and vtt."""
    if form == "srt":
        return srt(transcription.segments)
    return vtt(transcription.segments) if form == "vtt" else transcription.end.text.strip() + "\n"


def whole(
    request: AudioRequest, transcription: WholeTranscription
) -> wire.AudioTranscription | wire.VerboseTranscription:
    """The response of the formats json and verbose_json."""
    if request.format == "verbose_json":
        return wire.VerboseTranscription(**_verbose(request, transcription))
    return wire.AudioTranscription(text=transcription.end.text.strip(), usage=_usage(transcription.end))


def done(
    request: AudioRequest, transcription: WholeTranscription
) -> wire.TranscriptTextDone | wire.TranscriptVerboseDone:
    """The last event of a stream."""
    if request.format == "verbose_json":
        return wire.TranscriptVerboseDone(**_verbose(request, transcription))
    return wire.TranscriptTextDone(text=transcription.end.text.strip(), usage=_usage(transcription.end))


class DeltaTexts:
    """Splits a stream's text into deltas that join to the final text, without surrounding whitespace."""

    def __init__(self) -> None:
        self._started = False
        self._held = ""

    def next(self, text: str) -> str:
        """The next delta; whitespace at the end of `text` is kept back."""
        text = self._held + text if self._started else text.lstrip()
        kept = text.rstrip()
        self._started = self._started or bool(kept)
        self._held = text[len(kept) :]
        return kept


def _verbose(request: AudioRequest, transcription: WholeTranscription) -> dict[str, Any]:
    spoken = [segment for segment in transcription.segments if segment.text]
    fields: dict[str, Any] = {
        "task": request.transcribe.task,
        "language": language_name(transcription.end.language),
        "duration": round(transcription.end.duration, 3),
        "text": transcription.end.text.strip(),
        "usage": _usage(transcription.end),
    }
    if "segment" in request.granularities:
        fields["segments"] = [_segment(number, segment) for number, segment in enumerate(spoken)]
    if "word" in request.granularities:
        fields["words"] = [
            wire.TranscriptionWord(word=word.word.strip(), start=word.start, end=word.end)
            for segment in spoken
            for word in segment.words
            if word.word.strip()
        ]
    return fields


def _segment(number: int, segment: SpeechSegment) -> wire.TranscriptionSegment:
    return wire.TranscriptionSegment(
        id=number,
        seek=segment.seek,
        start=round(segment.start, 3),
        end=round(segment.end, 3),
        text=segment.text,
        tokens=segment.tokens,
        temperature=segment.temperature,
        avg_logprob=_finite(segment.avg_logprob),
        compression_ratio=_finite(segment.compression_ratio),
        no_speech_prob=_finite(segment.no_speech_prob),
    )


def _finite(value: float) -> float | None:
    """None for NaN, which JSON cannot hold: the model did not compute the value."""
    return value if math.isfinite(value) else None


def _usage(end: Transcribed) -> wire.AudioUsage:
    return wire.AudioUsage(seconds=math.ceil(end.duration))


# ---------------------------------------------------------------- subtitles
def srt(segments: Iterable[SpeechSegment]) -> str:
    """SubRip: numbered, with commas before the milliseconds."""
    spoken = [segment for segment in segments if segment.text.strip()]
    return "".join(f"{number}\n{_span(segment, ',')}\n{_line(segment)}\n\n" for number, segment in enumerate(spoken, 1))


def vtt(segments: Iterable[SpeechSegment]) -> str:
    """WebVTT."""
    spoken = [segment for segment in segments if segment.text.strip()]
    return "WEBVTT\n\n" + "".join(f"{_span(segment, '.')}\n{_line(segment)}\n\n" for segment in spoken)


def _span(segment: SpeechSegment, mark: str) -> str:
    return f"{_timestamp(segment.start, mark)} --> {_timestamp(segment.end, mark)}"


def _timestamp(seconds: float, mark: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"


def _line(segment: SpeechSegment) -> str:
    """The text on one line, because an empty line ends the subtitle; without arrows, which mark times."""
    return " ".join(segment.text.split()).replace("-->", "->")
