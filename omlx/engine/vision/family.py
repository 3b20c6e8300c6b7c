"""What a *family* of vision-language models is: what is asked of each, whatever its networks are.

mlx-vlm has the networks. Its text models keep positions of the last prompt on themselves, which a batch of several
conversations cannot share; so a family calls the trunk below that, with positions handed in, and keeps nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray
from omlx_cache.adapters.table import native
from PIL import Image

from omlx.engine.vision.media import ImageLayout, Part, Picture, Pixels

Features = tuple[mx.array, ...]
"""[tokens, width] for the embeddings; behind it, what deeper layers add where the model has such."""


class Inputs(NamedTuple):
    """A chunk of a prompt with pictures in it. `seen` marks the picture tokens, [tokens]; `deep` is for those alone."""

    embeds: mx.array
    seen: NDArray[np.bool_]
    deep: tuple[mx.array, ...]
    spans: tuple[tuple[int, int], ...]
    """Each picture's tokens, as positions within the chunk."""


class Family(ABC):
    """What all families share. `network` is mlx-vlm's model, `processor` the model's own image processor."""

    rotary = False
    """Positions count in three dimensions."""
    whole = False
    """The tokens of a picture look at each other."""

    def __init__(self, network: Any, processor: Any, token: Callable[[int], str], given: Mapping[str, Any]) -> None:
        """`token` gives the text of a token id; `given` is config.json, of which mlx-vlm leaves things out."""
        self.network = network
        self.given = given
        self.language_model = network.language_model
        self.processor = processor
        self.config = network.config
        self.placeholders = self._placeholders()
        self.image_marker, self.video_marker = self._markers(token)

    # ------------------------------------------------------------ pictures (any thread)
    def _placeholders(self) -> frozenset[int]:
        """Ids of the tokens that pictures stand for in the prompt."""
        return frozenset({int(self.config.image_token_index)})

    @abstractmethod
    def _markers(self, token: Callable[[int], str]) -> tuple[str, str]:
        """What the chat template writes for an image, and for a video ("" where there are none)."""

    @abstractmethod
    def process(self, image: Image.Image, options: Mapping[str, Any]) -> tuple[Pixels, ImageLayout]:
        """What the vision tower takes. `options` are further settings of the processor."""

    # ------------------------------------------------------------ the device (the thread that owns MLX)
    @abstractmethod
    def encode(self, pictures: Sequence[Pixels]) -> list[Features]:
        """The features of several pictures, computed together."""

    def embed(self, tokens: mx.array) -> mx.array:
        embedded: mx.array = self.language_model.model.embed_tokens(tokens)
        return embedded

    def make_cache(self) -> list[Any]:
        """mlx-lm's caches: the ones that batches are made of. mlx-vlm's are the same by another name."""
        return [native(cache) for cache in _own_caches(self.language_model)]

    @abstractmethod
    def __call__(
        self, tokens: mx.array, *, cache: list[Any], inputs: Inputs | None = None, positions: mx.array | None = None
    ) -> mx.array:
        """Logits [B, n, V] of tokens [B, n]; `positions` [3, B, n] where they differ from the places in the cache."""


class Timing(NamedTuple):
    """When the frames of a video are shown: so many of them, 1/`fps` seconds apart."""

    frames: int
    fps: float
    length_s: float


class VideoFamily(Family):
    """A family that takes videos. A *moment* is what its vision tower encodes as one picture."""

    frames_per_moment = 1

    @property
    def most_frames(self) -> int:
        """More are thinned out, as in the model's training; 0: any number."""
        return 0

    @abstractmethod
    def frame_options(self, moments: int) -> dict[str, Any]:
        """Processor settings for the frames of a video of so many moments."""

    def join_frames(self, frames: Sequence[Pixels]) -> Pixels:
        """The frames of a moment as one picture."""
        (alone,) = frames
        return alone

    @abstractmethod
    def show_video(self, moments: Sequence[Picture], timing: Timing) -> tuple[str, tuple[Part, ...]]:
        """The text that stands for a video, and what fills the placeholders in it."""


def _own_caches(model: Any) -> list[Any]:
    return list(model.make_cache()) if hasattr(model, "make_cache") else list(make_prompt_cache(model))
