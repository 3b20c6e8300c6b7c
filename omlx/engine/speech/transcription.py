"""A *transcription* of one file, window by window: what mlx-audio's `generate` does in one call, in steps.

A *window* is up to 30 seconds of audio. It is decoded greedily first, and again with higher temperatures if the text
is repetitive or its probability is low. The next window begins where the last segment ends. Each decoding is a step, so
other jobs can run in between. The text equals that of `generate`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
from mlx_audio.stt.models.whisper.audio import FRAMES_PER_SECOND, HOP_LENGTH, N_FRAMES, SAMPLE_RATE
from mlx_audio.stt.models.whisper.decoding import DecodingOptions
from mlx_audio.stt.models.whisper.timing import add_word_timestamps

from omlx.engine.speech.mel import MelSpectrogram
from omlx.engine.speech.network import Network
from omlx.messages.speech import SpeechSegment, SpeechTask, Word

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TEMPERATURE_STEP = 0.2
_MOST_COMPRESSION = 2.4
"""A text with a higher compression ratio is repetitive."""
_LEAST_LOGPROB = -1.0
"""Mean log probability of a token, below which a text is retried."""
_NO_SPEECH = 0.6
_HOT = 0.5
"""A text of a higher temperature is not part of the next window's prompt."""
_MOST_STILL = 3
"""Consecutive windows without progress, after which the window is skipped."""
_BROKEN = "\ufffd"


class SpeechOptions(NamedTuple):
    """As in `omlx.messages.speech.Transcribe`; `language` is a code, "" to detect it."""

    task: SpeechTask = "transcribe"
    language: str = ""
    prompt: str = ""
    temperature: float = 0.0
    words: bool = False
    seed: int = 0


class Step(NamedTuple):
    """The result of one step: new text and segments, and the frames (10 ms) transcribed so far."""

    done: int
    text: str = ""
    segments: tuple[SpeechSegment, ...] = ()


def temperatures(first: float) -> list[float]:
    """The temperatures of successive attempts."""
    count = int((1.0 - first) / _TEMPERATURE_STEP + 1e-6) + 1
    return [round(first + _TEMPERATURE_STEP * number, 6) for number in range(max(count, 1))]


class Transcription:
    """`samples` at 16 kHz. `steps` does the work; the attributes hold the results so far."""

    def __init__(self, network: Network, samples: NDArray[np.float32], options: SpeechOptions) -> None:
        self._network = network
        self._options = options
        self._mel = MelSpectrogram(samples, network.dims.n_mels)
        self._random = options.seed
        """The state of this file's random number generator."""
        self._tokens: list[int] = []
        """All tokens so far, including the prompt."""
        self._prompt_tokens = 0
        self._fresh_since = 0
        """The first token of the next window's prompt."""
        self._held: list[int] = []
        """Tokens that end within a UTF-8 character."""
        self._segments = 0
        self.language = options.language
        self.generated = 0
        """Tokens."""
        self.duration = len(samples) / SAMPLE_RATE

    @property
    def frames(self) -> int:
        return int(self._mel.frames)

    @property
    def text(self) -> str:
        """The whole text, once all steps are done."""
        return str(self._tokenizer.decode(self._tokens[self._prompt_tokens :]))

    def steps(self) -> Iterator[Step]:
        """Run the transcription, one step per item."""
        for _ in self._mel.scan():
            yield Step(0)
        if not self.language:
            self.language = self._detect_language()
            yield Step(0)
        if self._options.prompt.strip():
            self._tokens = list(self._tokenizer.encode(" " + self._options.prompt.strip()))
            self._prompt_tokens = len(self._tokens)
        seek, last_speech, still = 0, 0.0, 0
        while seek < self.frames:
            size = min(N_FRAMES, self.frames - seek)
            mel = self._mel.window(seek, size).astype(self._network.dtype)
            result = yield from self._decode(mel, seek)
            if result.no_speech_prob > _NO_SPEECH and not result.avg_logprob > _LEAST_LOGPROB:
                seek += size
                yield Step(min(seek, self.frames))
                continue
            segments, following, ends = self._cut(result, seek, size)
            if self._options.words:
                add_word_timestamps(
                    segments=segments, model=self._network, tokenizer=self._tokenizer, mel=mel, num_frames=size,
                    last_speech_timestamp=last_speech,
                )  # fmt: skip
                end = _last_end(segments)
                if not ends and end is not None and end > _seconds(seek):
                    following = round(end * FRAMES_PER_SECOND)
                last_speech = last_speech if end is None else end
            still = still + 1 if following <= seek else 0
            seek = following if still < _MOST_STILL else seek + size
            yield Step(min(seek, self.frames), *self._keep(segments, result.temperature))
        if self._held:
            yield Step(self.frames, str(self._tokenizer.decode(self._held)))

    # ------------------------------------------------------------ parts of a window
    @property
    def _tokenizer(self) -> Any:
        return self._network.get_tokenizer(self.language or None, self._options.task)

    def _detect_language(self) -> str:
        if not self._network.is_multilingual:
            return "en"
        # The language is detected on a window that is padded with silence.
        window = self._mel.window(0, N_FRAMES).astype(self._network.dtype)
        _, probabilities = self._network.detect_language(window)
        return str(max(probabilities, key=lambda code: float(probabilities[code])))

    def _decode(self, mel: mx.array, seek: int) -> Generator[Step, None, Any]:
        """The result of the first temperature that passes `_is_good`; yields a step before each retry."""
        features, result = mel, None
        for temperature in temperatures(self._options.temperature):
            if result is not None:
                yield Step(seek)
            options = DecodingOptions(
                task=self._options.task,
                language=self.language,
                temperature=temperature,
                prompt=self._tokens[self._fresh_since :],
                fp16=self._network.dtype == mx.float16,
            )
            # Each file keeps its own random state, so windows of other files do not change its text.
            mx.random.seed(self._random)
            result = self._network.decode(features, options)
            high, low = cast(Any, mx.random.state)[0].tolist()
            self._random = high << 32 | low
            self.generated += len(result.tokens)
            if _is_good(result):
                break
            features = result.audio_features  # encoded once for all attempts
        return result

    def _cut(self, result: Any, seek: int, size: int) -> tuple[list[dict[str, Any]], int, bool]:
        """The segments of a decoded window in mlx-audio's form, the start of the next window, and whether the text ends
        with a single timestamp, which means that no speech follows."""
        tokens, first = list(result.tokens), self._tokenizer.timestamp_begin
        offset, precision = _seconds(seek), (N_FRAMES // self._network.dims.n_audio_ctx) * HOP_LENGTH / SAMPLE_RATE
        is_time = [token >= first for token in tokens]
        ends = is_time[-2:] == [False, True]
        cuts = [index for index in range(1, len(tokens)) if is_time[index - 1] and is_time[index]]
        if not cuts:
            times = [token for token in tokens if token >= first]
            length = size * HOP_LENGTH / SAMPLE_RATE
            if times and times[-1] != first:
                length = (times[-1] - first) * precision
            return [self._segment(result, seek, offset, offset + length, tokens)], seek + size, ends
        segments, before = [], 0
        for cut in [*cuts, len(tokens)] if ends else cuts:
            part = tokens[before:cut]
            start, end = ((token - first) * precision for token in (part[0], part[-1]))
            segments.append(self._segment(result, seek, offset + start, offset + end, part))
            before = cut
        # The next window decodes an unfinished segment again.
        behind = size if ends else (tokens[before - 1] - first) * (N_FRAMES // self._network.dims.n_audio_ctx)
        return segments, seek + behind, ends

    def _segment(self, result: Any, seek: int, start: float, end: float, tokens: list[int]) -> dict[str, Any]:
        return {
            "seek": seek,
            "start": float(start),
            "end": float(end),
            "text": self._tokenizer.decode([token for token in tokens if token < self._tokenizer.eot]),
            "tokens": tokens,
            "temperature": float(result.temperature),
            "avg_logprob": float(result.avg_logprob),
            "compression_ratio": float(result.compression_ratio),
            "no_speech_prob": float(result.no_speech_prob),
        }

    def _keep(self, segments: list[dict[str, Any]], temperature: float) -> tuple[str, tuple[SpeechSegment, ...]]:
        """Store the segments of a window; returns their text and them."""
        kept = []
        for segment in segments:
            if segment["start"] == segment["end"] or not segment["text"].strip():
                segment.update(text="", tokens=[], words=[])
            words = [Word(**word) for word in segment.pop("words", [])]
            kept.append(SpeechSegment(id=self._segments, words=words, **segment))
            self._segments += 1
            self._tokens += segment["tokens"]
            self._held += segment["tokens"]
        if temperature > _HOT:
            self._fresh_since = len(self._tokens)
        text = str(self._tokenizer.decode(self._held))
        if text.endswith(_BROKEN):
            return "", tuple(kept)
        self._held = []
        return text, tuple(kept)


def _is_good(result: Any) -> bool:
    """Whether the result needs no retry."""
    unsure = result.avg_logprob < _LEAST_LOGPROB
    if unsure and result.no_speech_prob > _NO_SPEECH:
        return True  # silence
    return not unsure and not result.compression_ratio > _MOST_COMPRESSION


def _seconds(frames: int) -> float:
    return float(frames * HOP_LENGTH / SAMPLE_RATE)


def _last_end(segments: list[dict[str, Any]]) -> float | None:
    """The end of the last word, or of the last segment without words."""
    ends = (word["end"] for segment in reversed(segments) for word in reversed(segment["words"]))
    return next(ends, segments[-1]["end"] if segments else None)
