"""What a check found."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `fail`: oMLX does not work like this; `warn`: it does, but not as well as it could."""

    name: str
    state: State
    text: str
    advice: str = ""
    """What to do; "" where nothing has to be done."""
