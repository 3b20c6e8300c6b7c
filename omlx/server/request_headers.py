"""*Request headers*: what a caller may say about any request, whatever its protocol: in headers, the class in the body
too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

from omlx.messages.context import MIN_CONTEXT
from omlx.messages.request import Priority

PRIORITY_HEADER = b"x-omlx-priority"
DEADLINE_HEADER = b"x-omlx-deadline"
CONTEXT_HEADER = b"x-omlx-num-ctx"
REQUEST_HEADERS = {PRIORITY_HEADER, DEADLINE_HEADER, CONTEXT_HEADER}
_COUNT = re.compile(r"0*[1-9][0-9]{0,9}")
_CLASSES: tuple[Priority, ...] = get_args(Priority)


class RequestHeaderError(ValueError):
    """A wish cannot be meant; the message says what can."""


class RequestHeaders(NamedTuple):
    """`priority` None: the usual one of its kind of request. `deadline_s`: seconds from arrival; None: no deadline.
    `num_ctx`: the context in tokens; 0: what the body or the model says."""

    priority: Priority | None
    deadline_s: float | None
    num_ctx: int


def read_request_headers(fields: Mapping[bytes, str]) -> RequestHeaders:
    """Raises RequestHeaderError."""
    priority = read_priority(fields.get(PRIORITY_HEADER, ""), "X-OMLX-Priority")
    return RequestHeaders(
        priority, _deadline(fields.get(DEADLINE_HEADER, "")), _context(fields.get(CONTEXT_HEADER, ""))
    )


def read_priority(text: str, field: str) -> Priority | None:
    """The class that `text` names, None for nothing; `field` is what the error calls it. Raises RequestHeaderError."""
    wanted = text.strip().lower()
    if not wanted:
        return None
    for name in _CLASSES:
        if name == wanted:
            return name
    raise RequestHeaderError(f"{field} must be one of {', '.join(_CLASSES)}")


def _deadline(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RequestHeaderError("X-OMLX-Deadline must be a number of seconds above 0")
    return seconds


def _context(text: str) -> int:
    text = text.strip()
    if not text:
        return 0
    if not _COUNT.fullmatch(text):
        raise RequestHeaderError("X-OMLX-Num-Ctx must be a number of tokens above 0")
    return max(MIN_CONTEXT, int(text))
