"""The pictures of a prompt: files opened, and the marks that the chat template left in the text filled in.

Runs in the threads that prepare prompts: opening a large image takes a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from omlx.engine.vision.images import MOST_FRAME_PIXELS, MOST_PICTURES, ImageBudget, PictureError
from omlx.engine.vision.media import MarkerMismatch, PromptMedia, Shown
from omlx.engine.vision.vision import Vision
from omlx.messages.request import GenerateRequest
from omlx.prompting.template import Markers, Rendered

MOST_SECONDS = 180
"""By the clock for all files of one request, as for the longest animation."""
_HELD_BYTES = 1 << 30
"""Pixels of all requests that are kept from when they come in until they are encoded; others are made again then."""


class Illustrator:
    """What a prompter asks about pictures. `vision` is None for a model that does not see."""

    def __init__(self, vision: Vision | None) -> None:
        self._vision = vision
        family = vision.family if vision is not None else None
        self.markers = Markers(family.image_marker, family.video_marker) if family is not None else Markers()

    def open(self, request: GenerateRequest, check: Callable[[], None]) -> list[Shown]:
        """Every picture of the request. While they are held, opening one again costs nothing.

        `check` is called before each and may raise. Raises PictureError.
        """
        if not any(message.images or message.videos for message in request.messages):
            return []
        if self._vision is None:
            kind = "image" if any(message.images for message in request.messages) else "video"
            raise PictureError(f"this model does not support {kind} input")
        _check_count(sum(len(it.images) + sum(len(video.frames) for video in it.videos) for it in request.messages))
        check = _in_time(check)
        shown: list[Shown] = []
        kept, frames = _HELD_BYTES - self._vision.held_bytes, ImageBudget(MOST_FRAME_PIXELS)
        for message in request.messages:
            for image in message.images:
                check()
                shown.append(self._vision.image(image, check=check))
                kept = _spend(kept, shown[-1])
            for video in message.videos:
                shown.append(self._vision.video(video, room=frames, check=check))
                kept = _spend(kept, shown[-1])
        _check_count(sum(item.frames for item in shown))
        return shown

    def tokens(self, rendered: Rendered, encode: Callable[[str], list[int]]) -> tuple[list[int], PromptMedia | None]:
        """The tokens of the rendered text with its pictures among them. Raises PictureError."""
        if self._vision is None or not (rendered.images or rendered.videos):
            return encode(rendered.text), None
        images = [self._vision.image(image) for image in rendered.images]
        videos = [self._vision.video(video) for video in rendered.videos]
        try:
            text, parts = self._vision.place(rendered.text, images, videos)
            return self._vision.media(encode(text), parts)
        except MarkerMismatch:
            family = self._vision.family
            marks = " and ".join(filter(None, (family.image_marker, family.video_marker)))
            raise PictureError(f"the text must not hold what marks an image in this model's prompts: {marks}") from None


def _in_time(check: Callable[[], None]) -> Callable[[], None]:
    """`check`, and that not more than MOST_SECONDS have passed since. It raises PictureError then."""
    due = time.monotonic() + MOST_SECONDS

    def both() -> None:
        check()
        if time.monotonic() > due:
            raise PictureError(
                f"the images take more than {MOST_SECONDS} seconds to decode: send fewer or simpler ones"
            )

    return both


def _check_count(count: int) -> None:
    if count > MOST_PICTURES:
        raise PictureError(f"the request has {count} images; {MOST_PICTURES} are taken, frames of videos included")


def _spend(room: int, shown: Shown) -> int:
    """What is left of `room` once these pictures are kept; those that no longer fit let go of their pixels."""
    for part in shown.parts:
        room -= part.picture.nbytes
        if room < 0:
            part.picture.release()
    return room
