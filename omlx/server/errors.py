"""What a client is told when something goes wrong: one table from exceptions to status and sentence.

Native routes answer `{"error": "sentence"}`. A `HTTPError` is an error a route itself decides on; everything else is
looked up in `_TABLE`. An exception nobody foresaw becomes a 500 that names the request id under which the log holds
the traceback; the traceback itself never leaves the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from litestar.exceptions import HTTPException
from omlx_registry import CreateError, InvalidDigest, InvalidName, NotFound, RegistryError

from omlx.pool import PoolError, RequestFailed
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama.gojson import Malformed
from omlx.protocols.options import OptionError
from omlx.record import current
from omlx.server.hidden_paths import hider
from omlx.server.log import logger

JSON_TYPE = "application/json; charset=utf-8"
_SHOWN_CHARS = 500
"""Of a sentence, in the dashboard."""


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Problem(NamedTuple):
    """An error as a protocol tells it; each dialect wraps it in its own envelope."""

    status: int
    message: str
    extra: Mapping[str, str] = MappingProxyType({})


_FAILED_STATUS = {"invalid": 400, "too_long": 400, "unsupported": 400, "busy": 503, "timeout": 503}


def _request_failed(error: RequestFailed) -> Problem:
    return Problem(_FAILED_STATUS.get(error.kind, 500), error.message)


def _pool_error(error: PoolError) -> Problem:
    return Problem(503 if error.kind in {"busy", "gone"} else 500, error.message)


_TABLE: tuple[tuple[type[Exception], Callable[[Any], Problem]], ...] = (
    (HTTPError, lambda error: Problem(error.status, error.message, error.extra)),
    (Malformed, lambda error: Problem(400, str(error))),
    (OptionError, lambda error: Problem(500, str(error))),
    (PoolError, _pool_error),
    (RequestFailed, _request_failed),
    (InvalidName, lambda error: Problem(400, error.message)),
    (NotFound, lambda error: Problem(404, error.message)),
    (InvalidDigest, lambda error: Problem(400, error.message)),
    (CreateError, lambda error: Problem(error.status, error.message)),
    (RegistryError, lambda error: Problem(500, error.message)),
    (ClientGone, lambda error: Problem(499, "request canceled")),
    # Numbers a frame cannot carry; Go would have read them as floats.
    (OverflowError, lambda error: Problem(400, "json: cannot unmarshal number: it is out of range")),
    (RecursionError, lambda error: Problem(400, "exceeded max depth")),
    (HTTPException, lambda error: Problem(error.status_code, error.detail)),
)


def problem(error: Exception, request_id: str) -> Problem:
    """Status and sentence for `error`; an unforeseen one is logged here, with its traceback."""
    for kind, tell in _TABLE:
        if isinstance(error, kind):
            result = tell(error)
            result = result._replace(message=_hide(result.message))
            current().error = result.message[:_SHOWN_CHARS]
            return result
    current().error = "internal error"
    logger.error("request %s failed: %s", request_id, error or type(error).__name__, exc_info=error)
    return Problem(500, f"internal error: see the server's log for request {request_id}")


def hide_paths(folders: Iterable[str | Path]) -> None:
    """From now on no error tells a client a path in one of these folders."""
    global _hide
    _hide = hider(folders)


_hide: Callable[[str], str] = str


def native_error(problem: Problem) -> dict[str, Any]:
    """`{"error": message}`, as in Ollama."""
    return {"error": problem.message, **problem.extra}


def headers(problem: Problem) -> dict[str, str]:
    return {"retry-after": "1"} if problem.status == 503 else {}


def request_id(scope: Any) -> str:
    """The id the log knows a request by."""
    return str(scope.get("omlx.request_id", "?"))
