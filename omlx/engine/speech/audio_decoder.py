"""Decodes audio files to 16 kHz mono float32 in separate processes (see `omlx.engine.decoder_process`).

miniaudio decodes WAV, MP3, FLAC and OGG Vorbis, and mlx-audio's filter resamples to 16 kHz, so the samples equal those
of mlx-audio. FFmpeg (PyAV, the extra `video`) decodes other containers.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from omlx.engine.decoder_process import DecoderDied, DecoderPool, TooSlow, serve
from omlx.engine.speech.audio_file import (
    MOST_SECONDS,
    NO_AUDIO,
    NO_FFMPEG,
    SAMPLE_RATE,
    AudioError,
    AudioKind,
    AudioLimitError,
    check_size,
    check_sound,
    kind,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

DECODE_SECONDS: Final = 120
"""CPU time for one file; four hours of MP3 take a third of it."""
_MEMORY_BYTES: Final = 6 << 30
_MINIAUDIO: Final = frozenset({"wav", "flac", "mp3", "vorbis"})
_FFMPEG_NAMES: Final = {"ogg": "ogg", "mp4": "mp4", "matroska": "matroska", "aac": "aac", "aiff": "aiff", "caf": "caf"}
_SCALE: Final = 32768.0


class DecodeLimits(NamedTuple):
    """Of one file."""

    cpu_seconds: float
    audio_seconds: int


class _DecodeAudio(msgspec.Struct):
    data: bytes
    most_seconds: int


class _Sound(msgspec.Struct, tag=True):
    """The samples follow in a separate message."""

    samples: int


class _RefusedAudio(msgspec.Struct, tag=True):
    message: str
    limit: bool = False
    """It exceeds a limit."""


# ---------------------------------------------------------------- the runner's side
_pool = DecoderPool("omlx.engine.speech.audio_decoder", _MEMORY_BYTES)


def decode(
    data: bytes, check: Callable[[], None] = lambda: None, limits: DecodeLimits | None = None
) -> NDArray[np.float32]:
    """The samples of a file. Raises AudioError: AudioLimitError if it exceeds `limits` (the largest by default).
    `check` is called regularly; it may raise to cancel the decoding."""
    cpu_seconds, audio_seconds = limits or (DECODE_SECONDS, MOST_SECONDS)
    check_size(data)
    if kind(data) not in _MINIAUDIO and importlib.util.find_spec("av") is None:
        raise AudioError(NO_FFMPEG)
    try:
        with _pool.process() as decoder:
            answer = msgspec.msgpack.decode(
                decoder.ask(msgspec.msgpack.encode(_DecodeAudio(data, audio_seconds)), cpu_seconds, check),
                type=_Sound | _RefusedAudio,
            )
            if isinstance(answer, _Sound):
                return np.frombuffer(decoder.more(), np.float32, count=answer.samples)
    except TooSlow:
        raise AudioLimitError(
            f"the audio takes more than {cpu_seconds:g} seconds to decode: send a shorter or simpler file"
        ) from None
    except (DecoderDied, msgspec.MsgspecError, ValueError) as error:
        raise AudioError("the audio cannot be decoded: it is damaged, or takes too much memory") from error
    raise (AudioLimitError if answer.limit else AudioError)(answer.message)


# ---------------------------------------------------------------- the decoder's side
def samples_of(data: bytes, most_seconds: int = MOST_SECONDS) -> NDArray[np.float32]:
    """As `decode`, but in this process, without limits of time and memory."""
    audio_kind = kind(data)
    if audio_kind in _MINIAUDIO:
        return _by_miniaudio(data, audio_kind, most_seconds)
    return _by_ffmpeg(data, _FFMPEG_NAMES[audio_kind], most_seconds)


def _by_miniaudio(data: bytes, audio_kind: AudioKind, most_seconds: int) -> NDArray[np.float32]:
    import miniaudio

    read_info = {
        "wav": miniaudio.wav_get_info,
        "flac": miniaudio.flac_get_info,
        "mp3": miniaudio.mp3_get_info,
        "vorbis": miniaudio.vorbis_get_info,
    }[audio_kind]
    try:
        info = read_info(data)
        check_sound(info.sample_rate, info.nchannels, info.num_frames / max(info.sample_rate, 1), most_seconds)
        if audio_kind == "vorbis":
            # miniaudio's stream of a Vorbis file ends after the first packet.
            whole = np.asarray(miniaudio.vorbis_read(data).samples, np.int16).reshape(-1, info.nchannels)
            return _resampled(_mixed(whole, info.sample_rate), info.sample_rate, len(whole))
        chunks = miniaudio.stream_memory(
            data,
            output_format=miniaudio.SampleFormat.SIGNED16,
            nchannels=1,
            sample_rate=info.sample_rate,
            frames_to_read=info.sample_rate,
        )
        pieces = _counted((np.asarray(chunk, np.int16) for chunk in chunks), info.sample_rate, most_seconds)
        return _resampled(pieces, info.sample_rate, info.num_frames)
    except miniaudio.MiniaudioError:
        raise AudioError(NO_AUDIO) from None


def _mixed(whole: NDArray[np.int16], rate: int) -> Iterator[NDArray[np.float32]]:
    """The mean of all channels, a second at a time."""
    for start in range(0, len(whole), rate):
        yield whole[start : start + rate].mean(axis=1, dtype=np.float32) / np.float32(_SCALE)


def _counted(pieces: Iterator[NDArray[np.int16]], rate: int, most_seconds: int) -> Iterator[NDArray[np.float32]]:
    """The pieces as float32. Raises AudioError if the audio is longer than allowed, whatever its header states."""
    done = 0
    for piece in pieces:
        done += len(piece)
        check_sound(rate, 1, done / rate, most_seconds)
        yield piece.astype(np.float32) / np.float32(_SCALE)


def _resampled(pieces: Iterator[NDArray[np.float32]], rate: int, frames: int) -> NDArray[np.float32]:
    """The pieces at 16 kHz as one array. Raises AudioError if there are no samples."""
    first = next(pieces, None)
    if first is None or not len(first):
        raise AudioError("the file has no audio")
    whole = chain([first], pieces)
    if rate == SAMPLE_RATE:
        return np.concatenate(list(whole))
    from mlx_audio.resample import resample_audio_chunks  # late: imports SciPy, which 16 kHz files do not need

    resampled: NDArray[np.float32] = resample_audio_chunks(
        whole, rate, SAMPLE_RATE, frames, chunk_duration_seconds=1.0, max_output_frames=MOST_SECONDS * SAMPLE_RATE
    )
    return resampled.astype(np.float32, copy=False)


def _by_ffmpeg(data: bytes, container: str, most_seconds: int) -> NDArray[np.float32]:
    import av

    options = {"protocol_whitelist": "", "format_whitelist": container}
    pieces: list[NDArray[np.float32]] = []
    try:
        with av.open(io.BytesIO(data), "r", format=container, options=options, metadata_errors="replace") as file:
            stream = next(iter(file.streams.audio), None)
            if stream is None:
                raise AudioError("the file has no audio")
            codec = stream.codec_context
            seconds = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
            check_sound(codec.sample_rate, codec.channels, seconds, most_seconds)
            resampler: Any = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
            done = 0
            for frame in chain(file.decode(stream), [None]):
                for part in resampler.resample(frame):
                    samples = part.to_ndarray().reshape(-1)
                    done += len(samples)
                    check_sound(SAMPLE_RATE, 1, done / SAMPLE_RATE, most_seconds)
                    pieces.append(samples.astype(np.float32) / np.float32(_SCALE))
    except (av.error.FFmpegError, ValueError, OverflowError):
        raise AudioError(NO_AUDIO) from None
    if not pieces:
        raise AudioError("the file has no audio")
    return np.concatenate(pieces)


def _answers(order: bytearray) -> Iterator[bytes | memoryview]:
    try:
        file = msgspec.msgpack.decode(order, type=_DecodeAudio)
        samples = samples_of(file.data, file.most_seconds)
    except AudioError as error:
        yield msgspec.msgpack.encode(_RefusedAudio(str(error), isinstance(error, AudioLimitError)))
    except MemoryError:
        yield msgspec.msgpack.encode(_RefusedAudio("the audio takes too much memory to decode"))
    else:
        yield msgspec.msgpack.encode(_Sound(len(samples)))
        yield samples.tobytes()


if __name__ == "__main__":
    serve(_answers, _MEMORY_BYTES)
