"""What HTTP/1.1 servers owe to clients that speak something older, or offer something newer."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_UPGRADE_FIELDS = {b"upgrade", b"http2-settings"}
_PROBE_EVERY_S = 5


def head_without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of a request as its client would have written it without the offer to change the protocol.

    A server may ignore the offer (RFC 9110, 7.8). The parser does not: it reads no body behind it.
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in headers:
        if name in _UPGRADE_FIELDS:
            continue
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in _UPGRADE_FIELDS)
            if not value:
                continue
        lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])


def send_unframed(cycle: RequestResponseCycle) -> None:
    """Make the answer end with the connection where it has no length: HTTP/1.0 knows no chunks (RFC 9112, 6.1)."""
    framed = cycle.send

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = False
        elif cycle.chunked_encoding is False and cycle.expected_content_length == 0:
            cycle.expected_content_length = len(message.get("body", b""))
        await framed(message)

    cycle.send = send  # type: ignore[method-assign]


def keep_probing(connection: socket.socket) -> None:
    """Have the system send probes that the other side must answer, every few seconds.

    A client that has left answers them like one that listens for about a minute, then with a reset.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL"):  # macOS calls the first TCP_KEEPALIVE
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, _PROBE_EVERY_S)
