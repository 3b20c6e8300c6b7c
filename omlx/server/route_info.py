"""What a *route* says of itself: whose protocol it speaks, who answers it where replicas stand behind this server, how
large a body it takes, and whether it needs an API key where keys are set.

Each handler carries it as Litestar's `opt`, made by `route_opt`. The guards, the errors, the telemetry, the reading of
bodies and the balancer of replicas look it up here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from litestar import Litestar
from litestar.routes import HTTPRoute

ProtocolName = Literal["ollama", "openai", "anthropic", "omlx"]
Balancing = Literal["own", "passed", "tags", "running", "each"]
"""Where replicas stand behind this server, a request is answered by this server itself ("own"), passed to one of them
("passed"), answered with the models that they have ("tags") or have loaded ("running"), or refused, since it is to be
done on each ("each")."""
BodyKind = Literal["names", "texts", "media"]
"""What the largest body is made of: names and switches; texts; or images, videos and sound as well."""
NAMES_BYTES = 1_000_000
_TEXTS_BYTES = 32_000_000
"""And a quarter of `max_body` where that is more."""


def route_opt(
    protocol: ProtocolName, balancing: Balancing = "own", *, body: BodyKind = "names", needs_key: bool = True
) -> dict[str, Any]:
    """A handler's `opt`. `needs_key` False: the answer only shows that a server runs."""
    return {"protocol": protocol, "balancing": balancing, "body": body, "needs_key": needs_key}


def body_limit(kind: BodyKind, max_body: int) -> int:
    """Bytes of the largest body, with the setting `max_body`; 0: no limit, as in the setting."""
    if kind == "names":
        return min(NAMES_BYTES, max_body or NAMES_BYTES)
    return max_body if kind == "media" else min(max_body, max(_TEXTS_BYTES, max_body // 4))


class RouteInfo(NamedTuple):
    """A path's methods, and what `route_opt` says of its handlers."""

    methods: tuple[str, ...]
    protocol: ProtocolName
    balancing: Balancing = "own"
    body: BodyKind = "names"
    needs_key: bool = True


class RouteTable:
    """The paths that exist; `{x}` in a path stands for one segment, `{x:path}` for any number."""

    def __init__(self, routes: Mapping[str, RouteInfo]) -> None:
        self._static = {path: info for path, info in routes.items() if "{" not in path}
        self._patterns = [
            (re.compile(re.sub(r"\{[^}]*\}", _segments, path)), info) for path, info in routes.items() if "{" in path
        ]

    def find(self, path: str) -> RouteInfo | None:
        info = self._static.get(path)
        if info is not None:
            return info
        return next((info for pattern, info in self._patterns if pattern.fullmatch(path)), None)

    def methods(self, path: str) -> tuple[str, ...]:
        """The methods registered for `path`; empty where there is no such path."""
        info = self.find(path)
        return info.methods if info else ()

    def needs_key(self, path: str) -> bool:
        """Whether a request for `path` needs an API key where keys are set; one for no route does."""
        info = self.find(path)
        return info is None or info.needs_key

    def protocol(self, path: str) -> ProtocolName:
        """The protocol of the route; of a path without one, that of the paths which begin like it."""
        info = self.find(path)
        if info is not None:
            return info.protocol
        if path.startswith("/v1/messages"):
            return "anthropic"
        if path.startswith("/v1/"):
            return "openai"
        return "ollama" if path.startswith("/api/") and not path.startswith("/api/omlx") else "omlx"


def _segments(parameter: re.Match[str]) -> str:
    return ".+" if parameter[0].endswith(":path}") else "[^/]+"


def routes_of(app: Litestar) -> dict[str, RouteInfo]:
    """Each path of the application, in Litestar's notation ("/v1/models/{name:path}").

    Litestar's own OPTIONS handlers do not count: the guards answer those. Raises KeyError where a handler has no
    `route_opt`.
    """
    table: dict[str, RouteInfo] = {}
    for route in app.routes:
        path = "/".join(part if isinstance(part, str) else f"{{{part.full}}}" for part in ("", *route.path_components))
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            methods = {str(method) for method in handler.http_methods if method != "OPTIONS"}
            if not methods:
                continue
            known = table.get(path or "/")
            methods.update(known.methods if known else ())
            options: dict[str, Any] = {name: handler.opt[name] for name in RouteInfo._fields[1:]}
            info = RouteInfo(tuple(sorted(methods)), **options)
            if known is not None and known[1:] != info[1:]:
                raise ValueError(f"the handlers of {path} disagree on what they say of the route")
            table[path or "/"] = info
    return table


def protocol_of(scope: Any) -> ProtocolName:
    """The protocol of the handler that a request came to; ours where it came to none."""
    handler = scope.get("route_handler")
    protocol: ProtocolName = "omlx" if handler is None else handler.opt.get("protocol", "omlx")
    return protocol
