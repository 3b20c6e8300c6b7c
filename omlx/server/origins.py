"""*Origins*: the pages of browsers that may call this server (CORS), written as Ollama's OLLAMA_ORIGINS."""

from __future__ import annotations

import re
from collections.abc import Iterable

_EXTENSIONS = ("chrome-extension://", "safari-extension://", "moz-extension://", "ms-browser-extension://")
_BUILT_IN = (
    *(
        f"{scheme}://{host}{port}"
        for host in ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104 (an origin; nothing is bound)
        for port in ("", ":*")
        for scheme in ("http", "https")
    ),
    "app://*",
    "file://*",
    "tauri://*",
    "vscode-webview://*",
    "vscode-file://*",
)
_STAINLESS = ("Arch", "Async", "Custom-Poll-Interval", "Helper-Method", "Lang", "Os", "Package-Version", "Poll-Helper",
              "Retry-Count", "Runtime", "Runtime-Version", "Timeout")  # fmt: skip
_OWN_HEADERS = ("X-Api-Key", "Anthropic-Version", "Anthropic-Beta", "Anthropic-Dangerous-Direct-Browser-Access",
                "X-Request-Id", "X-Omlx-Priority", "X-Omlx-Deadline", "X-Omlx-Num-Ctx")  # fmt: skip
"""What browsers send beside Ollama's list, in the Anthropic protocol and for what is oMLX's own."""
_PREFLIGHT = {
    "access-control-allow-methods": "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS",
    "access-control-allow-headers": ",".join(
        ("Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "Openai-Beta",
         *(f"X-Stainless-{name}" for name in _STAINLESS), *_OWN_HEADERS)
    ),
    "access-control-max-age": "43200",
}  # fmt: skip
_PREFLIGHT_VARY = ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers")


class OriginError(ValueError):
    """An allowed origin is not written as Ollama wants it; the message names it."""


class Origins:
    """The browser origins that may call this server. Raises OriginError for an entry that cannot be used."""

    def __init__(self, entries: Iterable[str]) -> None:
        self.exact: set[str] = set()
        self.wild: list[tuple[str, str]] = []
        self.patterns: list[re.Pattern[str]] = []
        for entry in (*entries, *_BUILT_IN):
            self._add(entry)

    @property
    def everyone(self) -> bool:
        return ("", "") in self.wild

    def _add(self, entry: str) -> None:
        if len(entry) > 2 and entry.startswith("/") and entry.endswith("/"):
            try:
                self.patterns.append(re.compile(entry[1:-1]))
            except re.error as error:
                raise OriginError(f'the origin "{entry}" is no regular expression: {error}') from None
            return
        text = entry.lower()
        if text.count("*") > 1:
            raise OriginError(f'the origin "{entry}" holds more than one *')
        if "*" in text:
            before, _, behind = text.partition("*")
            self.wild.append((before, behind))
        elif text.startswith(("http://", "https://", *_EXTENSIONS)):
            self.exact.add(text)
        else:
            raise OriginError(f'the origin "{entry}" must start with http://, https:// or a browser extension scheme')

    def allow(self, origin: str) -> bool:
        text = origin.lower()
        return (
            text in self.exact
            or any(text.startswith(before) and text.endswith(behind) for before, behind in self.wild)
            or any(pattern.search(origin) for pattern in self.patterns)
        )

    def headers(self, origin: str, *, preflight: bool) -> tuple[tuple[str, str], ...]:
        """What an answer tells the browser about an origin that is allowed."""
        headers = [("access-control-allow-origin", "*" if self.everyone else origin)]
        if preflight:
            headers += [*_PREFLIGHT.items(), *(("vary", name) for name in _PREFLIGHT_VARY)]
        elif not self.everyone:
            headers.append(("vary", "Origin"))
        return tuple(headers)
