"""Audio files are decoded as mlx-audio decodes them, in processes that can be ended; others get a sentence."""

from __future__ import annotations

import io
import random
import re
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
import pytest

from omlx.engine import blas

blas.prepare()

from mlx_audio.stt.utils import load_audio

from omlx.engine.speech import audio_decoder
from omlx.engine.speech.audio_file import SAMPLE_RATE, AudioError, AudioLimitError, kind
from tests.support.processes import command_line
from tests.support.tiny_whisper import as_wav, sound


def encoded(container: str, codec: str, *, rate: int = 44_100, seconds: float = 1.0) -> bytes:
    """The sound in a file that FFmpeg writes."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=rate)
        stream.layout = "stereo"
        stream.codec_context.options = {"strict": "experimental"}  # FFmpeg says so of its Vorbis
        samples = (sound(seconds, rate=rate) * 32767).astype(np.int16)
        resampler = av.AudioResampler(format=stream.format.name, layout="stereo", rate=rate)
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.rate = rate
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return buffer.getvalue()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "audio_decoder" in command_line(child)}


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (as_wav(sound(2)), "wav"),
        (as_wav(sound(2, rate=8000), rate=8000), "wav"),
        (as_wav(sound(2, rate=44_100), rate=44_100, channels=2), "wav"),
        (encoded("flac", "flac"), "flac"),
        (encoded("mp3", "libmp3lame"), "mp3"),
    ],
    ids=["16 kHz", "8 kHz", "stereo", "flac", "mp3"],
)
def test_the_samples_are_those_that_the_library_hears(tmp_path: Path, data: bytes, name: str) -> None:
    (tmp_path / f"sound.{name}").write_bytes(data)
    assert kind(data) == name
    ours = audio_decoder.decode(data)
    theirs = np.asarray(load_audio(str(tmp_path / f"sound.{name}")))
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("container", "codec", "found"),
    [("ogg", "vorbis", "vorbis"), ("ogg", "libopus", "ogg"), ("mp4", "aac", "mp4"), ("webm", "libopus", "matroska")],
)
def test_other_containers_are_the_same_sound(container: str, codec: str, found: str) -> None:
    data = encoded(container, codec, rate=48_000)
    assert kind(data) == found
    ours = audio_decoder.decode(data)
    assert abs(len(ours) - SAMPLE_RATE) < 2500, "encoders fill up their last frame"
    original = sound(1.0, rate=48_000)[::3]
    loudness = [float(np.sqrt(np.mean(np.square(one[2000:14_000])))) for one in (ours, original)]
    # One channel becomes two of half the power each.
    assert loudness[0] == pytest.approx(loudness[1] / np.sqrt(2), rel=0.1)


def header(*, rate: int = 16_000, channels: int = 1, size: int = 0xFFFFFFFF, rest: bytes = b"") -> bytes:
    """A WAV that claims what it wants."""
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2 & 0xFFFFFFFF, channels * 2 & 0xFFFF, 16)
    return (
        b"RIFF\xff\xff\xff\xffWAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", size) + rest
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the audio file is empty"),
        (b"hello", "not audio in a supported format"),
        (b"GIF89a" + bytes(99), "not audio in a supported format"),
        (b"ID3" + bytes(500), "not audio in a supported format"),
        (b"fLaC" + bytes(500), "not audio in a supported format"),
        (b"OggS" + bytes(500), "not audio in a supported format"),
        (b"\0\0\0\x18ftypM4A " + bytes(500), "not audio in a supported format"),
        (b"\x1aE\xdf\xa3" + bytes(500), "not audio in a supported format"),
        (header(rate=1, rest=bytes(100)), "the audio has 1 samples a second: 1,000 to 768,000 are supported"),
        (
            header(channels=200, rest=bytes(10_000)),
            r"not audio in a supported|200 channels: 1 to 32 are supported",
        ),
        (header(size=0), "no audio|not audio"),
        (encoded("mp3", "libmp3lame")[:200], "no audio|not audio"),
    ],
    ids=["empty", "text", "gif", "id3", "flac", "ogg", "m4a", "webm", "rate", "channels", "silent", "cut"],
)
def test_nonsense_gets_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(AudioError, match=sentence):
        audio_decoder.decode(data)


def test_too_long_a_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few megabytes of silence in FLAC are days of sound."""
    data = encoded("flac", "flac", rate=16_000, seconds=3)
    info = bytearray(data)
    at = info.index(b"fLaC") + 8 + 10
    # The number of samples, of which the upper four bits stand beside those of the rate.
    packed = int.from_bytes(info[at : at + 8], "big")
    info[at : at + 8] = (packed & ~((1 << 36) - 1) | 5 * 3600 * 16_000).to_bytes(8, "big")
    with pytest.raises(AudioError, match="the audio is 18,000 seconds long; the limit is 14,400"):
        audio_decoder.decode(bytes(info))


def test_a_file_that_takes_too_long_is_given_up_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    good = as_wav(sound(1))
    audio_decoder.decode(good)
    slow = encoded("mp3", "libmp3lame", rate=8000, seconds=900)
    monkeypatch.setattr(audio_decoder, "DECODE_SECONDS", 0.2)
    before = children()
    with pytest.raises(AudioError, match=r"takes more than 0\.2 seconds to decode"):
        audio_decoder.decode(slow)
    assert len(children()) == len(before) - 1, "its process was ended"
    monkeypatch.undo()
    assert len(audio_decoder.decode(good)) == SAMPLE_RATE


def damaged(data: bytes, dice: random.Random) -> bytes:
    """The file with bits turned, cut off, with a part again and again, or with sizes that are too large."""
    file = bytearray(data)
    match dice.randrange(4):
        case 0:
            for _ in range(dice.randint(1, 40)):
                file[dice.randrange(len(file))] ^= 1 << dice.randrange(8)
        case 1:
            del file[dice.randrange(1, len(file)) :]
        case 2:
            at = dice.randrange(len(file))
            file[at:at] = file[at : at + 2000] * dice.randint(2, 50)
        case _:
            at = dice.randrange(min(len(file), 200))
            file[at : at + 4] = b"\xff" * 4
    return bytes(file)


def test_a_damaged_file_is_sound_or_gets_a_sentence() -> None:
    """Whatever a library does with it, in a process of its own."""
    dice = random.Random(33)
    whole = [as_wav(sound(0.5))]
    whole += [encoded(*kinds, rate=48_000, seconds=0.3) for kinds in (
        ("mp3", "libmp3lame"), ("flac", "flac"), ("ogg", "vorbis"), ("mp4", "aac"), ("webm", "libopus"),
    )]  # fmt: skip
    for data in whole * 4:
        try:
            assert np.isfinite(audio_decoder.decode(damaged(data, dice))).all()
        except AudioError as error:
            assert re.match("the (audio|file) ", str(error))


def test_a_file_beyond_the_limits_it_is_given_is_refused_as_that() -> None:
    """Whether its header tells or not."""
    limits = audio_decoder.DecodeLimits(cpu_seconds=60, audio_seconds=2)
    for data in (as_wav(sound(3)), encoded("mp3", "libmp3lame", rate=8000, seconds=3), header(rest=bytes(200_000))):
        with pytest.raises(AudioLimitError, match="seconds long; the limit is 2"):
            audio_decoder.decode(data, limits=limits)
    assert len(audio_decoder.decode(as_wav(sound(1)), limits=limits)) == SAMPLE_RATE


def test_the_work_ends_when_nobody_waits_for_it() -> None:
    class Left(Exception):
        pass

    def check() -> None:
        raise Left

    before = children()
    with pytest.raises(Left):
        audio_decoder.decode(encoded("mp3", "libmp3lame", rate=8000, seconds=300), check)
    assert len(children()) <= len(before)


def test_without_ffmpeg_its_files_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio_decoder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AudioError, match="needs FFmpeg on the server"):
        audio_decoder.decode(encoded("mp4", "aac"))
