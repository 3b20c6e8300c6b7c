"""docs/api.md names every route the server has."""

from __future__ import annotations

from pathlib import Path

from litestar import Litestar
from omlx_registry import Registry

from docs import openapi
from omlx.pool import Pool
from omlx.server.app import create_app
from omlx.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_route_is_on_the_page(tmp_path: Path) -> None:
    settings = Settings(models=str(tmp_path), spare_runner=False)
    app = create_app(settings, Registry(tmp_path), Pool(settings)).app
    assert isinstance(app, Litestar)
    text = PAGE.read_text("utf-8")
    missing = []
    for route in app.routes:
        fixed = [part for part in route.path_components if isinstance(part, str)]
        if fixed and not all(part in text for part in fixed):
            missing.append(route.path)
    assert len(app.routes) > 30
    assert missing == []


def test_a_keep_alive_may_be_a_text_to_clients_that_are_made_from_the_document() -> None:
    fields = openapi.document()["components"]["schemas"]["OllamaGenerateRequest"]["properties"]
    assert {"type": "string"} in fields["keep_alive"]["anyOf"]


def test_the_openapi_document_is_up_to_date() -> None:
    """Else run `make docs`."""
    assert openapi.PAGE.read_text("utf-8") == openapi.page()
