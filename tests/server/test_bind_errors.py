"""An address that cannot be listened on ends the start with one sentence."""

from __future__ import annotations

import pytest

from omlx.server.process import run
from omlx.settings import Settings


def test_a_host_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert run(Settings(host="http://999.1.1.1:5", models=str(tmp_path), spare_runner=False)) == 1
    assert capsys.readouterr().err == "Error: listen tcp 999.1.1.1:5: bind: no such host\n"
