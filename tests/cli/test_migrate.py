"""`omlx migrate`: an Ollama's settings in oMLX's config file, after a look at them; and what the doctor says of it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests.cli.conftest import Omlx
from tests.support.ollama_store import OllamaFolder
from tests.support.server import ServerProcess, free_port

UNIT = """[Service]
Environment="OLLAMA_KEEP_ALIVE=1h" "OLLAMA_FLASH_ATTENTION=1"
"""


def ollama_home(home: Path) -> dict[str, str]:
    """A home with the service of an Ollama, and the environment of a user who has it."""
    unit = home / ".config" / "systemd" / "user" / "ollama.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(UNIT)
    return {"HOME": str(home), "OMLX_CONFIG": "", "XDG_CONFIG_HOME": str(home / "config")}


def test_settings_are_shown_then_written(omlx: Omlx, tmp_path: Path) -> None:
    env = ollama_home(tmp_path)
    config = tmp_path / "config" / "omlx" / "config.toml"
    host = f"127.0.0.1:{free_port()}"
    shown = omlx("migrate", host=host, **env)
    assert shown.code == 0, shown.err
    unit = tmp_path / ".config" / "systemd" / "user" / "ollama.service"
    assert f"+keep_alive = 3600.0  # Ollama: {unit}" in shown.out
    assert "note: OLLAMA_FLASH_ATTENTION: not needed" in shown.out
    assert f"Port {host.rpartition(':')[2]} is free" in shown.out
    assert "the config file was not written" in shown.err and not config.exists()
    assert omlx("migrate", "--dry-run", "--yes", host=host, **env).code == 0
    assert not config.exists()
    assert f"wrote {config}" in omlx("migrate", "--yes", host=host, **env).out
    told = tomllib.loads(config.read_text())
    assert told == {"host": f"http://{host}", "keep_alive": 3600.0}
    settings = json.loads(omlx("config", "--json", host=host, **env).out)
    assert settings["keep_alive"] == {"value": 3600.0, "source": str(config)}
    again = omlx("migrate", "--yes", host=host, **env)
    assert "No settings of an Ollama to migrate." in again.out
    assert tomllib.loads(config.read_text()) == told


def test_the_port_of_a_server_that_runs_is_told(omlx: Omlx, server: ServerProcess, tmp_path: Path) -> None:
    env = ollama_home(tmp_path)
    told = omlx("migrate", "--dry-run", host=f"127.0.0.1:{server.port}", **env)
    assert f"runs at 127.0.0.1:{server.port}" in told.out


def test_doctor_points_to_an_ollama(omlx: Omlx, tmp_path: Path) -> None:
    env = ollama_home(tmp_path)
    OllamaFolder(tmp_path / ".ollama" / "models").add("a:1b", [("model", b"GGUF")])
    told = omlx("doctor", "--json", host=f"127.0.0.1:{free_port()}", OMLX_MODELS=str(tmp_path / "models"), **env)
    checks = {check["name"]: check for check in json.loads(told.out)["checks"]}
    assert checks["ollama"]["state"] == "ok"
    assert checks["ollama"]["text"].startswith("1 model of ")
    assert "omlx import --from ollama" in checks["ollama"]["advice"] and "omlx migrate" in checks["ollama"]["advice"]
    assert not (tmp_path / "models").exists()
