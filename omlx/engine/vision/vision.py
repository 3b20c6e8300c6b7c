"""Vision of one loaded model: files become pictures, pictures become features, features take their place in a prompt.

Two halves. Any thread may turn files into `Shown` pictures, and a rendered text into tokens with `PromptMedia`. The
thread that owns MLX asks for the `Inputs` of a chunk; pictures without known features are encoded then, several at a
time. Nothing is computed twice: a file that was seen before is known by the digest of its bytes, so that it is not
even decoded while its features are in memory; and a prompt that the prefix store has in full needs no features at
all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import msgspec
import numpy as np
from PIL import Image

from omlx.engine.vision import image_decoder as picture_decoder
from omlx.engine.vision import images as pictures
from omlx.engine.vision.family import Family, Features, Inputs, VideoFamily
from omlx.engine.vision.image_cache import ImageCache
from omlx.engine.vision.images import ImageBudget, PictureError
from omlx.engine.vision.media import (
    ImageLayout,
    MarkerMismatch,
    Part,
    Picture,
    Pixels,
    Placement,
    PromptMedia,
    Shown,
    expand,
)
from omlx.engine.vision.videos import Videos
from omlx.lru import LRUCache
from omlx.messages.request import Video

_ENCODE_BYTES = 64 << 20
"""Pixels that are encoded at once, beyond the first picture: it bounds the memory that the vision tower takes."""


class FeatureTier(Protocol):
    """Where features are kept beyond memory: the prefix store, on disk."""

    def keep(self, digest: bytes, features: Sequence[mx.array]) -> None: ...

    def find(self, digest: bytes) -> tuple[mx.array, ...] | None: ...


class VisionStats(msgspec.Struct, kw_only=True):
    """Counts since the model was loaded; sizes in bytes."""

    encoded: int
    """Pictures that the vision tower computed."""
    from_memory: int
    from_disk: int
    decoded: int
    """Files that were unpacked and processed."""
    cached: int
    cached_bytes: int
    max_bytes: int


class FeatureCache:
    """Features by digest, in memory: the least recently used go when `max_bytes` are exceeded."""

    def __init__(self, max_bytes: int, tier: FeatureTier | None = None) -> None:
        self.max_bytes = max_bytes
        self.tier = tier
        self.from_memory = self.from_disk = 0
        self._items: LRUCache[bytes, Features] = LRUCache(
            max_size=max_bytes, size_of=lambda features: sum(array.nbytes for array in features)
        )

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._items

    def __len__(self) -> int:
        return len(self._items)

    @property
    def nbytes(self) -> int:
        return self._items.size

    def get(self, digest: bytes) -> Features | None:
        features = self._items.get(digest)
        if features is not None:
            self.from_memory += 1
            return features
        features = self.tier.find(digest) if self.tier is not None else None
        if features is not None:
            self.from_disk += 1
            self._items.put(digest, features)
        return features

    def put(self, digest: bytes, features: Features) -> None:
        if digest not in self._items:
            self._items.put(digest, features)
        if self.tier is not None:
            self.tier.keep(digest, features)

    def clear(self) -> None:
        """Forget what is in memory."""
        self._items.clear()


class Vision:
    """See the module text. `salt` differs wherever weights, precision or the processor's settings differ."""

    def __init__(self, family: Family, *, salt: bytes, max_bytes: int = 512 << 20) -> None:
        self.family = family
        self.cache = FeatureCache(max_bytes)
        self.encoded = 0
        self._salt = salt
        self._image_cache = ImageCache(lambda digest: digest in self.cache)
        self._videos = (
            Videos(family, self._image_cache, self._process, salt=salt) if isinstance(family, VideoFamily) else None
        )

    @property
    def decoded(self) -> int:
        """Files that were unpacked and processed, or moments of videos."""
        return self._image_cache.opened

    # ------------------------------------------------------------ any thread
    def image(self, data: bytes, *, check: Callable[[], None] = lambda: None) -> Shown:
        """An image file as the prompt shows it. `check` is called now and then and may raise. Raises PictureError."""
        name = hashlib.sha256(b"image:" + data).digest()
        picture = self._image_cache.get(name, lambda: self._open(data, check))
        return Shown(picture.layout.text, (Part(picture),))

    @property
    def held_bytes(self) -> int:
        """Of the pixels that requests hold."""
        return self._image_cache.held_bytes

    def video(
        self, video: Video, *, room: ImageBudget | None = None, check: Callable[[], None] = lambda: None
    ) -> Shown:
        """A video as the prompt shows it. Raises PictureError.

        `room` is what its frames may take, unpacked. `check` is called now and then and may raise.
        """
        if self._videos is None:
            raise PictureError("this model does not support video input")
        return self._videos.show(video, room or ImageBudget(), check)

    def place(self, text: str, images: Sequence[Shown], videos: Sequence[Shown]) -> tuple[str, list[Part]]:
        """The rendered prompt with every mark of an image or video replaced. Raises MarkerMismatch."""
        parts: list[Part] = []
        waiting = {self.family.image_marker: list(images)[::-1], self.family.video_marker: list(videos)[::-1]}
        # SmolVLM's mark of a video is a word of HTML: without videos it is only that.
        waiting = {marker: shown for marker, shown in waiting.items() if shown}
        if any(not marker or text.count(marker) != len(shown) for marker, shown in waiting.items()):
            raise MarkerMismatch
        done = ""
        while True:
            places = [(position, marker) for marker in waiting if (position := text.find(marker)) >= 0]
            if not places:
                return done + text, parts
            position, marker = min(places)
            shown_next = waiting[marker].pop()
            done += text[:position] + shown_next.text
            parts += shown_next.parts
            text = text[position + len(marker) :]

    def media(self, tokens: Sequence[int], parts: Sequence[Part]) -> tuple[list[int], PromptMedia]:
        """The tokens of a placed prompt with as many for each picture as it takes. Raises MarkerMismatch."""
        expanded, placements = expand(tokens, parts, self.family.placeholders)
        return expanded, PromptMedia(placements, len(expanded), whole=self.family.whole, rotary=self.family.rotary)

    def _open(self, data: bytes, check: Callable[[], None]) -> Picture:
        image = picture_decoder.decode(data, check)
        pixels, layout = self._process(image, {})
        return Picture(
            pictures.digest(image, self._salt),
            layout,
            pixels,
            lambda: self._process(picture_decoder.decode(data), {})[0],
        )

    def _process(self, image: Image.Image, options: Mapping[str, Any]) -> tuple[Pixels, ImageLayout]:
        try:
            return self.family.process(image, options)
        except Exception as error:  # processors refuse what they cannot scale, such as a line of 2 x 1000 pixels
            width, height = image.size
            raise PictureError(
                f"an image of {width} x {height} pixels cannot be used by this model: {error}"
            ) from error

    # ------------------------------------------------------------ the thread that owns MLX
    def inputs(self, media: PromptMedia, tokens: mx.array, start: int, *, ahead: bool = True) -> Inputs | None:
        """What the model takes for the tokens [1, n] from `start` on; None where no picture is among them.

        `ahead`: pictures that follow may be encoded together with those of this chunk.
        """
        end = start + tokens.shape[1]
        inside = list(media.within(start, end))
        if not inside:
            return None
        self._have_features(media, inside, start, ahead)
        embeds = self.family.embed(tokens)
        seen = np.zeros(end - start, bool)
        pieces: list[mx.array] = []
        deep: list[list[mx.array]] = []
        spans = []
        done = start
        for item in inside:
            features: Features = media.features[item.picture.digest]
            taken = 0
            for first, count in item.runs:
                low, high = max(first, start), min(first + count, end)
                if low < high:
                    own = slice(taken + low - first, taken + high - first)
                    pieces += [embeds[:, done - start : low - start], features[0][own][None].astype(embeds.dtype)]
                    deep.append([layer[own] for layer in features[1:]])
                    seen[low - start : high - start] = True
                    spans.append((low - start, high - start))
                    done = high
                taken += count
        pieces.append(embeds[:, done - start :])
        layers = tuple(mx.concatenate(list(layer)) for layer in zip(*deep, strict=True))
        return Inputs(mx.concatenate(pieces, axis=1), seen, layers, tuple(spans))

    def _have_features(self, media: PromptMedia, inside: Sequence[Placement], start: int, ahead: bool) -> None:
        """Make sure that the features of the pictures `inside` a chunk are there; with `ahead` others come along."""
        first = {item.picture.digest for item in inside}
        candidates = media.placements if ahead else inside
        wanted = [item for item in candidates if item.end > start and item.picture.digest not in media.features]
        batch: dict[bytes, Picture] = {}
        size = 0
        for item in sorted(wanted, key=lambda item: item.picture.digest not in first):
            digest = item.picture.digest
            if digest in batch or digest in media.features:
                continue
            known = self.cache.get(digest)
            if known is not None:
                media.features[digest] = known
                continue
            needed = digest in first
            nbytes = sum(array.nbytes for array in item.picture.pixels().values())
            if batch and size + nbytes > _ENCODE_BYTES:
                if not needed:
                    break
                self._encode(media, batch)
                batch, size = {}, 0
            if not batch and not needed:
                break
            batch[digest], size = item.picture, size + nbytes
        if batch:
            self._encode(media, batch)

    def _encode(self, media: PromptMedia, batch: dict[bytes, Picture]) -> None:
        encoded = self.family.encode([picture.pixels() for picture in batch.values()])
        # Computed now: kept as a graph, a part of a batch would hold on to all of it.
        encoded = [tuple(mx.contiguous(array) for array in features) for features in encoded]
        mx.eval(encoded)
        self.encoded += len(batch)
        for (digest, picture), features in zip(batch.items(), encoded, strict=True):
            media.features[digest] = features
            self.cache.put(digest, features)
            picture.release()

    def stats(self) -> VisionStats:
        return VisionStats(
            encoded=self.encoded, from_memory=self.cache.from_memory, from_disk=self.cache.from_disk,
            decoded=self.decoded, cached=len(self.cache), cached_bytes=self.cache.nbytes,
            max_bytes=self.cache.max_bytes,
        )  # fmt: skip
