"""The Host checks: one Host header, as in Go's HTTP server; and on loopback only hosts of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx.server.guards.guard import PASS, Guard, RequestHead, Verdict
from omlx.server.hosts import Hosts

if TYPE_CHECKING:
    from litestar.types import ASGIApp


class HostCount(Guard):
    """Refuses requests with several Host headers, or without one where HTTP demands it."""

    def judge(self, head: RequestHead) -> Verdict:
        if head.host_count > 1:
            # A proxy in front may have looked at another of them.
            return Verdict(400, text="400 Bad Request: too many Host headers")
        if head.host_count == 0 and head.http_version == "1.1":
            return Verdict(400, text="400 Bad Request: missing required Host header")
        return PASS


class HostCheck(Guard):
    """Refuses foreign hosts, against DNS rebinding."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        super().__init__(app)
        self._hosts = hosts

    def judge(self, head: RequestHead) -> Verdict:
        if not self._hosts.allow(head.host):
            return Verdict(403)
        if head.method == "OPTIONS" and self._hosts.checked and self._hosts.named(head.host):
            return Verdict(204)
        return PASS
