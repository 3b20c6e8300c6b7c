"""The cache's settings do in the product what they say."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_cache.stats import ColdCounts, Stats

from omlx.protocols.admin.cache import CacheFaults, CacheStats
from tests.cli.conftest import make_model
from tests.support.lessons import STORY
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

ENV = {"OMLX_SPARE_RUNNER": "false", "OMLX_HOT_CACHE_MAX_SIZE": "64MB", "OMLX_CACHE_BLOCK_SIZE": "32"}


def chat(server: ServerProcess, model: str, system: str) -> int:
    """Ask; the number of prompt tokens that came from the cache."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]
    body = {"model": model, "messages": messages, "stream": False, "options": {"num_predict": 4}}
    reply = httpx.post(f"{server.url}/api/chat", json=body, timeout=60, trust_env=False).raise_for_status().json()
    return int(reply.get("cached_tokens", 0))


def stats(server: ServerProcess) -> dict[str, dict[str, Any]]:
    found = httpx.get(f"{server.url}/api/omlx/cache", timeout=60, trust_env=False).raise_for_status().json()
    return {model["model"].partition(":")[0]: model for model in found["models"]}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_the_wire_has_the_counters_of_the_store() -> None:
    assert CacheFaults.__struct_fields__ == ColdCounts.__struct_fields__
    assert set(CacheStats.__struct_fields__) - {"model", "enabled"} <= set(Stats.__struct_fields__)


@pytest.mark.slow
def test_write_through_block_size_and_the_shared_ram(tmp_path: Path) -> None:
    never = {"OMLX_CACHE_CHECKPOINT_INTERVAL": "0", "OMLX_CACHE_WRITE_THROUGH": "true"}
    server = ServerProcess(tmp_path, env=ENV | never).start()
    try:
        make_model("one", tiny_model("llama", taught=True), tmp_path, server.url)
        make_model("two", tiny_model("qwen3", taught=True), tmp_path, server.url)
        assert chat(server, "one", STORY) == 0
        alone = stats(server)["one"]
        assert (alone["block_size"], alone["hot_max_bytes"]) == (32, 64_000_000)
        # Written although no checkpoint is due and RAM is nearly empty.
        wait_until(lambda: stats(server)["one"]["cold_counts"]["written"] == alone["captured"])
        chat(server, "two", STORY)
        wait_until(lambda: [one["hot_max_bytes"] for one in stats(server).values()] == [32_000_000] * 2)
    finally:
        server.kill()
    # What was written through survives a kill. The budget counts what was written before it, too.
    budget = {"OMLX_CACHE_CHECKPOINT_INTERVAL": "1", "OMLX_CACHE_WRITE_BUDGET": "1KB"}
    with ServerProcess(tmp_path, env=ENV | budget) as server:
        assert chat(server, "one", STORY) > 100
        assert chat(server, "one", "Be brief. " + STORY) < 100
        # The checkpoint comes within seconds, and finds the budget of this hour spent.
        wait_until(lambda: stats(server)["one"]["cold_counts"]["dropped_over_budget"] > 0)
        found = stats(server)["one"]
        assert found["cold_counts"]["written"] == 0
        assert found["cold_written_this_hour"] > 1000
        assert found["cold_max_bytes"] > 0


@pytest.mark.slow
def test_what_a_checkpoint_has_written_survives_a_kill(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, env=ENV | {"OMLX_CACHE_CHECKPOINT_INTERVAL": "1"}).start()
    try:
        make_model("one", tiny_model("llama", taught=True), tmp_path, server.url)
        chat(server, "one", STORY)
        wait_until(lambda: stats(server)["one"]["cold_counts"]["written"] >= stats(server)["one"]["hot_records"])
    finally:
        server.kill()
    with ServerProcess(tmp_path, env=ENV) as server:
        assert chat(server, "one", STORY) > 100
