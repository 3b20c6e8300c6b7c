"""Generated pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_page_is_up_to_date() -> None:
    found = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    generate = importlib.util.module_from_spec(found)
    found.loader.exec_module(generate)
    assert (DOCS / "configuration.md").read_text("utf-8") == generate.configuration(), "run `make docs`"
