"""A *refusal*: a request that is well-formed but cannot be served, with the status and the sentence its client gets."""

from __future__ import annotations


class HTTPError(Exception):
    """`status` is an HTTP status, `message` the sentence, `extra` further keys beside the error."""

    def __init__(self, status: int, message: str, **extra: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra
