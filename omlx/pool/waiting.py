"""The requests that wait for the pool: how many there may be, and what they wait for."""

from __future__ import annotations

import asyncio
import logging

from omlx.pool.errors import QUEUE_FULL, PoolError
from omlx.pool.governor import Governor
from omlx.pool.slot_table import SlotTable

log = logging.getLogger("omlx.pool")

_HOLD_S = 5.0
"""How long a new request waits while the models exceed their memory, before it is refused."""
_SHORT_OF_MEMORY = "server busy, please try again.  the loaded models use all the memory that max_process_memory allows"


class WaitingRequests:
    """Part of the pool, on its event loop. `max_queue`: how many may wait."""

    def __init__(self, table: SlotTable, governor: Governor, max_queue: int) -> None:
        self._table = table
        self._governor = governor
        self._max_queue = max_queue
        self._outside = 0
        """Requests that wait for a slot they may not join yet."""

    @property
    def count(self) -> int:
        """Requests that wait: for a load, for room, or for a place in a model's batch."""
        return self._outside + sum(
            max(0, slot.users - self._governor.places) if slot.state == "ready" else slot.users
            for slot in self._table.slots.values()
        )

    def require_room(self) -> None:
        """Raises PoolError "busy" where no further request may wait."""
        if self.count >= self._max_queue:
            log.debug("refused: %d requests wait, max_queue allows %d", self.count, self._max_queue)
            raise PoolError("busy", QUEUE_FULL)

    async def for_change(self) -> None:
        """Wait until any slot changes."""
        self._outside += 1
        try:
            await self._table.changed.wait()
        finally:
            self._outside -= 1

    async def for_memory(self) -> None:
        """Wait until new requests are not held back any more. Raises PoolError "busy" after a few seconds."""
        self.require_room()
        self._outside += 1
        try:
            async with asyncio.timeout(_HOLD_S):
                while self._governor.short:
                    await self._table.changed.wait()
        except TimeoutError:
            raise PoolError("busy", _SHORT_OF_MEMORY) from None
        finally:
            self._outside -= 1
