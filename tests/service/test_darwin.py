"""Every branch for macOS runs here, with the platform patched and stand-ins for the programs that only macOS has."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import types
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from omlx.bench import energy, machine
from omlx.doctor import machine as doctor
from omlx.menubar import tray
from omlx.messages.frames import Hello
from omlx.migration import PortOwner
from omlx.migration.port import how_to_free
from omlx.power import Readings, sensors
from omlx.settings import Settings

assert urllib.request  # what it imports exists on the real platform only

ROOT = Path(__file__).parents[2]
BRANCHES = {
    "omlx/bench/energy.py": ("test_energy_comes_from_powermetrics", 3),
    "omlx/bench/machine.py": ("test_the_processor_comes_from_sysctl", 1),
    "omlx/doctor/machine.py": ("test_a_cpu_build_is_told_to_use_the_arm64_python", 1),
    "omlx/engine/blas.py": ("test_accelerate_is_the_blas", 1),
    "omlx/menubar/login.py": ("test_what_starts_at_login_is_this_program", 2),
    "omlx/menubar/tray.py": ("test_the_status_item_is_drawn_by_appkit_on_its_main_thread", 2),
    "omlx/migration/port.py": ("test_an_ollama_without_a_job_is_the_app", 1),
    "omlx/power/readings.py": ("test_the_sensors_of_a_mac", 1),
    "omlx/service/manager.py": ("test_launchd_is_told", 1),
}
"""File: the test that runs its branches, here or beside the rest of that package, and how many there are."""


@pytest.fixture(autouse=True)
def darwin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def comparisons(source: str) -> int:
    """How often `sys.platform` is compared with "darwin"."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare))
    return sum(
        ast.unparse(node.left) == "sys.platform" and any("darwin" in ast.unparse(other) for other in node.comparators)
        for node in nodes
    )


def test_every_branch_is_in_the_table_and_its_test_exists() -> None:
    files = [file for top in ("omlx", "registry", "cache") for file in (ROOT / top).rglob("*.py")]
    counts = Counter({str(file.relative_to(ROOT)): comparisons(file.read_text("utf-8")) for file in files})
    assert {name: count for name, count in counts.items() if count} == {
        name: count for name, (_, count) in BRANCHES.items()
    }
    tests = "".join(file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, _ in BRANCHES.values() if f"def {name}(" not in tests] == []


def test_energy_comes_from_powermetrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\\n".join(f"Combined Power (CPU + GPU + ANE): {milliwatts} mW" for milliwatts in (9000, 11000))
    program(tmp_path, "powermetrics", f"printf '{lines}\\n'; exec sleep 60", monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(energy.Nvml, "open", lambda: None)
    monkeypatch.setattr(energy, "rapl_joules", lambda _: None)
    meter = energy.Energy()
    assert meter.source == "powermetrics"
    power = energy.PowerMetrics.open()
    assert power is not None
    assert power._process.stdout is not None
    assert power._process.stdout.readline()  # it has begun to measure
    assert power.watts() == pytest.approx(11.0)
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    assert (energy.Energy().source, energy.PowerMetrics.open()) == ("", None)


def test_the_processor_comes_from_sysctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sysctl", '[ "$*" = "-n machdep.cpu.brand_string" ] && echo "Apple M4 Max"', monkeypatch)
    read = Path.read_text

    def absent(self: Path, *arguments: Any, **options: Any) -> str:
        if str(self) == "/proc/cpuinfo":
            raise FileNotFoundError(self)
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", absent)
    assert "Apple M4 Max" in machine.describe_machine()
    program(tmp_path, "sysctl", "exit 1", monkeypatch)
    assert "Apple" not in machine.describe_machine()


def test_an_ollama_without_a_job_is_the_app(tmp_path: Path) -> None:
    how = how_to_free(PortOwner("Ollama", 7), tmp_path, tmp_path)
    assert "quit Ollama in the menu bar" in how and "login items" in how


def test_the_sensors_of_a_mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    battery = "Now drawing from 'Battery Power'\\n -InternalBattery-0 (id=1)\\t85%%; discharging; 5:12 remaining"
    pmset = f"""case "$*" in "-g batt") printf "{battery}\\n";; "-g") echo " lowpowermode 1";; *) exit 1;; esac"""
    program(tmp_path, "pmset", pmset, monkeypatch)
    program(tmp_path, "ioreg", """echo '    "HIDIdleTime" = 2500000000'""", monkeypatch)
    monkeypatch.setattr(energy.Nvml, "open", lambda: None)
    monkeypatch.setitem(sys.modules, "Quartz", None)
    monkeypatch.setitem(sys.modules, "Foundation", None)
    plain = sensors().read()
    assert plain == Readings(on_battery=True, battery=0.85, low_power=True, idle_s=2.5)
    info = types.SimpleNamespace(thermalState=lambda: 2, isLowPowerModeEnabled=lambda: False)
    foundation = types.SimpleNamespace(NSProcessInfo=types.SimpleNamespace(processInfo=lambda: info))
    quartz = types.SimpleNamespace(CGMainDisplayID=lambda: 1, CGDisplayIsAsleep=lambda display: True)
    monkeypatch.setitem(sys.modules, "Foundation", foundation)
    monkeypatch.setitem(sys.modules, "Quartz", quartz)
    told = sensors().read()
    assert (told.thermal, told.low_power, told.display_on) == ("serious", False, False)


def test_a_cpu_build_is_told_to_use_the_arm64_python() -> None:
    findings = doctor._device(Hello(pid=1, device="cpu", blas="accelerate", versions={"mlx": "0.32.4"}))
    (gpu,) = [finding for finding in findings if finding.name == "gpu"]
    assert gpu.state == "warn"
    assert "arm64" in gpu.advice
    (metal,) = doctor._device(Hello(pid=1, device="metal", blas="accelerate", versions={"mlx": "0.32.4"}))
    assert metal.state == "ok"


def test_accelerate_is_the_blas() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from omlx.engine import blas; sys.platform = 'darwin'; print(blas.prepare())",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert ran.stdout == "accelerate\n"


def test_the_status_item_is_drawn_by_appkit_on_its_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """pystray is told to use AppKit, and what the control's thread saw is handed to AppKit's main thread."""
    backends: list[str | None] = []
    later: list[tuple[Any, ...]] = []

    class Icon:
        def __init__(self, *_: Any, **options: Any) -> None:
            backends.append(os.environ.get("PYSTRAY_BACKEND"))
            self.__dict__.update(options)

    pystray = types.ModuleType("pystray")
    pystray.Icon, pystray.Menu, pystray.MenuItem = Icon, lambda *entries: entries, lambda *_, **__: None  # type: ignore[attr-defined]
    pystray.Menu.SEPARATOR = None  # type: ignore[attr-defined]
    helper = types.ModuleType("PyObjCTools")
    helper.AppHelper = types.SimpleNamespace(callAfter=lambda *call: later.append(call))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PyObjCTools", helper)
    monkeypatch.setattr(tray, "find_spec", lambda _: object())
    monkeypatch.setattr(tray, "import_module", lambda _: pystray)
    monkeypatch.delenv("PYSTRAY_BACKEND", raising=False)
    item = tray.Tray(tray._pystray(), Settings())
    assert backends == ["darwin"]
    item._see(item._control.seen)
    ((draw, seen),) = later
    draw(seen)
    monkeypatch.delenv("PYSTRAY_BACKEND")
