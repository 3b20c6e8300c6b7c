"""The *mel spectrogram* of an audio file, computed window by window.

mlx-audio computes the spectrogram of the whole file at once, which takes gigabytes for an hour, and scales it by its
largest value. Here a *scan* finds that value first, in parts, and each window is computed when it is needed. The values
are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx_audio.stt.models.whisper.audio import HOP_LENGTH, N_FFT, N_FRAMES, SAMPLE_RATE, pad_or_trim
from mlx_audio.utils import hanning, mel_filters, stft

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SCANNED_FRAMES = 30_000
"""Frames in one part of the scan: five minutes."""
_REACH = N_FFT // 2
_RANGE = 8.0
"""Values further below the largest one are raised to this distance, as silence."""
_LEAST = 1e-10


class MelSpectrogram:
    """`samples` at 16 kHz; frames are 10 ms. Silence follows the end of the audio."""

    def __init__(self, samples: NDArray[np.float32], n_mels: int) -> None:
        self._samples = samples
        self._filters = mel_filters(SAMPLE_RATE, N_FFT, n_mels, norm="slaney", mel_scale=None).T
        self._floor: Any = None
        self.frames = len(samples) // HOP_LENGTH

    def scan(self) -> Iterator[int]:
        """Find the largest value, in parts; yields the frames scanned so far. Must be exhausted before `window`."""
        largest: Any = None
        # Up to the first frames that contain only silence.
        end = self.frames + N_FFT // HOP_LENGTH + 2
        for start in range(0, end, _SCANNED_FRAMES):
            part = self._logarithms(start, min(start + _SCANNED_FRAMES, end)).max()
            largest = part if largest is None else mx.maximum(largest, part)
            mx.eval(largest)
            yield min(start + _SCANNED_FRAMES, self.frames)
        self._floor = largest - _RANGE

    def window(self, start: int, count: int) -> mx.array:
        """`count` frames from `start` on, zero-padded to 30 seconds: [3000, n_mels]."""
        values = (mx.maximum(self._logarithms(start, start + count), self._floor) + 4.0) / 4.0
        padded: mx.array = pad_or_trim(values, N_FRAMES, axis=-2)
        return padded

    def _logarithms(self, start: int, stop: int) -> mx.array:
        piece = self._piece(start * HOP_LENGTH - _REACH, (stop - 1) * HOP_LENGTH + _REACH)
        frequencies = stft(mx.array(piece), window=hanning(N_FFT, periodic=True), n_fft=N_FFT, hop_length=HOP_LENGTH,
                           center=False)  # fmt: skip
        return mx.maximum(frequencies.abs().square() @ self._filters, _LEAST).log10()

    def _piece(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples from `start` to `stop`: mirrored before the first sample, silence after the last."""
        piece = np.zeros(stop - start, np.float32)
        inside = self._samples[max(start, 0) : stop]
        piece[max(-start, 0) : max(-start, 0) + len(inside)] = inside
        if start < 0:
            mirrored = self._samples[1 : 1 - start]
            piece[-start - len(mirrored) : -start] = mirrored[::-1]
        return piece
