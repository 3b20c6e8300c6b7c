"""docs/power.md has the rules, the conditions and the readings as they are."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from omlx.messages.work_limits import WorkLimits
from omlx.power.policy import RULES, TEXTS
from omlx.power.readings import Readings
from omlx.units import format_duration

PAGE = (Path(__file__).parents[2] / "docs" / "power.md").read_text("utf-8")


def shown(limits: WorkLimits) -> str:
    parts = [f"{name} {getattr(limits, name):.0%}".replace("%", " %") for name in ("pace", "share")
             if getattr(limits, name) < 1]  # fmt: skip
    parts += [] if limits.background else ["background waits"]
    parts += [f"{limits.places} places"] if limits.places else []
    parts += [f"prefill {limits.prefill:.0%}".replace("%", " %")] if limits.prefill < 1 else []
    parts += [] if limits.speculation else ["no speculation"]
    parts += [] if limits.checkpoints else ["no checkpoints"]
    parts += [f"keep-alive {format_duration(limits.keep_alive)}"] if limits.keep_alive is not None else []
    return ", ".join(parts)


def test_the_table_of_rules_is_the_policy() -> None:
    rows = re.findall(r"^\| (balanced|quiet|battery) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    expected = [
        (policy, TEXTS[name], shown(limits)) for policy, rules in RULES.items() for name, limits in rules.items()
    ]
    assert rows == expected


def test_every_condition_and_every_reading_is_explained() -> None:
    for text in TEXTS.values():
        assert re.search(rf"^\| {re.escape(text)} \| .+ \| .+ \|$", PAGE.split("Conditions begin")[1], re.MULTILINE)
    (example,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    found = msgspec.json.decode(example, type=Readings)
    missing = [name for name, value in msgspec.structs.asdict(found).items() if value is None]
    assert missing == ["gpu_throttled"]
