"""*Error formats*: how the clients of each protocol expect to be told about a problem.

The statuses and sentences are those of `errors`; only the wrapping differs. Each protocol has a body, and a Framing
for streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import Request, Response

from omlx.pool import RequestFailed
from omlx.protocols.ollama.gojson import EmptyBody
from omlx.server import errors
from omlx.server.errors import JSON_TYPE, Problem, native_error
from omlx.server.route_info import ProtocolName, protocol_of
from omlx.server.stream import EVENT_STREAM, Framing, event

_OPENAI_TYPES = {
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def openai_error(problem: Problem) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {
        "error": {
            "message": problem.message,
            "type": _kind(problem.status, _OPENAI_TYPES),
            "param": problem.extra.get("param"),
            "code": problem.extra.get("code"),
        }
    }


def anthropic_error(problem: Problem) -> dict[str, Any]:
    """`{"type": "error", "error": {type, message}, "request_id"}`."""
    return {
        "type": "error",
        "error": {"type": _kind(problem.status, _ANTHROPIC_TYPES), "message": problem.message},
        "request_id": f"req_{secrets.token_hex(12)}",
    }


def _kind(status: int, named: Mapping[int, str]) -> str:
    """Both protocols call all other mistakes of the client by one name, and all others of the server by another."""
    return named.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")


OPENAI = Framing(EVENT_STREAM, lambda found: event(openai_error(found)))
ANTHROPIC = Framing(EVENT_STREAM, lambda found: event(anthropic_error(found), "error"))


_BODIES: Mapping[ProtocolName, Callable[[Problem], dict[str, Any]]] = {
    "ollama": native_error,
    "omlx": native_error,
    "openai": openai_error,
    "anthropic": anthropic_error,
}


def error_text(protocol: ProtocolName, problem: Problem) -> str:
    """The JSON of an error that no route has answered, in the words of a protocol; Ollama's has a sentence only."""
    if _BODIES[protocol] is native_error:
        problem = Problem(problem.status, problem.message)
    return msgspec.json.encode(_BODIES[protocol](problem)).decode()


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Litestar's handler for every exception of a route: in the format of the protocol that the route names."""
    protocol = protocol_of(request.scope)
    problem = errors.problem(error, errors.request_id(request.scope))
    if _BODIES[protocol] is not native_error:
        problem = _for_other_protocols(problem, error)
    return Response(
        msgspec.json.encode(_BODIES[protocol](problem)),
        status_code=problem.status,
        media_type=JSON_TYPE,
        headers=errors.headers(problem),
    )


def _for_other_protocols(problem: Problem, error: Exception) -> Problem:
    if isinstance(error, EmptyBody):
        return problem._replace(message="EOF")
    if isinstance(error, RequestFailed) and error.kind == "too_long":
        # Agents look for this code to shorten their conversation.
        return problem._replace(extra={"code": "context_length_exceeded"})
    return problem
