"""Many requests for one name at once: the registry is asked few times, and nobody hears what was before they came."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from omlx_registry import ModelSpec, NotFound, Registry

from omlx.protocols.http_error import HTTPError
from omlx.server.names import find
from tests.support.tiny import tiny_model


class Counted(Registry):
    """A registry that counts how often a name is resolved, and waits before it answers where `hold` is cleared."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [])
        self.asked = 0
        self.hold = threading.Event()
        self.hold.set()
        self.began = threading.Event()

    def resolve(self, name: str, *others: Any, **options: Any) -> ModelSpec:
        self.asked += 1
        found = super().resolve(name, *others, **options)
        self.began.set()
        self.hold.wait(10)
        return found


def test_a_burst_shares_its_lookups_and_sees_what_was_done_before(tmp_path: Path) -> None:
    registry = Counted(tmp_path / "models")
    registry.add_model_folder("a", tiny_model("llama"))

    async def burst() -> tuple[list[str], Any]:
        registry.hold.clear()
        first = asyncio.create_task(find(registry, "a"))
        await asyncio.to_thread(registry.began.wait, 10)
        await asyncio.to_thread(registry.delete, "a")
        late = [asyncio.create_task(find(registry, "a")) for _ in range(20)]
        await asyncio.sleep(0)
        registry.hold.set()
        after = await asyncio.gather(*late, return_exceptions=True)
        return [(await first).name], after

    names, after = asyncio.run(burst())
    assert names == ["a:latest"]
    assert all(isinstance(error, HTTPError) and error.status == 404 for error in after)
    assert registry.asked == 2


def test_a_lookup_after_another_is_a_new_one(tmp_path: Path) -> None:
    registry = Counted(tmp_path / "models")

    async def twice() -> None:
        for _ in range(2):
            with pytest.raises(HTTPError):
                await find(registry, "nothing")

    asyncio.run(twice())
    assert registry.asked == 2
    with pytest.raises(NotFound):
        registry.resolve("nothing")
