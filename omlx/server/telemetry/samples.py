"""The last hour as *samples*: one small look at the metrics every few seconds, for rates, quantiles and plots."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from omlx.server.telemetry.reading import Buckets, MetricsReading

EVERY_S = 5.0
KEPT = 720
"""An hour of samples."""


class MetricsSample(NamedTuple):
    """Counts since the server's start, and what was so at that moment. Bytes, tokens, requests; `at` in Unix s."""

    at: float
    read: float
    generated: float
    prompt: float
    from_ram: float
    from_disk: float
    rows: float
    places: float
    first: Buckets
    running: float
    waiting: float
    memory: float
    refused: float

    @classmethod
    def of(cls, reading: MetricsReading) -> MetricsSample:
        """What the metrics say now."""
        return cls(
            at=time.time(),
            read=reading.total("omlx_read_tokens_total"),
            generated=reading.total("omlx_generated_tokens_total"),
            prompt=reading.total("omlx_prompt_tokens_total"),
            from_ram=reading.total("omlx_cached_tokens_total", tier="ram"),
            from_disk=reading.total("omlx_cached_tokens_total", tier="disk"),
            rows=reading.total("omlx_decoded_rows_total"),
            places=reading.total("omlx_decode_places_total"),
            first=reading.buckets("omlx_time_to_first_token_seconds"),
            running=reading.total("omlx_requests_running"),
            waiting=reading.total("omlx_requests_waiting"),
            memory=reading.total("omlx_memory_used_bytes"),
            # /ready says so with the same status, to whoever asks.
            refused=reading.total("omlx_http_requests_total", status="503")
            - reading.total("omlx_http_requests_total", status="503", dialect="omlx"),
        )


class Samples:
    def __init__(self) -> None:
        self.kept: deque[MetricsSample] = deque(maxlen=KEPT)

    def keep(self, sample: MetricsSample) -> None:
        self.kept.append(sample)

    def oldest(self) -> MetricsSample | None:
        return self.kept[0] if self.kept else None

    def before(self, seconds: float, now: float) -> MetricsSample | None:
        """The youngest sample that is at least so old, else the oldest there is."""
        for sample in reversed(self.kept):
            if now - sample.at >= seconds:
                return sample
        return self.oldest()
