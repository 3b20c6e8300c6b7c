"""The *journal*: the requests to models that run now and the last ones that ended, for the dashboard's inspector."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

from omlx.protocols.admin.overview import RequestRow
from omlx.record import RequestRecord

KEPT = 200
DIALECTS = frozenset({"ollama", "openai", "anthropic"})


class Journal:
    """Every request is opened; what never asked for a model is forgotten again, unless it failed."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, RequestRecord] = {}
        self._ended: deque[tuple[int, RequestRecord]] = deque(maxlen=KEPT)

    def open(self, record: RequestRecord) -> int:
        number = next(self._numbers)
        self._open[number] = record
        return number

    def close(self, number: int) -> None:
        record = self._open.pop(number)
        if record.model or (record.status >= 400 and record.dialect in DIALECTS):
            self._ended.append((number, record))

    def rows(self, newer_than: float = 0.0) -> list[RequestRow]:
        """Those that run and those that ended, the newest first; of the ended, those after a moment (monotonic)."""
        running = [(number, record) for number, record in self._open.items() if record.model]
        ended = self._since(newer_than)
        return sorted((_row(*entry) for entry in (*running, *ended)), key=lambda row: row.number, reverse=True)

    def _since(self, moment: float) -> Iterator[tuple[int, RequestRecord]]:
        return (entry for entry in self._ended if entry[1].ended > moment)


def _row(number: int, record: RequestRecord) -> RequestRow:
    done = record.generations > 0
    return RequestRow(
        number=number,
        id=record.id,
        at=record.arrived_at,
        route=record.route or record.path,
        dialect=record.dialect,
        key=record.key,
        model=record.model or record.named,
        stage=record.stage,
        status=record.status,
        seconds=record.seconds,
        load=record.load_s,
        queue=record.queue_s if done else None,
        prefill=record.prefill_s if done else None,
        decode=record.decode_s if done else None,
        first_token=record.first - record.arrived if record.first else None,
        prompt_read=record.prompt_read,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        disk_tokens=record.disk_tokens,
        completion_tokens=record.completion_tokens,
        cache_reason=record.cache_reason,
        cache_message=record.cache_message,
        error=record.error,
    )
