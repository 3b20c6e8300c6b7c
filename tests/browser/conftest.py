"""A headless Chromium for the tests of this folder; where none is to be had they skip and say why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.chromium import program

PATIENCE_MS = 120_000
"""For whatever a page is waited for: only a fault takes so long."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the whole session: as long as it is open, Playwright's event loop runs in this thread."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: `make test` installs it")
    path = program()
    if path is None:
        pytest.skip("no Chromium: `make test` gets one where it can; CHROMIUM may name one")
    with playwright.sync_playwright() as driver:
        # Containers have no user namespaces for Chromium's own sandbox; it only sees our page.
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()
