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


class _Wanted(msgspec.Struct, frozen=True):
    model: str
    format: str
    language: str
    prompt: str
    output: Path | None
    """The folder for the results; None: stdout."""

    def fields(self) -> dict[str, str]:
        """Of the form, without what was not given."""
        given = {"model": self.model, "language": self.language, "prompt": self.prompt}
        fixed = {"response_format": "verbose_json", "stream": "true", "progress": "true"}
        return {name: value for name, value in given.items() if value} | fixed


@verb("transcribe", usage="FILE...", count=Count(1))
@click.option("--model", default="whisper", help="Speech model (default: whisper)")
@click.option("--format", default="text", help="text, srt, vtt or json (default: text)")
@click.option("--language", default="", help="Language of the speech, such as de (default: the model tells)")
@click.option("--prompt", default="", help="Text that might stand before the audio: names, spellings")
@click.option("--output", help="Folder for the results, a file for each (default: they are printed)")
def command(args: tuple[str, ...], model: str, format: str, language: str, prompt: str, output: str | None) -> int:
    """Write down what is said in audio files

    WAV, MP3, FLAC and OGG, with FFmpeg (pip install "omlx[video]") also M4A and WebM; - is standard input. A model that
    is not there is pulled. Subtitles of several files need --output.
    """
    if format not in _FORMATS:
        raise CliError(f"invalid value for --format: it must be {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}")
    folder = Path(output) if output is not None else None
    if len(args) > 1 and format in ("srt", "vtt") and folder is None:
        raise CliError(f"{format} of several files cannot be printed one after the other: use --output FOLDER")
    if args.count(_STDIN) > 1:
        raise CliError("standard input (-) can be read once only")
    if folder is not None and not folder.is_dir():
        raise CliError(f"--output: '{folder}' is no folder")
    return run_async(_transcribe(args, _Wanted(model, format, language, prompt, folder)))


async def _transcribe(files: Sequence[str], wanted: _Wanted) -> int:
    """Returns the exit code: 1 where a file could not be transcribed; the others are all the same."""
    failed = False
    async with connected() as client:
        await _ensure(client, wanted.model)
        for file in files:
            try:
                _write(file, await _heard(client, file, wanted), wanted, several=len(files) > 1)
            except (CliError, ClientError) as error:
                if len(files) == 1:
                    raise
                err(f"Error: {file}: {error}")
                failed = True
    return int(failed)


async def _ensure(client: Client, model: str) -> None:
    """Pull the model where it is not there."""
    try:
        await client.show(model)
    except ClientError as error:
        if error.status != 404:
            raise
        await pull(client, model)


async def _heard(client: Client, file: str, wanted: _Wanted) -> wire.TranscriptVerboseDone:
    """What is said in one file; how far it is is shown on stderr."""
    name, content = _read(file)
    with Display() as display:
        display.step(f"transcribing {printable(name)}")
        async for event in client.transcribe((name, content), wanted.fields()):
            if isinstance(event, wire.TranscriptVerboseDone):
                display.stop(clear=True)
                return event
            if isinstance(event, wire.TranscriptProgress) and event.total > 0:
                done = int(len(content) * min(event.done / event.total, 1.0))
                display.bytes(name, f"{printable(name)}:", done, len(content))
    raise ClientError("the server ended the answer before it was complete")


def _read(file: str) -> tuple[str, bytes]:
    """The name of a file without its folder, and its content. Raises CliError."""
    if file == _STDIN:
        if is_terminal(sys.stdin):
            raise CliError("standard input is a terminal: send an audio file, as in `omlx transcribe - < talk.wav`")
        return "stdin", sys.stdin.buffer.read()
    path = Path(file).expanduser()
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise CliError(f"couldn't read '{file}': {error.strerror}") from error


def _write(file: str, heard: wire.TranscriptVerboseDone, wanted: _Wanted, *, several: bool) -> None:
    """Raises CliError where the result cannot be kept."""
    text = _rendered(file, heard, wanted.format)
    if wanted.output is None:
        heading = f"==> {file} <==\n" if several and wanted.format == "text" else ""
        out(heading + (text if wanted.format == "json" else printable(text)), end="")
        return
    name = "stdin" if file == _STDIN else Path(file).stem
    ending = {"text": "txt"}.get(wanted.format, wanted.format)
    path = wanted.output / f"{name}.{ending}"
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise CliError(f"couldn't write '{path}': {error.strerror}") from error
    err(f"wrote '{path}'")


def _rendered(file: str, heard: wire.TranscriptVerboseDone, form: str) -> str:
    if form == "text":
        return heard.text + "\n"
    if form == "json":
        found = {"file": file, **msgspec.to_builtins(heard)}
        found.pop("type")
        return msgspec.json.encode(found).decode() + "\n"
    segments = [_segment(segment) for segment in heard.segments or []]
    return audio.srt(segments) if form == "srt" else audio.vtt(segments)


def _segment(told: wire.TranscriptionSegment) -> SpeechSegment:
    """A segment as subtitles are made of it."""
    return SpeechSegment(
        id=told.id, seek=told.seek, start=told.start, end=told.end, text=told.text, tokens=told.tokens,
        temperature=told.temperature, avg_logprob=0.0, compression_ratio=0.0, no_speech_prob=0.0,
    )  # fmt: skip
