"""Every sensor is optional: what is there is read as the system means it, what is absent changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omlx.power import Readings, Sensors, linux, macos, sensors
from omlx.power.rapl import RaplPower
from omlx.power.readings import ReadingsFile


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


@pytest.mark.parametrize(
    ("files", "watts"),
    [
        ({"power_now": "8500000"}, 8.5),
        ({"power_now": "-8500000"}, 8.5),  # some drivers count what leaves the battery as negative
        ({"current_now": "500000", "voltage_now": "12000000"}, 6.0),
        ({"current_now": "500000"}, None),
        ({}, None),
    ],
)
def test_a_battery_says_what_is_drawn_from_it(files: dict[str, str], watts: float | None, tmp_path: Path) -> None:
    battery = {f"class/power_supply/BAT0/{name}": text for name, text in files.items()}
    found = linux.supplies(sysfs(tmp_path, LAPTOP | battery))
    assert found.get("battery_watts") == watts


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
    battery = '"ExternalConnected" = No\n"Voltage" = 12000\n"InstantAmperage" = {}\n'
    assert macos.battery_power_of(battery.format(2**64 - 1500)) == {"battery_watts": 18.0}
    assert macos.battery_power_of(battery.format(1500)) == macos.battery_power_of("") == {}
    assert macos.battery_power_of(battery.format(2**64 - 1500).replace("No", "Yes")) == {}


def test_a_machine_with_some_sensors_names_the_others(tmp_path: Path) -> None:
    found = sensors(root=sysfs(tmp_path, LAPTOP))
    readings = found.read()
    assert (readings.on_battery, readings.battery, readings.thermal) == (True, 0.42, None)
    assert {"temperature", "low-power mode", "display"} <= set(found.absent(readings))
    assert "mains or battery" not in found.absent(readings)


def test_a_machine_without_sensors_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("omlx.power.readings.Nvml.open", lambda: None)
    assert sensors(root=tmp_path).read() == Readings()


def test_the_power_of_processors_is_the_growth_of_their_counters(tmp_path: Path) -> None:
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    counter.parent.mkdir()
    now = 0.0
    power = RaplPower(tmp_path, lambda: now)
    assert power() == {}, "there is no file"
    looks = [(1.0, 5_000_000), (2.0, 25_000_000), (2.1, 99_000_000), (4.0, 65_000_000), (5.0, 1_000)]
    found = []
    for at, microjoules in looks:
        now = at
        counter.write_text(str(microjoules))
        found.append(power().get("cpu_watts"))
    # The third look comes too soon, and before the last the counter began again.
    assert found == [None, 20.0, 20.0, 20.0, 20.0]
    counter.unlink()
    now = 6.0
    assert power() == {}


def test_power_is_that_of_processors_and_gpus_or_else_of_the_battery() -> None:
    assert Readings().watts is None
    assert Readings(battery_watts=9.0).watts == 9.0
    assert Readings(cpu_watts=20.0, gpu_watts=5.0, battery_watts=9.0).watts == 25.0
    assert Readings(gpu_watts=5.0, battery_watts=9.0).watts == 5.0


def test_a_slow_sensor_is_read_less_often() -> None:
    now, reads = 0.0, 0

    def slow() -> dict[str, Any]:
        nonlocal now, reads
        now, reads = now + 0.05, reads + 1
        return {"battery": reads / 10}

    found = Sensors([slow], lambda: now)
    for _ in range(20):
        now += 1.0
        assert found.read().battery == reads / 10
    assert reads == 4, "50 ms each 5 s are 1 % of the time"


def test_a_file_of_readings_replaces_the_sensors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "readings.json"
    found = sensors(str(file))
    assert found.read() == Readings() and not caplog.records

    def read(text: str) -> Readings:
        file.write_text(text)
        return sensors(str(file)).read()

    assert read('{"on_battery": true, "battery": 0.4}') == Readings(on_battery=True, battery=0.4)
    assert read('{"thermal": "serious", "idle_s": null}') == Readings(thermal="serious")
    file.write_text('{"batery": 0.4}')
    wrong = ReadingsFile(file)
    assert wrong() == wrong() == {}
    assert [record.message for record in caplog.records] == [
        f"the file of power readings {file} cannot be used: Object contains unknown field `batery`"
    ], "said once"
