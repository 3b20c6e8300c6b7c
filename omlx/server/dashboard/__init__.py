"""The *dashboard*: one page for browsers and its files, kept in memory. Plain HTML, CSS and JavaScript modules.

The page holds no data of its own; its script asks the server's routes, with the API key where one is set. The policy
below lets it load nothing from anywhere else and run nothing that is not one of its files.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from omlx.server.stream import Complete

_FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    # Asked again each time, and answered with 304 while nothing has changed.
    ("cache-control", "no-cache"),
)


class _StaticFile(NamedTuple):
    content: bytes
    type: str
    tag: str


@cache
def _files() -> dict[str, _StaticFile]:
    files = {}
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            files[path.name] = _StaticFile(
                content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            )
    return files


def page() -> Complete:
    """The page itself; the same address says "Ollama is running" to clients, so caches must tell them apart."""
    return _answer(_files()["index.html"], ("vary", "Accept"))


def file(name: str, known_tag: str) -> Complete | None:
    """A file of the page, or None; `known_tag` is the caller's If-None-Match."""
    static = _files().get(name)
    if static is None:
        return None
    if known_tag == static.tag:
        return Complete(status=304, headers=(*_HEADERS, ("etag", static.tag)))
    return _answer(static)


def _answer(static: _StaticFile, *more: tuple[str, str]) -> Complete:
    return Complete(static.content, content_type=static.type, headers=(*_HEADERS, ("etag", static.tag), *more))
