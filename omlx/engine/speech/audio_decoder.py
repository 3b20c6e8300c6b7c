"""Decoding audio files in processes that can be ended: 16 kHz, one channel, float32 (see
`omlx.engine.decoder_process`).

miniaudio reads WAV, MP3, FLAC and OGG Vorbis, and mlx-audio's filter makes 16 kHz of other rates: the samples are those
that mlx-audio itself would hear. Other containers are read by FFmpeg (PyAV, the extra `video`).
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

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
    check_size,
    check_sound,
    kind,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

DECODE_SECONDS: Final = 120
"""Of processor time for one file; four hours of MP3 take a third of it."""
_MEMORY_BYTES: Final = 6 << 30
_MINIAUDIO: Final = frozenset({"wav", "flac", "mp3", "vorbis"})
_FFMPEG_NAMES: Final = {"ogg": "ogg", "mp4": "mp4", "matroska": "matroska", "aac": "aac", "aiff": "aiff", "caf": "caf"}
_SCALE: Final = 32768.0


class _DecodeAudio(msgspec.Struct):
    data: bytes


class _Sound(msgspec.Struct, tag=True):
    """The samples follow as a message of their own."""

    samples: int


class _AudioRefused(msgspec.Struct, tag=True):
    message: str


# ---------------------------------------------------------------- the runner's side
_pool = DecoderPool("omlx.engine.speech.audio_decoder")


def decode(data: bytes, check: Callable[[], None] = lambda: None) -> NDArray[np.float32]:
    """The samples of a file. Raises AudioError. `check` is called now and then and may raise: then the work ends."""
    check_size(data)
    if kind(data) not in _MINIAUDIO and importlib.util.find_spec("av") is None:
        raise AudioError(NO_FFMPEG)
    try:
        with _pool.process() as decoder:
            answer = msgspec.msgpack.decode(
                decoder.ask(msgspec.msgpack.encode(_DecodeAudio(data)), DECODE_SECONDS, check),
                type=_Sound | _AudioRefused,
            )
            if isinstance(answer, _Sound):
                return np.frombuffer(decoder.more(), np.float32, count=answer.samples)
    except TooSlow:
        raise AudioError(
            f"the audio takes more than {DECODE_SECONDS} seconds to decode: send a shorter or simpler file"
        ) from None
    except (DecoderDied, msgspec.MsgspecError, ValueError) as error:
        raise AudioError("the audio cannot be read: decoding it takes too much memory, or fails") from error
    raise AudioError(answer.message)


# ---------------------------------------------------------------- the decoder's side
def samples_of(data: bytes) -> NDArray[np.float32]:
    """As `decode`, in this process: without its limits of time and memory."""
    found = kind(data)
    return _by_miniaudio(data, found) if found in _MINIAUDIO else _by_ffmpeg(data, _FFMPEG_NAMES[found])


def _by_miniaudio(data: bytes, found: AudioKind) -> NDArray[np.float32]:
    import miniaudio

    read_info = {
        "wav": miniaudio.wav_get_info,
        "flac": miniaudio.flac_get_info,
        "mp3": miniaudio.mp3_get_info,
        "vorbis": miniaudio.vorbis_get_info,
    }[found]
    try:
        info = read_info(data)
        check_sound(info.sample_rate, info.nchannels, info.num_frames / max(info.sample_rate, 1))
        chunks = miniaudio.stream_memory(
            data,
            output_format=miniaudio.SampleFormat.SIGNED16,
            nchannels=1,
            sample_rate=info.sample_rate,
            frames_to_read=info.sample_rate,
        )
        pieces = _counted((np.asarray(chunk, np.int16) for chunk in chunks), info.sample_rate)
        return _resampled(pieces, info.sample_rate, info.num_frames)
    except miniaudio.MiniaudioError:
        raise AudioError(NO_AUDIO) from None


def _counted(pieces: Iterator[NDArray[np.int16]], rate: int) -> Iterator[NDArray[np.float32]]:
    """The pieces as float32; a file that is longer than it says does not go on for ever. Raises AudioError."""
    done = 0
    for piece in pieces:
        done += len(piece)
        check_sound(rate, 1, done / rate)
        yield piece.astype(np.float32) / np.float32(_SCALE)


def _resampled(pieces: Iterator[NDArray[np.float32]], rate: int, frames: int) -> NDArray[np.float32]:
    """Raises AudioError where there are no samples."""
    first = next(pieces, None)
    if first is None or not len(first):
        raise AudioError("there is no sound in the audio file")
    whole = chain([first], pieces)
    if rate == SAMPLE_RATE:
        return np.concatenate(list(whole))
    from mlx_audio.resample import resample_audio_chunks  # SciPy's filters, which most files do without

    found: NDArray[np.float32] = resample_audio_chunks(
        whole, rate, SAMPLE_RATE, frames, chunk_duration_seconds=1.0, max_output_frames=MOST_SECONDS * SAMPLE_RATE
    )
    return found.astype(np.float32, copy=False)


def _by_ffmpeg(data: bytes, container: str) -> NDArray[np.float32]:
    import av

    shut = {"protocol_whitelist": "", "format_whitelist": container}
    pieces: list[NDArray[np.float32]] = []
    try:
        with av.open(io.BytesIO(data), "r", format=container, options=shut, metadata_errors="replace") as file:
            stream = next(iter(file.streams.audio), None)
            if stream is None:
                raise AudioError("there is no sound in the audio file")
            codec = stream.codec_context
            seconds = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
            check_sound(codec.sample_rate, codec.channels, seconds)
            resampler: Any = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
            done = 0
            for frame in chain(file.decode(stream), [None]):
                for part in resampler.resample(frame):
                    samples = part.to_ndarray().reshape(-1)
                    done += len(samples)
                    check_sound(SAMPLE_RATE, 1, done / SAMPLE_RATE)
                    pieces.append(samples.astype(np.float32) / np.float32(_SCALE))
    except (av.error.FFmpegError, ValueError, OverflowError):
        raise AudioError(NO_AUDIO) from None
    if not pieces:
        raise AudioError("there is no sound in the audio file")
    return np.concatenate(pieces)


def _answers(order: bytearray) -> Iterator[bytes | memoryview]:
    try:
        samples = samples_of(msgspec.msgpack.decode(order, type=_DecodeAudio).data)
    except AudioError as error:
        yield msgspec.msgpack.encode(_AudioRefused(str(error)))
    except MemoryError:
        yield msgspec.msgpack.encode(_AudioRefused("the audio takes too much memory to decode"))
    else:
        yield msgspec.msgpack.encode(_Sound(len(samples)))
        yield samples.tobytes()


if __name__ == "__main__":
    serve(_answers, _MEMORY_BYTES)
