"""A *panic* is how a library written in Rust says that it cannot go on: tokenizers, for one, where a model's regular
expression takes more steps than it may. In Python it is no `Exception`, so that nobody takes it for an ordinary error;
in a thread that serves one request of many it ends that request like any other."""

from __future__ import annotations


def ends_only_its_request(error: BaseException) -> bool:
    """Whether `error` is one of the work that was done, and not a signal to the thread or the process."""
    # Each Rust library has a class of its own by this name, made when it is first raised.
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def told(error: BaseException) -> BaseException | None:
    """What the log may say of `error`: of a panic nothing, for it quotes the text that the library worked on."""
    return error if isinstance(error, Exception) else None
