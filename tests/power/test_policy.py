"""From readings to limits: the table of each policy, and conditions that begin at once and end late."""

from __future__ import annotations

import math
from itertools import product
from typing import get_args

import msgspec
import pytest

from omlx.messages.work_limits import UNLIMITED, WorkLimits, strictest
from omlx.power.policy import (
    COOL_S,
    RULES,
    SETTLE_S,
    TEXTS,
    Condition,
    PowerDecision,
    PowerPolicy,
    PowerSetting,
    decide,
)
from omlx.power.readings import Readings

SETTINGS: tuple[PowerSetting, ...] = get_args(PowerSetting)
MAINS = Readings(on_battery=False, thermal="nominal", low_power=False, idle_s=1000, display_on=False)
BATTERY = Readings(on_battery=True, battery=0.9, thermal="nominal", low_power=False, idle_s=1000)
TYPING = Readings(on_battery=False, thermal="nominal", idle_s=2)


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_a_sensor_nothing_changes(setting: PowerSetting) -> None:
    assert decide(setting, Readings(), 0.0).limits == UNLIMITED


@pytest.mark.parametrize("setting", SETTINGS)
def test_on_mains_cool_and_alone_nothing_changes(setting: PowerSetting) -> None:
    assert decide(setting, MAINS, 0.0).limits == UNLIMITED


@pytest.mark.parametrize(
    ("setting", "readings", "policy", "share", "pace", "background", "reason"),
    [
        ("auto", MAINS, "performance", 1.0, 1.0, True, ""),
        ("auto", TYPING, "performance", 1.0, 1.0, True, ""),
        ("auto", BATTERY, "battery", 0.25, 1.0, False, "on battery"),
        ("auto", Readings(low_power=True), "quiet", 0.25, 1.0, True, "low-power mode"),
        ("auto", Readings(low_power=True, on_battery=True), "battery", 0.25, 1.0, False, "on battery"),
        ("auto", Readings(thermal="critical"), "performance", 1.0, 1.0, True, ""),
        ("performance", Readings(on_battery=True, thermal="critical", idle_s=0), "performance", 1.0, 1.0, True, ""),
        ("balanced", TYPING, "balanced", 0.5, 1.0, True, "user active"),
        ("balanced", BATTERY, "balanced", 0.5, 1.0, True, "on battery"),
        ("balanced", Readings(thermal="fair"), "balanced", 1.0, 1.0, True, ""),
        ("balanced", Readings(thermal="serious"), "balanced", 0.5, 1.0, True, "temperature high"),
        ("balanced", Readings(thermal="critical"), "balanced", 0.25, 0.5, False,
         "temperature high, temperature critical"),
        ("quiet", TYPING, "quiet", 0.25, 1.0, True, "user active"),
        ("quiet", Readings(display_on=True), "quiet", 0.25, 1.0, True, "user active"),
        ("quiet", Readings(display_on=True, idle_s=1000), "quiet", 1.0, 1.0, True, ""),
        ("quiet", Readings(thermal="fair"), "quiet", 0.25, 1.0, True, "temperature raised"),
        ("quiet", Readings(thermal="serious"), "quiet", 0.25, 0.75, False, "temperature raised, temperature high"),
        ("battery", BATTERY, "battery", 0.25, 1.0, False, "on battery"),
        ("battery", Readings(on_battery=True, battery=0.1), "battery", 0.1, 0.75, False,
         "on battery, battery nearly empty"),
        ("battery", TYPING, "battery", 1.0, 1.0, True, ""),
        ("battery", Readings(battery=0.1, on_battery=False), "battery", 1.0, 1.0, True, ""),
    ],
)  # fmt: skip
def test_policies(
    setting: PowerSetting,
    readings: Readings,
    policy: PowerPolicy,
    share: float,
    pace: float,
    background: bool,
    reason: str,
) -> None:
    found = decide(setting, readings, 0.0)
    limits = found.limits
    assert (found.policy, limits.share, limits.pace, limits.background) == (policy, share, pace, background)
    assert found.reason == reason


def test_on_battery_nothing_is_done_ahead_of_need_and_models_go_sooner() -> None:
    limits = decide("auto", BATTERY, 0.0).limits
    assert (limits.speculation, limits.checkpoints, limits.keep_alive, limits.places) == (False, False, 60, 2)


def test_each_rule_limits_something_and_leaves_everybody_some_time() -> None:
    for rules in RULES.values():
        assert [name for name in TEXTS if name in rules] == sorted(rules, key=[*TEXTS].index)
        for limits in rules.values():
            assert limits != UNLIMITED
            assert 0 < limits.share <= 1 and 0 < limits.pace <= 1 and 0 < limits.prefill <= 1


def test_limits_of_several_conditions_are_never_looser_than_those_of_one() -> None:
    everything = [limits for rules in RULES.values() for limits in rules.values()]
    for first, second in product(everything, everything):
        both = strictest(first, second)
        assert both == strictest(second, first) == strictest(both, first)
        for each in (first, second):
            assert both.share <= each.share and both.pace <= each.pace and both.prefill <= each.prefill
            assert (both.places or math.inf) <= (each.places or math.inf)
            assert (both.keep_alive or math.inf) <= (each.keep_alive or math.inf)
            for name in ("background", "speculation", "checkpoints"):
                assert getattr(both, name) <= getattr(each, name)
        assert strictest(first, UNLIMITED) == first


Looks = list[tuple[float, Readings]]


def history(setting: PowerSetting, looks: Looks) -> list[tuple[Condition, ...]]:
    found: list[tuple[Condition, ...]] = []
    before: PowerDecision | None = None
    for now, readings in looks:
        before = decide(setting, readings, now, before)
        found.append(before.conditions)
    return found


def test_heat_is_over_only_after_a_while() -> None:
    hot, cool = Readings(thermal="serious"), Readings(thermal="nominal")
    looks = [(0.0, cool), (1.0, hot), (2.0, cool), (COOL_S, cool), (COOL_S + 1, cool), (COOL_S + 2, hot)]
    assert history("balanced", looks) == [(), ("hot",), ("hot",), ("hot",), (), ("hot",)]


def test_a_temperature_that_swings_does_not_change_the_policy_back_and_forth() -> None:
    looks = [(float(second), Readings(thermal="serious" if second % 10 == 0 else "fair")) for second in range(100)]
    assert {*history("balanced", looks)} == {("hot",)}


def test_a_user_who_reads_is_still_there() -> None:
    looks = [(float(at), Readings(idle_s=idle)) for at, idle in enumerate((61, 59, 61, 290, 301))]
    looks += [(5 + SETTLE_S, Readings(idle_s=310))]
    assert history("quiet", looks) == [(), ("user",), ("user",), ("user",), ("user",), ()]


def test_a_battery_at_the_threshold_changes_once() -> None:
    def at(level: float) -> Readings:
        return Readings(on_battery=True, battery=level)

    levels = (0.21, 0.199, 0.201, 0.24, 0.199)
    looks = [(float(second * 100), at(level)) for second, level in enumerate(levels)]
    assert [("low battery" in found) for found in history("battery", looks)] == [False, True, True, True, True]
    assert "low battery" not in history("battery", [*looks, (600.0, at(0.26))])[-1]


def test_a_plug_with_a_loose_contact_does_not_change_the_policy_back_and_forth() -> None:
    looks = [(float(second), Readings(on_battery=second % 3 > 0)) for second in range(30)]
    assert {*history("battery", looks[1:])} == {("battery",)}
    assert history("auto", [(0.0, BATTERY), (1.0, MAINS), (1.0 + SETTLE_S, MAINS)]) == [("battery",), ("battery",), ()]


def test_what_a_condition_is_called_is_known() -> None:
    assert set(TEXTS) == set(get_args(Condition))
    assert set(RULES) == set(get_args(PowerPolicy))


def test_limits_travel_as_they_are() -> None:
    for rules in RULES.values():
        for limits in rules.values():
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(limits), type=WorkLimits) == limits
