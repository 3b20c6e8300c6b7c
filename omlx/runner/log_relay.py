"""The *log relay*: what a runner prints becomes log lines of the server, with the model's name."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable

log = logging.getLogger("omlx.runner")

_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR): ?(?:\[([\w.-]+)\] )?(.*)", re.DOTALL)
"""Level, the id of the request that the line is about where it is about one, and text."""
_PANIC = re.compile(r"thread '.*' (?:\(\d+\) )?panicked at (\S+?):?\Z")
"""What a Rust library prints; the next lines say why, often with the text that it worked on: somebody's prompt."""


async def relay(output: asyncio.StreamReader, writer: asyncio.StreamWriter, name: Callable[[], str]) -> None:
    """Log until `output` ends, then close it by its `writer`. `name`: whose lines they are."""
    after_panic = False
    try:
        async for text in _lines(output):
            match = _LEVEL.fullmatch(text)
            panicked = _PANIC.match(text)
            if panicked is None and match is None and after_panic:
                continue
            after_panic = panicked is not None
            if panicked is not None:
                text = f"a library panicked at {panicked[1]}"
            level, about, message = match.groups() if match else ("INFO", None, text)
            log.log(logging.getLevelNamesMapping()[level], "%s: %s", name(), message, extra={"request_id": about})
    finally:
        writer.close()


async def _lines(output: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines without blanks at the end; one that does not fit the buffer comes in pieces."""
    rest = b""
    while chunk := await output.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line.decode("utf-8", "replace").rstrip()
        if len(rest) > 1 << 16:
            yield rest.decode("utf-8", "replace")
            rest = b""
    if rest.strip():
        yield rest.decode("utf-8", "replace").rstrip()
