"""Tokens per joule of a real server, where only the counter of the machine's energy is simulated."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from omlx_registry import Registry

from omlx.bench.energy import Energy
from omlx.bench.measure import QUICK, Bench
from omlx.bench.target import BenchTarget
from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.tiny import DATA

WATTS = 40.0


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /sys/class/powercap, of a machine that always takes `WATTS`."""
    monkeypatch.setattr("omlx.bench.energy.Nvml.open", lambda: None)
    file = tmp_path / "powercap" / "intel-rapl:0" / "energy_uj"
    file.parent.mkdir(parents=True)
    begun, ending = time.perf_counter(), threading.Event()

    def count() -> None:
        while not ending.wait(0.002):
            fresh = file.with_name("new")
            fresh.write_text(str(int((time.perf_counter() - begun) * WATTS * 1e6)))
            fresh.replace(file)

    file.write_text("0")
    thread = threading.Thread(target=count)
    thread.start()
    yield file.parents[1]
    ending.set()
    thread.join()


def test_tokens_per_joule_by_batch_size_and_class(counter: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(tmp_path / "models"), paged_ssd_cache_dir=str(tmp_path / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server:
        target = BenchTarget(url=server.url, api="ollama", model="taught")
        bench = Bench(target, QUICK, lambda text: None)
        energy = Energy(counter)
        assert (energy.source, energy.missing) == ("RAPL", "")
        asyncio.run(bench.run_energy(energy, ("interactive", "background")))
    figures = {figure.name: figure.values for figure in bench.figures}
    assert figures["power idle (RAPL)"] == pytest.approx([WATTS], rel=0.1)
    for name in ("interactive", "background"):
        for batch in QUICK.batches:
            (per_joule,), (watts,), (rate,) = (
                figures[f"{kind} batch {batch}, {name}"] for kind in ("energy", "power", "rate")
            )
            assert watts == pytest.approx(WATTS, rel=0.5)
            assert per_joule == pytest.approx(rate / watts, rel=0.01)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (None, "this machine does not report its energy: no NVIDIA driver, no energy counters in"),
        ("intel-rapl:0", "may be read by root only: run `sudo omlx bench`"),
    ],
)
def test_a_machine_that_does_not_tell_its_energy_says_why(
    file: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx.bench.energy.Nvml.open", lambda: None)
    monkeypatch.setattr("omlx.bench.energy.sys.platform", "linux")
    if file:
        (tmp_path / file / "energy_uj").mkdir(parents=True)  # as unreadable to root as a protected one to others
    energy = Energy(tmp_path)
    assert energy.source == "" and sentence in energy.missing
