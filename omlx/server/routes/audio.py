"""/v1/audio/transcriptions and /v1/audio/translations: an audio file in a form in, text or subtitles out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from litestar import post
from omlx_registry import ModelSpec

from omlx.messages.frames import PrefillProgress
from omlx.messages.speech import Segments, SpeechSegment, SpeechTask, Transcribed
from omlx.pool import Pool
from omlx.protocols.http_error import HTTPError
from omlx.protocols.openai import audio as dialect
from omlx.protocols.openai import audio_wire as wire
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.error_formats import OPENAI
from omlx.server.forms import Form, read_form
from omlx.server.names import double_quoted, required
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, LiveObject, LiveStream, encode, event

_FRAMES_PER_SECOND = 100.0


@post("/v1/audio/transcriptions", status_code=200, opt=route_opt("openai", "passed", body="media"))
async def transcriptions(
    request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings
) -> Answer:
    return await _answer(await read_form(request, settings.max_body), "transcribe", registry, pool)


@post("/v1/audio/translations", status_code=200, opt=route_opt("openai", "passed", body="media"))
async def translations(
    request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings
) -> Answer:
    return await _answer(await read_form(request, settings.max_body), "translate", registry, pool)


async def _answer(form: Form, task: SpeechTask, registry: GivenRegistry, pool: Pool) -> Answer:
    fields = dialect.AudioFields(
        model=required(form.text("model")),
        language=form.text("language"),
        prompt=form.text("prompt"),
        response_format=form.text("response_format"),
        temperature=form.text("temperature"),
        granularities=[
            *form.fields.get("timestamp_granularities[]", []),
            *form.fields.get("timestamp_granularities", []),
        ],
        stream=form.text("stream"),
        progress=form.text("progress"),
    )
    audio_request = dialect.read_request(fields, _file(form), task)

    def respond(spec: ModelSpec) -> Answer:
        dialect.check_speech(audio_request.model, spec.capabilities)
        if audio_request.stream:
            return LiveStream(_stream(pool, spec, audio_request), OPENAI)
        return LiveObject(_whole(pool, spec, audio_request), dialect.content_type(audio_request.format))

    return await served(registry, audio_request.model, respond, double_quoted)


def _file(form: Form) -> bytes:
    """The content of the file part. Raises HTTPError."""
    files = form.files.get("file")
    if not files:
        raise HTTPError(400, "file is required: send the audio file as a form field")
    if not files[-1].content:
        raise HTTPError(400, "audio file is empty")
    return files[-1].content


async def _whole(pool: Pool, spec: ModelSpec, audio_request: dialect.AudioRequest) -> bytes:
    segments: list[SpeechSegment] = []
    async with (
        await pool.acquire(spec) as lease,
        aclosing(lease.transcribe(audio_request.transcribe, whole=True)) as events,
    ):
        async for item in events:
            if isinstance(item, Segments):
                segments += item.items
            elif isinstance(item, Transcribed):
                transcription = dialect.WholeTranscription(segments, item)
    if audio_request.format in {"json", "verbose_json"}:
        return encode(dialect.whole(audio_request, transcription))
    return dialect.plain(audio_request.format, transcription).encode()


async def _stream(pool: Pool, spec: ModelSpec, audio_request: dialect.AudioRequest) -> AsyncIterator[bytes]:
    segments: list[SpeechSegment] = []
    texts = dialect.DeltaTexts()
    last = b""
    async with await pool.acquire(spec) as lease, aclosing(lease.transcribe(audio_request.transcribe)) as events:
        async for item in events:
            if isinstance(item, Segments):
                segments += item.items
                if text := texts.next(item.text):
                    yield event(wire.TranscriptTextDelta(delta=text))
            elif isinstance(item, Transcribed):
                last = event(dialect.done(audio_request, dialect.WholeTranscription(segments, item)))
            elif isinstance(item, PrefillProgress) and audio_request.progress:
                yield event(
                    wire.TranscriptProgress(done=item.done / _FRAMES_PER_SECOND, total=item.total / _FRAMES_PER_SECOND)
                )
    # The lease is released before the client gets the last event.
    yield last


HANDLERS = (transcriptions, translations)
