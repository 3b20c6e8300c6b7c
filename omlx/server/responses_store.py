"""The *response store*: finished responses, so that a client may build on one by its id instead of sending it again.

In memory only and bounded twice, by number and by bytes; the one used longest ago goes first. Owned by the
application; used from its event loop only.
"""

from __future__ import annotations

from typing import NamedTuple

from omlx.lru import LRUCache
from omlx.messages.request import Message

MOST_RESPONSES = 1000
MOST_BYTES = 64 * 1024 * 1024


class StoredResponse(NamedTuple):
    """`body` is the response as JSON; `messages` the conversation up to and with its answer, without instructions."""

    body: bytes
    messages: tuple[Message, ...]

    @property
    def size(self) -> int:
        """Bytes, roughly. Responses of one conversation share its text, but each counts it."""
        return len(self.body) + sum(_size(message) for message in self.messages)


class ResponsesStore(LRUCache[str, StoredResponse]):
    def __init__(self, *, max_entries: int = MOST_RESPONSES, max_bytes: int = MOST_BYTES) -> None:
        super().__init__(max_entries=max_entries, max_size=max_bytes, size_of=lambda response: response.size)


def _size(message: Message) -> int:
    calls = sum(len(str(call.arguments)) for call in message.tool_calls)
    return 200 + len(message.content) + len(message.thinking) + sum(map(len, message.images)) + calls
