"""The ASGI application in front of replicas: what a model answers is passed through, the rest is our own server's.

A request that a replica did not take (no connection, or busy) goes to the next one, as long as nothing of an answer
has been sent. An answer that breaks off ends with an error in its own dialect. Models are looked after on the
replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import msgspec
from litestar import Request

from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama.gojson import Malformed
from omlx.replicas import choice
from omlx.replicas.choice import ReplicaRequest
from omlx.replicas.fleet import Fleet, Replica, reason
from omlx.server.body import parse, read_bytes
from omlx.server.body_memory import BodyReservation
from omlx.server.error_formats import error_text
from omlx.server.errors import JSON_TYPE, ClientGone, Problem
from omlx.server.forms import boundary_of, parse_form
from omlx.server.inflate import inflate
from omlx.server.route_info import ProtocolName, RouteInfo, RouteTable, body_limit
from omlx.urls import climbs

if TYPE_CHECKING:
    from litestar.types import ASGIApp, Receive, Send

log = logging.getLogger("omlx.server")

_NOT_PASSED = {
    *(b"host", b"origin", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade"),
    *(b"proxy-authorization", b"proxy-connection", b"content-length", b"expect"),
}
_NONE_THERE = "none of the servers behind this one answers: see its log, and omlx doctor on each of them"
_CLIMBS = "the path may not hold . or .. as a part"
_BROKE_OFF = "the server that was answering has gone away: please ask again"


class _Heard(NamedTuple):
    """A request, read to its end."""

    method: str
    path: str
    protocol: ProtocolName
    target: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    asked: ReplicaRequest


class Front:
    """Passes requests to the fleet; `app` is our own server, for everything that concerns no model."""

    def __init__(self, app: ASGIApp, routes: RouteTable, fleet: Fleet, max_body: int) -> None:
        self._app = app
        self._routes = routes
        self._fleet = fleet
        self._max_body = max_body

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        route = self._routes.find(path) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
        elif route.balancing in {"tags", "running"}:
            await _answer(send, 200, {"models": _union(self._fleet, route.balancing)})
        elif route.balancing == "each":
            where = ", ".join(replica.name for replica in self._fleet.replicas)
            problem = Problem(400, f"this address stands for several servers; do this on each: {where}")
            await _refuse(send, route.protocol, problem)
        elif climbs(path):
            await _refuse(send, route.protocol, Problem(400, _CLIMBS))
        elif route.balancing == "passed":
            try:
                heard = await self._hear(scope, receive, route)
            except HTTPError as error:
                await _refuse(send, route.protocol, Problem(error.status, error.message))
                return
            if heard is not None:
                await self._pass(heard, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _hear(self, scope: Any, receive: Receive, route: RouteInfo) -> _Heard | None:
        """The whole request; None where its client has left."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED]
        named = {name: value.decode("latin-1") for name, value in headers}
        encoding, boundary = named.get(b"content-encoding", ""), boundary_of(named.get(b"content-type", ""))
        share, limit = BodyReservation.of(scope), body_limit(route.body, self._max_body)
        try:
            body = await read_bytes(Request(scope, receive), limit)
            plain = await inflate(body, encoding, limit, share) if encoding else body
            if boundary:
                parsed = await asyncio.to_thread(_of_form, plain, boundary)
            else:
                parsed = await parse(plain, choice.read, share) if plain else ReplicaRequest()
        except Malformed:
            parsed = ReplicaRequest()  # the replica says what is wrong
        except ClientGone:
            return None
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return _Heard(scope["method"], scope["path"], route.protocol, target, headers, body, parsed)

    async def _pass(self, heard: _Heard, receive: Receive, send: Send) -> None:
        """Try replicas until one answers; end when the client leaves."""
        leaving = asyncio.ensure_future(_left(receive))
        answering = asyncio.ensure_future(self._try_all(heard, send))
        try:
            await asyncio.wait([leaving, answering], return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await answering
        finally:
            for task in (leaving, answering):
                task.cancel()
            await asyncio.gather(leaving, answering, return_exceptions=True)

    async def _try_all(self, heard: _Heard, send: Send) -> None:
        tried: list[Replica] = []
        while True:
            left = [replica for replica in self._fleet.healthy if replica not in tried]
            view = choice.choose((replica.view for replica in left), heard.asked)
            if view is None:
                await _refuse(send, heard.protocol, Problem(503, _NONE_THERE))
                return
            replica = next(replica for replica in left if replica.url == view.url)
            tried.append(replica)
            # Another may have a place, or the reply that this one has never heard of.
            others = {503, 404} if heard.path.startswith("/v1/responses") else {503}
            with replica.busy():
                if await self._try_one(replica, heard, send, give_up_on=others if len(left) > 1 else set()):
                    return

    async def _try_one(self, replica: Replica, heard: _Heard, send: Send, *, give_up_on: set[int]) -> bool:
        """Pass one replica's answer through. False: it took nothing on, and nothing was sent."""
        request = self._fleet.client.build_request(
            heard.method, replica.url + heard.target, headers=heard.headers, content=heard.body
        )
        try:
            answer = await self._fleet.client.send(request, stream=True)
        except httpx.HTTPError as error:
            log.warning("replica %s failed: %s", replica.name, reason(error))
            await replica.look(self._fleet.client)
            return False
        async with contextlib.aclosing(answer):
            if answer.status_code in give_up_on:
                return False
            headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in _NOT_PASSED]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for part in _parts(answer, heard.protocol, replica.name):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def _parts(answer: httpx.Response, protocol: ProtocolName, name: str) -> AsyncIterator[bytes]:
    """The body as it comes; where it breaks off, an error in the words of its dialect."""
    try:
        async for part in answer.aiter_raw():
            yield part
    except httpx.HTTPError as error:
        log.warning("an answer from %s broke off: %s", name, reason(error))
        text = error_text(protocol, Problem(500, _BROKE_OFF))
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            named = "event: error\n" if protocol == "anthropic" else ""
            yield f"{named}data: {text}\n\n".encode()
        else:
            yield f"{text}\n".encode()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _union(fleet: Fleet, what: str) -> list[dict[str, Any]]:
    """Models of all replicas, each once."""
    models: dict[str, dict[str, Any]] = {}
    for replica in fleet.healthy:
        for model in getattr(replica, what):
            models.setdefault(str(model.get("name")), model)
    return list(models.values())


async def _refuse(send: Send, protocol: ProtocolName, problem: Problem) -> None:
    await _write(send, problem.status, error_text(protocol, problem).encode())


def _of_form(body: bytes, boundary: str) -> ReplicaRequest:
    """The fields of a form that decide which replica gets it."""
    try:
        return choice.read({"model": parse_form(body, boundary).text("model")})
    except HTTPError:
        return ReplicaRequest()  # the replica says what is wrong


async def _answer(send: Send, status: int, body: Any) -> None:
    await _write(send, status, msgspec.json.encode(body))


async def _write(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", JSON_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
