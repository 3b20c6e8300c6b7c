"""`omlx catalog`: the names are listed, and a publisher's signed catalog is fetched over HTTP."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.cli.conftest import run_omlx

TEXT = b"""
version = 2999010100
[newcomer]
latest = "1b"
seen = "publisher"
[newcomer.sizes]
"1b" = { files = { "bf16" = "org/newcomer-1b" } }
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "published"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/catalog.toml"
        server.shutdown()
        thread.join()


def test_a_publishers_catalog_is_fetched_and_listed(address: str, tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    key = base64.b64encode(private.public_key().public_bytes_raw()).decode()
    env = {"OMLX_MODELS": str(tmp_path / "models")}
    missing = run_omlx("catalog", "update", "--from", address, "--key", key, **env)
    assert (missing.code, missing.out) == (1, "")
    assert "cannot be fetched" in missing.err
    (tmp_path / "published" / "catalog.toml").write_bytes(TEXT)
    (tmp_path / "published" / "catalog.toml.sig").write_bytes(base64.b64encode(private.sign(TEXT)))
    assert "qwen3 " in run_omlx("catalog", **env).out
    assert run_omlx("catalog", "update", "--from", address, "--key", key, **env).out == (
        "catalog 2999010100, 1 names\n"
    )
    assert run_omlx("catalog", "update", **env).out == "catalog 2999010100 is the newest\n"
    listed = run_omlx("catalog", **env).out.splitlines()
    assert listed[0].split() == ["newcomer", "1b"]
    assert listed[-1] == "version 2999010100"
