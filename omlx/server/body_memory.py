"""*Body memory*: the memory that the bodies of all requests together may take. Who wants much of it waits for a turn.

A body of up to SMALL bytes needs none. A larger one takes its *reservation* once, before it is read, for all it may
become; the reservation shrinks to what is kept and ends with the request. Only a body that does not say its size may
wait while it holds one: it takes a modest one first and *grows* to the largest when it has filled that. Those who grow
come before all others who want much, and no more of them wait than leave room for one of them, so one always gets on.
Work that costs memory only while it lasts (counting what a compressed body would become, reading JSON) is done for one
large body at a time, and for two very large ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from omlx.server.stream import while_connected

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

SMALL = 1 << 20
"""Bytes. Reading a larger body takes long enough for every open stream to feel it."""
_LEAST = 512_000_000
_SCOPE = "omlx.reservation"


class BodyMemory:
    """`max_body` as in the settings. For one event loop."""

    def __init__(self, max_body: int) -> None:
        self.size = size = max(_LEAST, 4 * max_body)
        self.modest = size // 16
        """Who wants no more is not kept waiting by those who want much: an eighth is left for them."""
        self.most = size - size // 8
        self._reserve = size // 8
        self.free = size
        """Below 0 where JSON became more than its reservation."""
        self._growing: deque[_Waiting] = deque()
        self._large: deque[_Waiting] = deque()
        self._queues: tuple[deque[_Waiting], ...] = (deque(), deque(), self._growing, self._large)
        self.counting = asyncio.Lock()
        self.parsing = asyncio.Lock()
        self.parsing_very_large = asyncio.Semaphore(2)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(map(len, self._queues))

    def may_grow(self, size: int) -> bool:
        """Whether one more modest reservation may wait for `size` bytes more: it holds its memory meanwhile."""
        return size + self._reserve <= self.size - (len(self._growing) + 1) * self.modest

    async def wait(self, reservation: BodyReservation, size: int) -> None:
        """Until `reservation` may have `size` bytes more, in order of arrival among its like; it has them then.
        0: until nothing is owed."""
        if reservation.size and size:
            queue = self._growing
        else:
            queue = self._queues[0 if size == 0 else 1] if size <= self.modest else self._large
        if not queue and not (queue is self._large and self._growing) and self._fits(size, queue):
            self._give(reservation, size)
            return
        entry: _Waiting = (reservation, size, asyncio.get_running_loop().create_future())
        queue.append(entry)
        try:
            await entry[2]
        except asyncio.CancelledError:
            if entry in queue:
                queue.remove(entry)
                self.admit()
            raise

    def admit(self) -> None:
        """Let those in whom there is memory for now."""
        for queue in self._queues:
            if queue is self._large and self._growing:
                return
            while queue and (queue[0][2].done() or self._fits(queue[0][1], queue)):
                reservation, size, turn = queue.popleft()
                if not turn.done():  # a client may just have left
                    self._give(reservation, size)
                    turn.set_result(None)

    def _fits(self, size: int, queue: deque[_Waiting]) -> bool:
        wants_much = queue is self._growing or queue is self._large
        return size <= self.free - (self._reserve if wants_much else 0)

    def _give(self, reservation: BodyReservation, size: int) -> None:
        reservation.size += size
        self.free -= size


class BodyReservation:
    """What one request has of the memory."""

    def __init__(self, memory: BodyMemory, receive: Receive) -> None:
        self.memory = memory
        self.size = 0
        self.arrived = False
        """The body was read to its end: from then on `receive` tells when the client leaves, and waiting ends."""
        self._receive = receive

    @classmethod
    def of(cls, scope: Any) -> BodyReservation:
        """The one that the middleware gave the request."""
        reservation: BodyReservation = scope[_SCOPE]
        return reservation

    def put(self, scope: Any) -> None:
        scope[_SCOPE] = self

    async def take(self, size: int) -> None:
        """Wait for memory for `size` bytes; all there is for one request where that is less. The first time counts.

        Raises ClientGone where the client leaves meanwhile.
        """
        if not self.size:
            await self._patiently(self.memory.wait(self, max(1, min(size, self.memory.most))))

    async def grow(self, size: int) -> bool:
        """Wait until a modest reservation is one of `size` bytes, or of all there is for one request. False, at once:
        too many others wait for the same."""
        more = min(size, self.memory.most) - self.size
        if more > 0:
            if not self.memory.may_grow(more):
                return False
            await self._patiently(self.memory.wait(self, more))
        return True

    def settle(self, size: int) -> None:
        """The reservation is `size` bytes from now on, whether there is memory for more or not."""
        self.memory.free += self.size - size
        self.size = size
        self.memory.admit()

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        """The turn to count what a compressed body would become."""
        await self._patiently(self.memory.counting.acquire())
        try:
            yield
        finally:
            self.memory.counting.release()

    @asynccontextmanager
    async def parsing(self, *, very_large: bool = False) -> AsyncIterator[None]:
        """The turn to read large JSON; very large JSON has turns of its own."""
        turn = self.memory.parsing_very_large if very_large else self.memory.parsing
        await self._patiently(turn.acquire())
        try:
            await self._patiently(self.memory.wait(self, 0))
            yield
        finally:
            turn.release()

    async def _patiently(self, turn: Coroutine[Any, Any, Any]) -> None:
        await (while_connected(self._receive, turn) if self.arrived else turn)


_Waiting = tuple[BodyReservation, int, "asyncio.Future[None]"]


class BodyLimits:
    """Middleware: each request has a reservation for its body, which ends with the request."""

    def __init__(self, app: ASGIApp, memory: BodyMemory) -> None:
        self._app = app
        self._memory = memory

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reservation = BodyReservation(self._memory, receive)
        reservation.put(scope)
        try:
            await self._app(scope, receive, send)
        finally:
            reservation.settle(0)
