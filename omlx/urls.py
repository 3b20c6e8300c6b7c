"""URLs as they may be shown, and paths as they may be passed on."""

from __future__ import annotations

import re
from urllib.parse import unquote

_USERINFO = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/?#\s'\"]*@")
_DECODINGS = 4
"""A path that is still encoded after so many times is none that anybody means."""


def without_credentials(text: str) -> str:
    """`text` with the user names and passwords of its URLs left out."""
    return _USERINFO.sub(r"\1***@", text)


def climbs(path: str) -> bool:
    """Whether a path has a dot segment, however often it is encoded: behind a server that decodes it once more, it
    would be another path."""
    for _ in range(_DECODINGS):
        if any(segment in {".", ".."} for segment in re.split(r"[/\\]", path)):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True
