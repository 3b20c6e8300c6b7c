"""OpenAI's audio routes: from the fields of a form to a `Transcribe`, and from segments to its five formats."""

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
"""Characters; a model hears the last 223 tokens of it."""


class AudioFields(NamedTuple):
    """The fields of a form as they came: "" or an empty list where there was none."""

    model: str
    language: str
    prompt: str
    response_format: str
    temperature: str
    granularities: Sequence[str]
    stream: str
    progress: str


class AudioRequest(NamedTuple):
    """What is wanted of a file."""

    model: str
    transcribe: Transcribe
    format: Format
    granularities: frozenset[str]
    stream: bool
    progress: bool
    """Events tell how far it is."""


def read_request(fields: AudioFields, audio: bytes, task: SpeechTask) -> AudioRequest:
    """Raises HTTPError."""
    form = fields.response_format or "json"
    if form not in get_args(Format):
        raise HTTPError(
            400, f"response_format {form[:50]!r} is not supported: use json, text, srt, vtt or verbose_json"
        )
    wanted = frozenset(fields.granularities)
    if unknown := sorted(wanted.difference(_GRANULARITIES)):
        raise HTTPError(400, f"timestamp_granularities {unknown[0][:50]!r} is unknown: use segment, word or both")
    if wanted and form != "verbose_json":
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
        words="word" in wanted,
    )
    stream, progress = _flag("stream", fields.stream), _flag("progress", fields.progress)
    if stream and form in {"srt", "vtt"}:
        raise HTTPError(400, f"response_format {form} cannot be streamed: use json, text or verbose_json")
    return AudioRequest(fields.model, request, form, wanted or frozenset({"segment"}), stream, progress)  # type: ignore[arg-type]


def check_speech(name: str, capabilities: Collection[str]) -> None:
    """Raises HTTPError where the model does not write down speech."""
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
class Heard(NamedTuple):
    """A whole transcription."""

    segments: Sequence[SpeechSegment]
    end: Transcribed


def content_type(form: Format) -> str:
    kinds = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
    return f"{kinds.get(form, 'application/json')}; charset=utf-8"


def plain(form: Format, heard: Heard) -> str:
    """The answer in a format that is no JSON."""
    if form == "srt":
        return srt(heard.segments)
    return vtt(heard.segments) if form == "vtt" else heard.end.text.strip() + "\n"


def whole(asked: AudioRequest, heard: Heard) -> wire.TranscriptionResponse | wire.VerboseTranscription:
    """The answer in a format that is JSON."""
    if asked.format == "verbose_json":
        return wire.VerboseTranscription(**_verbose(asked, heard))
    return wire.TranscriptionResponse(text=heard.end.text.strip(), usage=_usage(heard.end))


def done(asked: AudioRequest, heard: Heard) -> wire.TranscriptTextDone | wire.TranscriptVerboseDone:
    """The last event of a stream."""
    if asked.format == "verbose_json":
        return wire.TranscriptVerboseDone(**_verbose(asked, heard))
    return wire.TranscriptTextDone(text=heard.end.text.strip(), usage=_usage(heard.end))


class DeltaTexts:
    """The texts of a stream, which together are the text of its end: without blanks around it."""

    def __init__(self) -> None:
        self._started = False
        self._held = ""

    def next(self, text: str) -> str:
        """What can be sent, of this text and of blanks before it."""
        text = self._held + text if self._started else text.lstrip()
        kept = text.rstrip()
        self._started = self._started or bool(kept)
        self._held = text[len(kept) :]
        return kept


def _verbose(asked: AudioRequest, heard: Heard) -> dict[str, Any]:
    spoken = [segment for segment in heard.segments if segment.text]
    found: dict[str, Any] = {
        "task": asked.transcribe.task,
        "language": language_name(heard.end.language),
        "duration": round(heard.end.duration, 3),
        "text": heard.end.text.strip(),
        "usage": _usage(heard.end),
    }
    if "segment" in asked.granularities:
        found["segments"] = [_segment(number, segment) for number, segment in enumerate(spoken)]
    if "word" in asked.granularities:
        found["words"] = [
            wire.TranscriptionWord(word=word.word.strip(), start=word.start, end=word.end)
            for segment in spoken
            for word in segment.words
            if word.word.strip()
        ]
    return found


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
    """JSON has no NaN, which a figure is that the model does not give."""
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
    """One line: an empty one would end the subtitle, and an arrow would be read as times."""
    return " ".join(segment.text.split()).replace("-->", "->")
