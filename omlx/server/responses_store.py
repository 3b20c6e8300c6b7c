"""The *response store*: finished responses, so that a client may build on one by its id instead of sending it again.

In memory only and bounded twice, by number and by bytes; the one used longest ago goes first. Owned by the
application; used from its event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from omlx.messages.request import Message

MOST_RESPONSES = 1000
MOST_BYTES = 64 * 1024 * 1024


class StoredResponse(NamedTuple):
    """`body` is the response as JSON; `messages` the conversation up to and with its answer, without instructions."""

    body: bytes
    messages: tuple[Message, ...]
    size: int


class ResponsesStore:
    def __init__(self, *, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.size = 0
        """Bytes held, roughly. Responses of one conversation share its text, but each counts it."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, name: str, body: bytes, messages: Sequence[Message]) -> None:
        """Keep a response. One that is larger than the whole store is not kept."""
        size = len(body) + sum(_size(message) for message in messages)
        self._entries[name] = StoredResponse(body, tuple(messages), size)
        self.size += size
        while len(self._entries) > self._most or (self.size > self._most_bytes and self._entries):
            self.remove(next(iter(self._entries)))

    def get(self, name: str) -> StoredResponse | None:
        found = self._entries.get(name)
        if found is not None:
            self._entries.move_to_end(name)
        return found

    def remove(self, name: str) -> bool:
        """Whether there was such a response."""
        found = self._entries.pop(name, None)
        self.size -= found.size if found else 0
        return found is not None


def _size(message: Message) -> int:
    calls = sum(len(str(call.arguments)) for call in message.tool_calls)
    return 200 + len(message.content) + len(message.thinking) + sum(map(len, message.images)) + calls
