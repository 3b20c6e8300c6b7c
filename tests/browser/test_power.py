"""The dashboard says what the power policy limits and why, as soon as it does, and nothing where it limits nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omlx.settings import Settings
from tests.browser.conftest import PATIENCE_MS
from tests.server.local import SCRIPTED, LocalServer, stocked
from tests.support.power import Readings


def test_a_policy_that_limits_work_shows_with_its_reason(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "readings.json"
    file.write_text('{"idle_s": 3600}')
    settings = Settings(
        models=str(tmp_path / "models"), spare_runner=False, power="quiet", power_limit=30.0, power_readings=str(file)
    )
    with LocalServer(stocked(tmp_path / "models"), settings, SCRIPTED) as server:
        server.pool.power._busy = lambda: True  # it looks each second
        readings = Readings(file, server.url)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(server.url)
        notice = page.locator("#power")
        notice.get_by_text("power is not measured").wait_for()
        readings.say(idle_s=1, cpu_watts=29.8)
        notice.get_by_text("policy quiet (user active)").wait_for()
        assert notice.inner_text() == (
            "Power: policy quiet (user active). Batch and background requests get 25 % of the time. "
            "Limit 30 W, now 30 W."
        )
        context.close()
    settings = Settings(models=str(tmp_path / "other"), spare_runner=False, power_readings=str(tmp_path / "none"))
    with LocalServer(stocked(tmp_path / "other"), settings, SCRIPTED) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.get_by_text("Live", exact=True).wait_for(timeout=PATIENCE_MS)
        page.get_by_text("Batch fill").wait_for(timeout=PATIENCE_MS)
        assert not page.locator("#power").is_visible()
        page.close()
