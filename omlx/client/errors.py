"""Errors of the client: what a server's answer says, as a sentence that a user should read."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from omlx.errors import UserError

if TYPE_CHECKING:
    import httpx


class ClientError(UserError):
    """A call failed. `status` is the HTTP status, 0 where there was no answer or the stream had begun.

    `str()` is the sentence to show. Streaming calls put the status line in front ("404 Not Found: model …"), as
    Ollama's do.
    """

    def __init__(self, message: str, *, status: int = 0, streaming: bool = False) -> None:
        self.status = status
        self.message = message
        line = f"{status} {_phrase(status)}" if streaming and status else ""
        super().__init__(f"{line}: {message}" if line and message else message or line)


class Unreachable(ClientError):
    """Nobody listens at the server's address."""


class _OpenAIError(msgspec.Struct):
    message: str = ""


class ErrorBody(msgspec.Struct):
    """The body of an error, in Ollama's format or in OpenAI's."""

    error: str | _OpenAIError = ""

    @property
    def message(self) -> str:
        return self.error if isinstance(self.error, str) else self.error.message


async def raise_for_status(response: httpx.Response, *, streaming: bool = False) -> None:
    """Raises ClientError where the server answered with an error."""
    if response.status_code < 400:
        return
    content = await response.aread()
    try:
        message = msgspec.json.decode(content, type=ErrorBody).message
    except msgspec.DecodeError:
        message = content.decode("utf-8", "replace").strip()
    if not message and not streaming:
        message = f"{response.status_code} {_phrase(response.status_code)}".strip()
    if response.status_code == 401 and "API key" in message:
        message += ": put one of the server's keys into OMLX_API_KEY"
    raise ClientError(message, status=response.status_code, streaming=streaming)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
