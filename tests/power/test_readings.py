"""Every sensor is optional: what is there is read as the system means it, what is absent changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omlx.power import Readings, linux, macos, sensors


def sysfs(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


LAPTOP = {
    "class/power_supply/AC/type": "Mains",
    "class/power_supply/AC/online": "0",
    "class/power_supply/BAT0/type": "Battery",
    "class/power_supply/BAT0/status": "Discharging",
    "class/power_supply/BAT0/capacity": "42",
    "class/power_supply/hid-mouse/type": "Battery",
    "class/power_supply/hid-mouse/scope": "Device",
    "class/power_supply/hid-mouse/status": "Discharging",
    "class/power_supply/hid-mouse/capacity": "3",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        (LAPTOP, {"on_battery": True, "battery": 0.42}),
        (LAPTOP | {"class/power_supply/AC/online": "1", "class/power_supply/BAT0/status": "Charging"},
         {"on_battery": False, "battery": 0.42}),
        ({"class/power_supply/AC/type": "Mains", "class/power_supply/AC/online": "1"}, {"on_battery": False}),
        ({"class/power_supply/BAT0/type": "Battery", "class/power_supply/BAT0/capacity": "full"}, {}),
    ],
)  # fmt: skip
def test_the_source_of_power(files: dict[str, str], expected: dict[str, Any], tmp_path: Path) -> None:
    assert linux.supplies(sysfs(tmp_path, files)) == expected


def zone(temperature: int, **trips: int) -> dict[str, str]:
    files = {"class/thermal/thermal_zone0/temp": str(temperature)}
    for index, (kind, at) in enumerate(trips.items()):
        files[f"class/thermal/thermal_zone0/trip_point_{index}_type"] = kind
        files[f"class/thermal/thermal_zone0/trip_point_{index}_temp"] = str(at)
    return files


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (zone(60_000, passive=95_000, critical=105_000), "nominal"),
        (zone(91_000, passive=95_000, critical=105_000), "fair"),
        (zone(95_000, passive=95_000, critical=105_000), "serious"),
        (zone(101_000, passive=95_000, critical=105_000), "critical"),
        (zone(99_000, hot=98_000), "critical"),
        (zone(60_000, critical=105_000), "nominal"),
        (zone(60_000, active=40_000), None),
        (zone(60_000), None),
        (zone(60_000, critical=-274_000), None),
        ({}, None),
    ],
)
def test_heat_goes_by_the_trip_points_of_the_zone(files: dict[str, str], expected: str | None, tmp_path: Path) -> None:
    assert linux.heat(sysfs(tmp_path, files)).get("thermal") == expected


def test_the_hottest_zone_counts(tmp_path: Path) -> None:
    sysfs(tmp_path, zone(60_000, passive=95_000))
    hot = {name.replace("zone0", "zone1"): text for name, text in zone(96_000, passive=95_000).items()}
    assert linux.heat(sysfs(tmp_path, hot)) == {"thermal": "serious"}


def test_profile_and_display(tmp_path: Path) -> None:
    assert linux.profile(tmp_path) == {} and linux.display(tmp_path) == {}
    sysfs(tmp_path, {"firmware/acpi/platform_profile": "low-power"})
    assert linux.profile(tmp_path) == {"low_power": True}
    screen = {"class/drm/card0-HDMI-A-1/status": "disconnected", "class/drm/card0-HDMI-A-1/dpms": "On"}
    assert linux.display(sysfs(tmp_path, screen)) == {}
    screen = {"class/drm/card0-eDP-1/status": "connected", "class/drm/card0-eDP-1/dpms": "Off"}
    assert linux.display(sysfs(tmp_path, screen)) == {"display_on": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IdleHint=no\nIdleSinceHintMonotonic=0\n", {"idle_s": 0.0}),
        ("IdleHint=yes\nIdleSinceHintMonotonic=90000000\n", {"idle_s": 10.0}),
        ("IdleHint=yes\n", {}),
        ("", {}),
    ],
)
def test_logind_says_when_the_user_was_there(text: str, expected: dict[str, Any]) -> None:
    assert linux.idle_of(text, now=100.0) == expected


def test_what_a_mac_prints_is_understood() -> None:
    """Texts as these commands print them; the commands themselves run on a Mac only."""
    laptop = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1234)\t85%; discharging; 5:12 remaining\n"
    assert macos.supplies_of(laptop) == {"on_battery": True, "battery": 0.85}
    assert macos.supplies_of("Now drawing from 'AC Power'\n") == {"on_battery": False}
    assert macos.supplies_of("") == {}
    assert macos.idle_of('    | |   "HIDIdleTime" = 2500000000\n') == {"idle_s": 2.5}
    assert macos.idle_of("nothing") == {}
    assert macos.mode_of(" sleep                1\n lowpowermode         1\n") == {"low_power": True}
    assert macos.mode_of("") == {}


def test_a_machine_with_some_sensors_names_the_others(tmp_path: Path) -> None:
    found = sensors(sysfs(tmp_path, LAPTOP))
    readings = found.read()
    assert (readings.on_battery, readings.battery, readings.thermal) == (True, 0.42, None)
    assert {"temperature", "low-power mode", "display"} <= set(found.absent(readings))
    assert "mains or battery" not in found.absent(readings)


def test_a_machine_without_sensors_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("omlx.power.readings.Nvml.open", lambda: None)
    assert sensors(tmp_path).read() == Readings()
