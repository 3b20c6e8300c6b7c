"""The *envelope* of an error: how OpenAI's and Anthropic's clients expect to be told about a problem.

The statuses and sentences are those of `errors`; only the wrapping differs. Each dialect has a body, the
handlers its routes need, and a Framing for streams.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Request, Response

from omlx.pool import RequestFailed
from omlx.protocols.ollama.gojson import EmptyBody
from omlx.server import errors
from omlx.server.errors import JSON_TYPE, Problem
from omlx.server.stream import EVENT_STREAM, Framing, event

if TYPE_CHECKING:
    from litestar.types import ExceptionHandlersMap

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


def openai_error(found: Problem) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {
        "error": {
            "message": found.message,
            "type": _kind(found.status, _OPENAI_TYPES),
            "param": found.extra.get("param"),
            "code": found.extra.get("code"),
        }
    }


def anthropic_error(found: Problem) -> dict[str, Any]:
    """`{"type": "error", "error": {type, message}, "request_id"}`."""
    return {
        "type": "error",
        "error": {"type": _kind(found.status, _ANTHROPIC_TYPES), "message": found.message},
        "request_id": f"req_{secrets.token_hex(12)}",
    }


def _kind(status: int, named: Mapping[int, str]) -> str:
    """Both protocols call all other mistakes of the client by one name, and all others of the server by another."""
    return named.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")


OPENAI = Framing(EVENT_STREAM, lambda found: event(openai_error(found)))
ANTHROPIC = Framing(EVENT_STREAM, lambda found: event(anthropic_error(found), "error"))


def _answer_openai(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    found = _problem(request, error)
    return _response(found, openai_error(found))


def _answer_anthropic(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    found = _problem(request, error)
    return _response(found, anthropic_error(found))


OPENAI_ERRORS: ExceptionHandlersMap = {Exception: _answer_openai}
ANTHROPIC_ERRORS: ExceptionHandlersMap = {Exception: _answer_anthropic}


def worded_for(path: str, found: Problem) -> str:
    """The body of an error that no route has answered, in the words of the dialect that `path` belongs to."""
    if path.startswith("/v1/messages"):
        body = anthropic_error(found)
    else:
        body = openai_error(found) if path.startswith("/v1/") else {"error": found.message}
    return msgspec.json.encode(body).decode()


def _problem(request: Request[Any, Any, Any], error: Exception) -> Problem:
    found = errors.problem(error, errors.request_id(request.scope))
    if isinstance(error, EmptyBody):
        return found._replace(message="EOF")
    if isinstance(error, RequestFailed) and error.kind == "too_long":
        # Agents look for this code to shorten their conversation.
        return found._replace(extra={"code": "context_length_exceeded"})
    return found


def _response(found: Problem, body: dict[str, Any]) -> Response[bytes]:
    return Response(
        msgspec.json.encode(body), status_code=found.status, media_type=JSON_TYPE, headers=errors.headers(found)
    )
