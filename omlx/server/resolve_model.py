"""Serving a model by name: who waits for a model is answered by what its name stands for when it is loaded.

While it waits, for room or for a load, another client may copy, create or delete under that name. What the request was
to get is gone then; so the name is looked up again and the answer made anew, which may be a 404.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from omlx_registry import ModelSpec, Registry

from omlx.pool import PoolError
from omlx.server.body import aside
from omlx.server.names import NotFoundText, find, single_quoted
from omlx.server.stream import Answer

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

_MOST_TRIES = 10
"""Beyond, somebody changes the name faster than it loads."""

Make = Callable[[ModelSpec], Answer]


async def served(registry: Registry, name: str, make: Make, not_found: NotFoundText = single_quoted) -> Answer:
    """What `make` answers with the model a request names; it may be asked more than once. Raises what `find` raises."""
    spec = await find(registry, name, not_found)
    return _Served(registry, name, make, not_found, await aside(lambda: make(spec)))


class _Served(Answer):
    def __init__(self, registry: Registry, name: str, make: Make, not_found: NotFoundText, answer: Answer) -> None:
        self.registry = registry
        self.name = name
        self.make = make
        self.said = not_found
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tries = 1
        while True:
            try:
                # An error leaves an answer only before its first byte.
                return await self.answer(scope, receive, send)
            except PoolError as error:
                if error.kind != "gone" or tries == _MOST_TRIES:
                    raise
            tries += 1
            spec = await find(self.registry, self.name, self.said)
            self.answer = await aside(partial(self.make, spec))
