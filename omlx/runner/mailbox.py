"""The *mailbox* of one request on the server's side: events that have arrived and not been taken yet.

Filled by the connection's reader, emptied by the one coroutine that serves the client. A slow client must not make
memory grow without bound: neighbouring deltas are joined once a few wait, and past a limit the request is given up.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from omlx.messages.frames import Embedded, PrefillProgress, Ranked, Reply
from omlx.messages.request import Delta, Failure, Finish
from omlx.messages.speech import Segments, Transcribed

JOIN_FROM = 16
"""Waiting items from which on neighbouring deltas are joined."""
JOINED_CHARS = 4096
"""Size at which a joined delta is left alone: joining copies, so it must not grow for ever."""
MAX_WAITING_CHARS = 16 * 1024 * 1024

Item = Delta | Finish | Failure | PrefillProgress | Embedded | Ranked | Segments | Transcribed | Reply


class Mailbox:
    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._chars = 0
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        """The runner has said its last word about this request."""

    @property
    def overfull(self) -> bool:
        return self._chars > MAX_WAITING_CHARS

    def put(self, item: Item) -> None:
        if self.closed:
            return
        self._chars += _size(item)
        if isinstance(item, Delta):
            if len(self._items) >= JOIN_FROM:
                joined = join(self._items[-1], item)
                if joined is not None:
                    self._items[-1] = joined
                    return
        elif not isinstance(item, PrefillProgress | Segments):
            self.closed = True
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Item:
        """The next item; only one coroutine may wait at a time."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        self._chars -= _size(item)
        return item


def _size(item: Item) -> int:
    """About how much there is in an item, in characters."""
    if isinstance(item, Delta):
        return len(item.content) + len(item.thinking) + 64 * len(item.logprobs)
    if isinstance(item, Segments):
        return len(item.text) + sum(256 + 8 * len(it.tokens) + 64 * len(it.words) for it in item.items)
    return 0


def join(first: Item, second: Delta) -> Delta | None:
    """Both as one delta, or None where that would change the order of what a client sees."""
    if not isinstance(first, Delta) or first.tool_calls or second.tool_calls:
        return None
    if (first.thinking and second.content) or (first.content and second.thinking):
        return None
    if len(first.content) + len(first.thinking) > JOINED_CHARS or len(first.logprobs) > JOINED_CHARS:
        return None
    return msgspec.structs.replace(
        first,
        content=first.content + second.content,
        thinking=first.thinking + second.thinking,
        logprobs=[*first.logprobs, *second.logprobs],
    )
