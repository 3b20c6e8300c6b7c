"""What a body of any dialect may say beside the dialect's own fields."""

from __future__ import annotations

from typing import Any

import msgspec


class CommonFields(msgspec.Struct, kw_only=True):
    priority: Any = None
    """Ours: the class of the request, as the header `X-OMLX-Priority` has it. Other servers' numbers mean nothing."""
