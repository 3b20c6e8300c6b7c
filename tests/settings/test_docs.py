"""Generated pages say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from litestar import Litestar
from omlx_registry import Registry

from docs import compatibility
from omlx.pool import Pool
from omlx.server.app import create_app
from omlx.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


def test_the_settings_page_is_up_to_date() -> None:
    found = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert found is not None
    assert found.loader is not None
    generate = importlib.util.module_from_spec(found)
    found.loader.exec_module(generate)
    assert (DOCS / "configuration.md").read_text("utf-8") == generate.configuration(), "run `make docs`"


def test_the_compatibility_page_is_up_to_date() -> None:
    assert compatibility.PAGE.read_text("utf-8") == compatibility.page(), "run `make docs`"


def test_the_compatibility_page_has_every_native_route(tmp_path: Path) -> None:
    settings = Settings(models=str(tmp_path), spare_runner=False)
    app = create_app(settings, Registry(tmp_path), Pool(settings)).app
    assert isinstance(app, Litestar)
    served: dict[str, set[str]] = {}
    for route in app.routes:
        path = re.sub(r":\w+}", "}", route.path)
        if path == "/" or (path.startswith("/api/") and not path.startswith("/api/omlx")):
            served.setdefault(path, set()).update(str(method) for method in route.methods if method != "OPTIONS")
    assert served == {route.path: set(route.methods.split(", ")) for route in compatibility.ROUTES}
