"""What a pool tells whoever counts: models that come and go, runners that end. Calls must not block nor raise."""

from __future__ import annotations

from typing import Literal, Protocol

from omlx.runner.host import EndReason

UnloadReason = Literal["asked", "expired", "room", "memory"]


class PoolEvents(Protocol):
    """`model` is the name under which it was loaded."""

    def loaded(self, model: str, seconds: float) -> None:
        """It is ready; the load took this long."""

    def load_failed(self, model: str, why: str) -> None:
        """It could not be loaded, or nobody waited for it any more; `why` is one of a few words."""

    def unloaded(self, model: str, reason: UnloadReason) -> None:
        """It begins to leave."""

    def runner_ended(self, model: str, reason: EndReason) -> None:
        """Its runner ended by itself or was ended for good reason; the next request starts another."""


class Unheard:
    """Events nobody listens to."""

    def loaded(self, model: str, seconds: float) -> None: ...
    def load_failed(self, model: str, why: str) -> None: ...
    def unloaded(self, model: str, reason: UnloadReason) -> None: ...
    def runner_ended(self, model: str, reason: EndReason) -> None: ...
