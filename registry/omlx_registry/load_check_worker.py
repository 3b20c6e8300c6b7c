"""The process of a load checker (`python -m omlx_registry.load_check_worker`): one check after another.

It reads a question as a JSON line from stdin, writes its answer as one to stdout, and ends when stdin closes, also in
the middle of a check, or when no question comes for a while. The other end is `load_checkers`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from omlx_registry.errors import RegistryError
from omlx_registry.load_check import OpenModel, check_loads, check_renders, open_text_model, prepare
from omlx_registry.load_checkers import CheckLoads, CheckResult
from omlx_registry.templates import CheckChat
from omlx_registry.worker_client import JobFailure

IDLE_S: Final = 60.0
"""How long a checker waits for the next check, such as that of the next of several models."""
_NICENESS: Final = 10


def main(
    open_model: OpenModel = open_text_model,
    prepare: Callable[[], None] = prepare,
    check_chat: CheckChat = lambda templates, names: None,
) -> None:
    """`open_model` loads a model lazily, `prepare` imports what it needs. `check_chat` renders chat templates."""
    # Libraries print to stdout; the protocol has it to itself, their prints go to stderr.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    questions: queue.Queue[CheckLoads] = queue.Queue()
    threading.Thread(target=_read, args=(os.fdopen(os.dup(0), "rb"), questions), daemon=True).start()
    with contextlib.suppress(Exception):  # the check that needs it reports the error
        prepare()
    with contextlib.suppress(queue.Empty, BrokenPipeError):
        while True:
            stream.write(msgspec.json.encode(_answer(questions.get(timeout=IDLE_S), open_model, check_chat)) + b"\n")
            stream.flush()


def _answer(question: CheckLoads, open_model: OpenModel, check_chat: CheckChat) -> CheckResult:
    try:
        check_loads(Path(question.folder), question.capabilities, open_model)
        if question.renders:
            check_renders(Path(question.folder), check_chat)
    except RegistryError as error:
        return CheckResult(JobFailure(error.message, 400))
    except MemoryError:
        return CheckResult(JobFailure("there is not enough memory to check whether the model loads"))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return CheckResult(JobFailure(f"the model could not be checked: {type(error).__name__}: {error}"))
    return CheckResult()


def _read(stdin: BinaryIO, questions: queue.Queue[CheckLoads]) -> None:
    with contextlib.suppress(OSError):
        for line in stdin:
            questions.put(msgspec.json.decode(line, type=CheckLoads))
    os._exit(0)


if __name__ == "__main__":
    main()
    # Do not wait for threads or for the cleanup of MLX.
    os._exit(0)
