"""`omlx transcribe`: audio files to text or subtitles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, is_terminal, out, printable, run_async
from omlx.cli.progress import Display
from omlx.cli.pull import pull
from omlx.client import Client, ClientError
from omlx.messages.speech import SpeechSegment
from omlx.protocols.openai import audio
from omlx.protocols.openai import audio_wire as wire

_FORMATS = ("text", "srt", "vtt", "json")
_STDIN = "-"


class _Options(msgspec.Struct, frozen=True):
    model: str
    format: str
    language: str
    prompt: str
    output: Path | None
    """The folder for the results; None: stdout."""

    def fields(self) -> dict[str, str]:
        """The form fields that have a value."""
        optional = {"model": self.model, "language": self.language, "prompt": self.prompt}
        fixed = {"response_format": "verbose_json", "stream": "true", "progress": "true"}
        return {name: value for name, value in optional.items() if value} | fixed


@verb("transcribe", usage="FILE...", count=Count(1))
@click.option("--model", default="whisper", help="Speech model (default: whisper)")
@click.option("--format", default="text", help="text, srt, vtt or json (default: text)")
@click.option("--language", default="", help="Language of the speech, such as de (default: detected)")
@click.option("--prompt", default="", help="Text that precedes the audio, for names and spellings")
@click.option("--output", help="Folder for the results, one file each (default: print them)")
def command(args: tuple[str, ...], model: str, format: str, language: str, prompt: str, output: str | None) -> int:
    """Transcribe audio files

    Reads WAV, MP3, FLAC and OGG, and with FFmpeg (pip install "omlx[video]") also M4A and WebM; - is standard input.
    Pulls the model if it is missing. Subtitles of several files need --output.
    """
    if format not in _FORMATS:
        raise CliError(f"invalid value for --format: it must be {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}")
    folder = Path(output) if output is not None else None
    if len(args) > 1 and format in ("srt", "vtt") and folder is None:
        raise CliError(f"{format} of several files cannot be printed: use --output FOLDER")
    if args.count(_STDIN) > 1:
        raise CliError("standard input (-) can be read only once")
    if folder is not None and not folder.is_dir():
        raise CliError(f"--output: '{folder}' is not a folder")
    return run_async(_transcribe(args, _Options(model, format, language, prompt, folder)))


async def _transcribe(files: Sequence[str], options: _Options) -> int:
    """Returns the exit code: 1 if a file could not be transcribed. The remaining files are transcribed anyway."""
    failed = False
    async with connected() as client:
        await _ensure(client, options.model)
        for file in files:
            try:
                _write(file, await _transcribe_file(client, file, options), options, several=len(files) > 1)
            except (CliError, ClientError) as error:
                if len(files) == 1:
                    raise
                err(f"Error: {file}: {error}")
                failed = True
    return int(failed)


async def _ensure(client: Client, model: str) -> None:
    """Pull the model if it is missing."""
    try:
        await client.show(model)
    except ClientError as error:
        if error.status != 404:
            raise
        await pull(client, model)


async def _transcribe_file(client: Client, file: str, options: _Options) -> wire.TranscriptVerboseDone:
    """Transcribe one file, with its progress on stderr."""
    name, content = _read(file)
    with Display() as display:
        display.step(f"transcribing {printable(name)}")
        async for event in client.transcribe((name, content), options.fields()):
            if isinstance(event, wire.TranscriptVerboseDone):
                display.stop(clear=True)
                return event
            if isinstance(event, wire.TranscriptProgress) and event.total > 0:
                done = int(len(content) * min(event.done / event.total, 1.0))
                display.bytes(name, f"{printable(name)}:", done, len(content))
    raise ClientError("the server ended the answer before it was complete")


def _read(file: str) -> tuple[str, bytes]:
    """The base name and the content of a file. Raises CliError."""
    if file == _STDIN:
        if is_terminal(sys.stdin):
            raise CliError("standard input is a terminal: send an audio file, as in `omlx transcribe - < talk.wav`")
        return "stdin", sys.stdin.buffer.read()
    path = Path(file).expanduser()
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise CliError(f"couldn't read '{file}': {error.strerror}") from error


def _write(file: str, transcription: wire.TranscriptVerboseDone, options: _Options, *, several: bool) -> None:
    """Print or save one result. Raises CliError if it cannot be written."""
    text = _rendered(file, transcription, options.format)
    if options.output is None:
        heading = f"==> {file} <==\n" if several and options.format == "text" else ""
        out(heading + (text if options.format == "json" else printable(text)), end="")
        return
    name = "stdin" if file == _STDIN else Path(file).stem
    ending = {"text": "txt"}.get(options.format, options.format)
    path = options.output / f"{name}.{ending}"
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise CliError(f"couldn't write '{path}': {error.strerror}") from error
    err(f"wrote '{path}'")


def _rendered(file: str, transcription: wire.TranscriptVerboseDone, form: str) -> str:
    if form == "text":
        return transcription.text + "\n"
    if form == "json":
        fields = {"file": file, **msgspec.to_builtins(transcription)}
        fields.pop("type")
        return msgspec.json.encode(fields).decode() + "\n"
    segments = [_segment(it) for it in transcription.segments or []]
    return audio.srt(segments) if form == "srt" else audio.vtt(segments)


def _segment(segment: wire.TranscriptionSegment) -> SpeechSegment:
    """A wire segment as the subtitle writers take it."""
    return SpeechSegment(
        id=segment.id, seek=segment.seek, start=segment.start, end=segment.end, text=segment.text,
        tokens=segment.tokens, temperature=segment.temperature,
        avg_logprob=0.0, compression_ratio=0.0, no_speech_prob=0.0,
    )  # fmt: skip
