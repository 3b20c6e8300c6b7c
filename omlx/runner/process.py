"""Runner processes from the outside: how one is started, and what its exit says in plain words.

Everything between the server and a runner is a socket, its output included. An event loop closes what it is given, and
of a pipe it closes the number alone: the Python object that holds the pipe closes that number once more, when it may
belong to a client's connection. A socket object is told that it has no number any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

RUNNER: Sequence[str] = (sys.executable, "-P", "-m", "omlx.runner")
"""The command; the number of the inherited socket is appended. `-P`: the working directory is no source of imports."""

GROUP_ENDED = 4
"""Exit code of a rank of a distributed model whose group is broken."""

ENVIRONMENT = {
    # A runner works on local files only.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONUNBUFFERED": "1",
    "RUST_BACKTRACE": "0",
}


LOG_LEVEL = "OMLX_RUNNER_LOG"
"""The variable that tells a runner the level of our own loggers; those of libraries may name what prompts say."""


def log_level() -> str:
    """What a runner of this process is told."""
    return logging.getLevelName(logging.getLogger("omlx.runner").getEffectiveLevel())


def set_log_level() -> None:
    """In a runner: log as the server does. A level that is none leaves all as it is."""
    for name in ("omlx", "omlx_cache"):
        with contextlib.suppress(ValueError):
            logging.getLogger(name).setLevel(os.environ.get(LOG_LEVEL, "INFO"))


class Started(NamedTuple):
    """A new process, the server's end of the socket for frames, and of the one that its output comes through."""

    process: subprocess.Popen[bytes]
    frames: socket.socket
    output: socket.socket


def start(command: Sequence[str] = RUNNER) -> Started:
    """A new runner process; stdout and stderr come together as its output. Raises OSError.

    The process gets its own session, so that Ctrl-C in a terminal reaches the server alone, which then ends its runners
    in order. Call it from a thread that lives as long as the runner shall: Linux ties the runner's life to that thread.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process, output = start_with_output(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ENVIRONMENT, LOG_LEVEL: log_level()},
            )
        except BaseException:
            ours.close()
            raise
    return Started(process, ours, output)


def start_with_output(
    command: Sequence[str], *, stdin: int, pass_fds: Sequence[int] = (), env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process in its own session, and the socket that its stdout and stderr come through. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
                pass_fds=pass_fds,
                start_new_session=True,
                env=env,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def describe_exit(code: int) -> str:
    """A sentence for the log: what `Popen.returncode` means and what to do about it."""
    if code == GROUP_ENDED:
        return "one of the processes that share it ended; the server's log says which"
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"it was ended by signal {-code}"
    match name:
        case "SIGKILL":
            return (
                "it was killed (SIGKILL), most often because memory ran out: "
                "use a smaller model, a smaller context or fewer loaded models"
            )
        case "SIGSEGV" | "SIGBUS" | "SIGILL":
            return f"it crashed ({name}), most often an allocation that cannot be served or a fault in the MLX backend"
        case "SIGABRT":
            return "it aborted (SIGABRT), most often an error that the device reported; the server's log says which"
        case "SIGTERM":
            return "it was told to end (SIGTERM) from outside"
    return f"it was ended by {name}"
