"""The address of the setting `host`: Ollama's forms of it, where a server listens, and where a client finds it."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from omlx.settings.fields import DEFAULT_PORT, Settings


def parse_host(text: str) -> str:
    """Ollama's `OLLAMA_HOST` forms → a URL with scheme, host and port, and a path prefix where one was given.

    "" → http://127.0.0.1:11434, "1.2.3.4" → …:11434, ":1234" → http://0.0.0.0:1234, "https://x" → port 443,
    "[::1]" or "::1" → http://[::1]:11434. A port that is no number falls back to the scheme's default, as in Ollama,
    which is right for its own variable only.
    """
    text = text.strip(" \t\"'")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
        port = DEFAULT_PORT
    else:
        port = 443 if scheme == "https" else 80
    if scheme not in {"http", "https"}:
        raise ValueError("it must be an address such as 127.0.0.1:11434 or http://host:port")
    address, slash, path = rest.partition("/")
    host, port_text = _split_port(address)
    if port_text and _is_port(port_text):
        port = int(port_text)
    if not host:
        host = "0.0.0.0" if address.startswith(":") else "127.0.0.1"  # noqa: S104
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}{slash}{path}".rstrip("/")


def has_usable_port(text: str) -> bool:
    """Whether the port of a host, if it has one, can be one."""
    _, _, rest = text.strip(" \t\"'").rpartition("://")
    _, port = _split_port(rest.partition("/")[0])
    return not port or _is_port(port)


def _is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None and int(text) <= 65535


def _split_port(address: str) -> tuple[str, str]:
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":")
    if address.count(":") > 1:
        return address, ""
    host, _, port = address.partition(":")
    return host, port


def bind_address(settings: Settings) -> tuple[str, int]:
    """Host and port to listen on."""
    parts = urlsplit(settings.host)
    return parts.hostname or "127.0.0.1", DEFAULT_PORT if parts.port is None else parts.port


def client_url(settings: Settings) -> str:
    """Base URL for a client: the unspecified addresses are reached through loopback."""
    return settings.host.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
