"""No error tells a client where files are on the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.server.hidden_paths import hider
from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, stocked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/blobs/sha256-ab: no such file", "sha256-ab: no such file"),
        ("no '/srv/models/a/config.json', twice: /srv/models/b.json", "no 'config.json', twice: b.json"),
        ("the folder /srv/models cannot be written", "the folder models cannot be written"),
        ("the folder /srv/models/ cannot be written", "the folder models cannot be written"),
        ("/srv/models-of-others/x and /etc/passwd stay", "/srv/models-of-others/x and /etc/passwd stay"),
        ("no path at all", "no path at all"),
    ],
)  # fmt: skip
def test_of_a_path_only_the_name_is_shown(text: str, shown: str) -> None:
    assert hider(["/srv/models", ""])(text) == shown


def test_a_model_that_cannot_be_loaded_names_its_file_only(tmp_path: Path) -> None:
    """The scripted runner repeats what a library might say of a file."""
    server = LocalServer(stocked(tmp_path), Settings(models=str(tmp_path), spare_runner=False), SCRIPTED)
    with server, server.client() as http:
        for path in (tmp_path / "blobs" / "sha256-00", tmp_path.resolve() / "blobs" / "sha256-00"):
            for fault in ("fail", "break"):
                body = {"model": "plain", "prompt": f"{fault} internal cannot read {path}"}
                for stream in (True, False):
                    text = http.post("/api/generate", json={**body, "stream": stream}).text
                    assert "cannot read sha256-00" in text
                    assert str(tmp_path) not in text
