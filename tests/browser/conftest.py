"""A headless Chromium for the tests of this folder; without one, or without Playwright, they skip and say why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install -e '.[browser]'")
    path = os.environ.get("OMLX_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium, or name one in OMLX_CHROMIUM")
    with playwright.sync_playwright() as driver:
        # Containers have no user namespaces for Chromium's own sandbox; it only sees our page.
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()
