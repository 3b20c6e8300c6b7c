"""The power policy on the wire: in GET /api/omlx/status and in the dashboard's overview."""

from __future__ import annotations

import msgspec


class PowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How much work the power policy allows, and why."""

    setting: str = "performance"
    policy: str = "performance"
    """The one in use: what the setting auto has chosen; the label of omlx_power_policy."""
    reason: str = ""
    """Why work is limited; "": no policy limits it."""
    text: str = ""
    """The same as a sentence, with what is limited; "": nothing is."""
    share: float = 1.0
    """Part of the time for batch and background requests: omlx_power_share"""
    pace: float = 1.0
    """Part of the time for all replies, whose first tokens do not wait: omlx_power_pace"""
    background: bool = True
    """False: background requests wait."""
    watts: float | None = None
    """omlx_power_watts; None: not measured."""
    limit_watts: float = 0.0
    """The power limit: omlx_power_limit_watts; 0: none."""
    changes: int = 0
    """omlx_power_changes_total: of policy or reason, since the start."""
