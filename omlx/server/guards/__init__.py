"""The *guards*: middlewares that every request passes before a route sees it, one concern per file.

From the outside in, as in Ollama: one Host header, the Origin (CORS), the Host against DNS rebinding, the API key where
keys are set, the router's own answers (404, 405, redirects), and the request headers that go into the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx.server.guards.host import HostCheck, HostCount
from omlx.server.guards.key import KeyCheck
from omlx.server.guards.origin import OriginCheck
from omlx.server.guards.request_headers import HeaderReader
from omlx.server.guards.route import RouteCheck
from omlx.server.guards.shutdown import ShutdownAnswer
from omlx.server.hosts import Hosts
from omlx.server.keys import Keys
from omlx.server.origins import Origins
from omlx.server.route_info import RouteTable

if TYPE_CHECKING:
    from litestar.types import ASGIApp


def guarded(app: ASGIApp, *, origins: Origins, hosts: Hosts, keys: Keys, routes: RouteTable) -> ASGIApp:
    """`app` behind all guards."""
    app = HeaderReader(ShutdownAnswer(app, routes), routes)
    app = KeyCheck(RouteCheck(app, routes), keys, routes)
    return HostCount(OriginCheck(HostCheck(app, hosts), origins))
