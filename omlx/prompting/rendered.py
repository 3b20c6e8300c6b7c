"""*Rendered* is what a template makes of a request; *markers* stand for pictures where it has no place for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from omlx.messages.request import Message, Video
from omlx.prompting import conversation
from omlx.prompting.errors import TemplateError


class Rendered(NamedTuple):
    """A prompt ready for the tokenizer."""

    text: str
    opens_thinking: bool = False
    """The prompt ends inside a thinking block: output starts with thinking."""
    add_special: bool = False
    """Let the tokenizer add its own special tokens (begin-of-text); a Jinja template writes them itself."""
    images: tuple[bytes, ...] = ()
    """Images in the order in which the prompt refers to them."""
    videos: tuple[Video, ...] = ()


class Markers(NamedTuple):
    """Texts that stand for an image and for a video where the template has no place for one; None where the model takes
    none."""

    image: str | None = None
    video: str | None = None


def images_of(messages: Iterable[Message]) -> tuple[bytes, ...]:
    return tuple(image for message in messages for image in message.images)


def videos_of(messages: Iterable[Message]) -> tuple[Video, ...]:
    return tuple(video for message in messages for video in message.videos)


def with_markers(
    messages: list[Message], markers: Markers, *, images: bool = True, videos: bool = True
) -> list[Message]:
    """Images and videos written into the text as their markers. Raises TemplateError if there is no marker for them."""
    if images and images_of(messages) and markers.image is None:
        raise TemplateError("this model does not support image input")
    if videos and videos_of(messages) and not markers.video:
        raise TemplateError("this model does not support video input")
    marked = []
    for message in messages:
        if images and message.images and markers.image is not None:
            message = _markimages_of(message, markers.image)
        if videos and message.videos and markers.video:
            content = markers.video * len(message.videos) + message.content
            message = msgspec.structs.replace(message, content=content, videos=[])
        marked.append(message)
    return marked


def _markimages_of(message: Message, marker: str) -> Message:
    text, missing = message.content, 0
    for _ in message.images:
        if conversation.IMAGE_MARK in text:
            text = text.replace(conversation.IMAGE_MARK, marker, 1)
        else:
            missing += 1
    return msgspec.structs.replace(message, content=marker * missing + text, images=[])
