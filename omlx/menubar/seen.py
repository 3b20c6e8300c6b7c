"""What the menu bar has *seen*: the server at one moment, as plain data."""

from __future__ import annotations

import msgspec

from omlx.protocols.admin.overview import Overview


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """A look at the server. `overview` is None where no oMLX answers; `trouble` says why, "" where nobody listens."""

    url: str
    overview: Overview | None = None
    models: tuple[str, ...] = ()
    """On disk, the newest first."""
    pinned: frozenset[str] = frozenset()
    trouble: str = ""
    startable: bool = True
    """Whether a server may be started at this address: it is this machine's own."""
    at_login: bool = False
    doing: str = ""
    """What a click began that has not ended yet."""
    complaint: str = ""
    """Why the last click came to nothing."""
