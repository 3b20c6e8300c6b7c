"""Videos of one model: frames become *moments*, the pictures that its vision tower encodes, of one frame or more.

A moment is known by its own frames, so a clip that overlaps an earlier one shares its features. A whole video is
known too: sent again, as with each turn of a conversation, its file is not even decoded.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from PIL import Image

from omlx.engine.vision import image_decoder as picture_decoder
from omlx.engine.vision import images as pictures
from omlx.engine.vision import video_file as videofile
from omlx.engine.vision.family import Timing, VideoFamily
from omlx.engine.vision.image_cache import ImageCache
from omlx.engine.vision.images import MOST_PICTURES, ImageBudget, PictureError
from omlx.engine.vision.media import ImageLayout, Picture, Pixels, Shown
from omlx.engine.vision.video_file import Clip
from omlx.lru import LRUCache
from omlx.messages.request import Video

_KNOWN = 256
"""Videos whose moments are remembered, some kilobytes each."""
Process = Callable[[Image.Image, Mapping[str, Any]], tuple[Pixels, ImageLayout]]


class _FrameGroups(NamedTuple):
    """The frames of each moment as files, and what they have in common."""

    groups: list[tuple[bytes, ...]]
    size: tuple[int, int]
    options: Mapping[str, Any]
    timing: Timing


class _Known(NamedTuple):
    """A video that was seen: the names of its moments in the image cache."""

    moments: tuple[bytes, ...]
    timing: Timing


class _Again:
    """The frames of a known video, taken out of its file when one of its moments needs its pixels after all."""

    def __init__(self, take: Callable[[], _FrameGroups]) -> None:
        self._take = take

    @cached_property
    def frames(self) -> _FrameGroups:
        return self._take()


class Videos:
    """`process` is the family's, with errors for people; `salt` names the model and its settings."""

    def __init__(self, family: VideoFamily, image_cache: ImageCache, process: Process, *, salt: bytes) -> None:
        self._family = family
        self._image_cache = image_cache
        self._process = process
        self._salt = salt
        self._known: LRUCache[bytes, _Known] = LRUCache(max_entries=_KNOWN)
        self._lock = threading.Lock()

    def show(self, video: Video, room: ImageBudget, check: Callable[[], None]) -> Shown:
        """The video as the prompt shows it. Raises PictureError.

        `room` is what its frames may take, unpacked. `check` is called before each moment and may raise.
        """
        name = _name(video)
        with self._lock:
            known = self._known.get(name)
        shown = self._remembered(video, known) if known is not None else None
        if known is None or shown is None:
            known, shown = self._opened(video, room, check)
        with self._lock:
            self._known.put(name, known)
        text, parts = self._family.show_video(shown, known.timing)
        return Shown(text, parts, known.timing.frames)

    def _remembered(self, video: Video, known: _Known) -> list[Picture] | None:
        """The moments of a known video, unless one of them has to be opened."""
        again = _Again(lambda: self._frames(video, ImageBudget(), lambda: None))
        moments = []
        for index, name in enumerate(known.moments):
            moment = self._image_cache.find(name, partial(self._pixels_again, again, index))
            if moment is None:
                return None
            moments.append(moment)
        return moments

    def _pixels_again(self, again: _Again, index: int) -> Pixels:
        return self._moment(again.frames, index).pixels()

    def _opened(self, video: Video, room: ImageBudget, check: Callable[[], None]) -> tuple[_Known, list[Picture]]:
        frames = self._frames(video, room, check)
        label = json.dumps([frames.options, frames.size], sort_keys=True).encode()
        names, moments = [], []
        for index, group in enumerate(frames.groups):
            check()
            names.append(hashlib.sha256(b"moment:%s" % label + b"".join(map(_sized, group))).digest())
            moments.append(self._image_cache.get(names[-1], partial(self._moment, frames, index)))
        return _Known(tuple(names), frames.timing), moments

    def _frames(self, video: Video, room: ImageBudget, check: Callable[[], None]) -> _FrameGroups:
        """Raises PictureError."""
        clip = self._clip(video, room, check)
        count, each = len(clip.frames), self._family.frames_per_moment
        groups = [
            tuple(clip.frames[min(start + behind, count - 1)] for behind in range(each))
            for start in range(0, count, each)
        ]
        size = picture_decoder.decode(clip.frames[0]).size
        return _FrameGroups(
            groups, size, self._family.frame_options(len(groups)), Timing(count, clip.fps, clip.length_s)
        )

    def _clip(self, video: Video, room: ImageBudget, check: Callable[[], None]) -> Clip:
        """The frames that are looked at. Raises PictureError."""
        if not video.frames:
            raise PictureError("a video has no frames")
        most = min(filter(None, (video.max_frames, self._family.most_frames, MOST_PICTURES)))
        frames, fps = video.frames, video.fps
        length_s = len(frames) / fps
        if len(frames) == 1:
            check()
            if videofile.kind(frames[0]):
                clip = videofile.frames(frames[0], fps, most, check)
                room.take(clip.frames)
                return clip
            frames, fps = picture_decoder.frames(frames[0], fps, room.pixels, check)
            length_s = len(frames) / fps
        kept = pictures.thinned(frames, most)
        if len(video.frames) == 1 < len(frames):
            room.take(kept)
        return Clip(kept, fps * len(kept) / len(frames), length_s)

    def _moment(self, frames: _FrameGroups, index: int) -> Picture:
        def pixels(images: Sequence[Image.Image]) -> tuple[Pixels, ImageLayout]:
            made = [self._process(image, frames.options) for image in images]
            return self._family.join_frames([pixels for pixels, _ in made]), made[0][1]

        def images() -> list[Image.Image]:
            return [_fit(picture_decoder.decode(file), frames.size) for file in frames.groups[index]]

        shown = images()
        salt = self._salt + json.dumps(frames.options, sort_keys=True).encode()
        digest = hashlib.sha256(b"".join(pictures.digest(image, salt) for image in shown)).digest()
        made, layout = pixels(shown)
        return Picture(digest, layout, made, lambda: pixels(images())[0])


def _name(video: Video) -> bytes:
    state = hashlib.sha256(b"%r %d" % (video.fps, video.max_frames))
    for file in video.frames:
        state.update(b"%d:" % len(file))
        state.update(file)
    return state.digest()


def _sized(data: bytes) -> bytes:
    """With its length in front, so that two files joined cannot be taken for two others."""
    return b"%d:" % len(data) + data


def _fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """All frames of a video have the size of its first."""
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
