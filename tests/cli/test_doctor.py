"""`omlx doctor`, `omlx ps --verbose`, `omlx stop --server`, and what `omlx config` says of the machine."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import PLAIN, Omlx, run_omlx
from tests.support.server import ServerProcess, free_port


def test_doctor_finds_nothing_wrong_without_a_server_and_starts_none(omlx: Omlx, tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    # A disk that has little room is worth a warning, which is no failure.
    ran = omlx("doctor", host=host, OMLX_MODELS=str(tmp_path / "models"), OMLX_AUTOSTART="true")
    assert ran.code == 0, ran.out
    lines = {line[6:].split("  ")[0].strip(): line for line in ran.out.splitlines()}
    assert lines["omlx"].startswith("ok")
    assert "computes on" in lines["mlx"]
    assert "of RAM" in lines["memory"]
    assert "no server runs there" in lines["port"]
    # This machine has no GPU; with one it depends on its memory.
    assert "tokens by default" in lines["context"]
    assert not (tmp_path / "models").exists()


def test_doctor_names_what_is_broken_and_exits_with_one(omlx: Omlx, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = omlx(
        "doctor", "--json", host=f"127.0.0.1:{free_port()}", OMLX_MODELS=str(tmp_path / "file" / "models"),
        OMLX_PAGED_SSD_CACHE_DIR=str(tmp_path / "file" / "kv"), HF_TOKEN="hf_very_secret",
    )  # fmt: skip
    assert ran.code == 1
    report = json.loads(ran.out)
    checks = {check["name"]: check for check in report["checks"]}
    assert not report["ok"]
    assert checks["models folder"]["state"] == "fail"
    assert "not a directory" in checks["models folder"]["text"]
    assert "--models" in checks["models folder"]["advice"]
    assert checks["cache folder"]["state"] == "warn"
    assert checks["hugging face"]["text"].startswith("there is a token")
    assert "very_secret" not in ran.out


def test_doctor_tells_a_port_that_others_have(omlx: Omlx, tmp_path: Path) -> None:
    program = (
        "from http.server import *; ThreadingHTTPServer(('127.0.0.1', {}), BaseHTTPRequestHandler).serve_forever()"
    )
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", program.format(port)], stderr=subprocess.DEVNULL) as other:
        try:
            while not any(found.status == psutil.CONN_LISTEN for found in psutil.Process(other.pid).net_connections()):
                pass
            ran = omlx("doctor", host=f"127.0.0.1:{port}", OMLX_MODELS=str(tmp_path))
            stopped = omlx("stop", "--server", host=f"127.0.0.1:{port}")
        finally:
            other.kill()
    assert ran.code == 1
    assert "FAIL" in ran.out
    assert f"127.0.0.1:{port}" in ran.out
    assert stopped.code == 1
    assert stopped.err.startswith("Error: ")


def test_a_server_that_says_nothing_does_not_hold_up(inline: Omlx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.service.ending._ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = inline("stop", "--server", host=f"127.0.0.1:{silent.getsockname()[1]}")
    assert ran.code == 1
    assert "does not answer" in ran.err


@pytest.mark.parametrize(("tokens", "enough"), [("4096", False), ("65536", True)])
def test_doctor_says_which_context_requests_get_and_what_agents_need(omlx: Omlx, tokens: str, enough: bool) -> None:
    ran = omlx("doctor", "--json", host=f"127.0.0.1:{free_port()}", OMLX_CONTEXT_LENGTH=tokens)
    (found,) = (check for check in json.loads(ran.out)["checks"] if check["name"] == "context")
    assert (found["state"], found["text"]) == ("ok", f"{int(tokens):,} tokens by default (context_length)")
    assert ("OMLX_CONTEXT_LENGTH=65536" in found["advice"]) is not enough


def test_doctor_stops_at_a_setting_that_cannot_be_used(omlx: Omlx) -> None:
    ran = omlx("doctor", OMLX_MAX_QUEUE="many")
    assert ran.code == 1
    assert ran.out.startswith("FAIL  settings  max_queue = 'many' (from env OMLX_MAX_QUEUE) cannot be used")


def test_doctor_and_ps_tell_what_the_server_does(real: Omlx, server: ServerProcess) -> None:
    assert real("run", PLAIN, "Hello").code == 0
    lines = real("ps", "--verbose").out.splitlines()
    assert lines[0].split() == [
        "NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "WEIGHTS", "OFF", "PINNED", "RUNNING", "QUEUED",
        "BATCH", "GUESSES", "HITS", "FROM", "RAM", "FROM", "SSD",
    ]  # fmt: skip
    row = next(line for line in lines if line.startswith(PLAIN))
    assert " float32 " in row
    assert " no " in row
    assert " of " in row
    ran = real("doctor", OMLX_MODELS=str(server.models))
    assert f"http://127.0.0.1:{server.port}, process {server.process.pid if server.process else 0}" in ran.out
    assert f"model {PLAIN}:latest" in ran.out
    assert "memory in use" in ran.out


def test_config_says_what_follows_the_machine(omlx: Omlx) -> None:
    found = json.loads(omlx("config", "--json", OMLX_MAX_PROCESS_MEMORY="50%").out)
    assert found["max_process_memory"]["here"] > 0
    assert found["max_concurrent_requests"]["here"] == 256
    assert "here" not in found["max_queue"]
    assert " here)" in omlx("config").out


def test_stop_ends_the_server_and_its_runners(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"OMLX_SPARE_RUNNER": "true"}) as server:
        assert server.process is not None
        ran = run_omlx("stop", "--server", host=server.url)
        assert (ran.code, ran.out) == (0, f"stopped the server (process {server.process.pid})\n")
        assert server.process.wait(120) == 0
        again = run_omlx("stop", "--server", host=server.url)
        assert (again.code, again.err) == (1, f"Error: no server runs at {server.url}\n")
    assert signal.SIGTERM.name in server.log_text()
