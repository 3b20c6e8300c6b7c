"""What the dialects share: fields of a body beside their own, and what a message holds once its parts are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from omlx.messages.request import Video


class CommonFields(msgspec.Struct, kw_only=True):
    priority: Any = None
    """Ours: the class of the request, as the header `X-OMLX-Priority` has it. Other servers' numbers mean nothing."""


class MessageContent(NamedTuple):
    """The parts of a message: its texts joined, and the bytes of its files."""

    text: str
    images: list[bytes]
    videos: Sequence[Video] = ()
