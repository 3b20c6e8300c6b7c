"""The settings of an Ollama are found wherever they stand, and become oMLX's, or a sentence says why not."""

from __future__ import annotations

import os
import plistlib
import socket
import sqlite3
import tomllib
from pathlib import Path

import pytest

from omlx.migration import GivenVariable, PortOwner, find, listener, plan
from omlx.migration.port import how_to_free
from omlx.settings import SettingError, load

UNIT = """[Unit]
Description=Ollama Service
Environment="OLLAMA_DEBUG=not of the service"

[Service]
ExecStart=/usr/local/bin/ollama serve
User=ollama
Environment="PATH=/usr/bin" "OLLAMA_HOST=0.0.0.0"
Environment=OLLAMA_KEEP_ALIVE=1h \\
    OLLAMA_NUM_PARALLEL=4
# Environment=OLLAMA_MAX_QUEUE=1
EnvironmentFile=-/etc/default/ollama

[Install]
WantedBy=default.target
"""
OVERRIDE = """[Service]
Environment="OLLAMA_KEEP_ALIVE=-1"
Environment="OLLAMA_ORIGINS=https://a.example, app://mine"
Environment="HTTPS_PROXY=http://proxy:3128"
"""


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def values(found: list[GivenVariable]) -> dict[str, str]:
    return {given.name: given.value for given in found}


def test_a_unit_and_its_drop_ins_are_read_as_systemd_reads_them(tmp_path: Path) -> None:
    write(tmp_path / "etc/systemd/system/ollama.service", UNIT)
    write(tmp_path / "etc/systemd/system/ollama.service.d/override.conf", OVERRIDE)
    write(tmp_path / "etc/default/ollama", "# a comment\nOLLAMA_CONTEXT_LENGTH='8192'\nOTHER=1\n")
    found = find({}, tmp_path / "home", tmp_path)
    assert values(found) == {
        "OLLAMA_HOST": "0.0.0.0",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NUM_PARALLEL": "4",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_ORIGINS": "https://a.example, app://mine",
        "HTTPS_PROXY": "http://proxy:3128",
    }
    origins = {given.name: given.origin for given in found}
    assert origins["OLLAMA_HOST"] == "/etc/systemd/system/ollama.service"
    assert origins["OLLAMA_KEEP_ALIVE"] == "/etc/systemd/system/ollama.service.d/override.conf"
    write(tmp_path / "etc/systemd/system/ollama.service.d/zz.conf", "[Service]\nEnvironment=\n")
    left = values(find({}, tmp_path / "home", tmp_path))
    assert left == {"OLLAMA_CONTEXT_LENGTH": "8192"}, "an empty assignment takes back what stood before"
    write(tmp_path / "etc/systemd/system/ollama.service.d/zz.conf", "[Service]\nEnvironment=\nEnvironmentFile=\n")
    assert values(find({}, tmp_path / "home", tmp_path)) == {}


def test_a_users_unit_names_files_by_its_home_and_they_go_first(tmp_path: Path) -> None:
    home = tmp_path / "home"
    unit = """[Service]
EnvironmentFile=-%h/.ollama/env
Environment=OLLAMA_MODELS=%h/models OLLAMA_KEEP_ALIVE=1h OLLAMA_ORIGINS=app://50%%
"""
    write(home / ".config/systemd/user/ollama.service", unit)
    write(home / ".ollama/env", "OLLAMA_KEEP_ALIVE=30m\n")
    assert values(find({}, home, tmp_path)) == {
        "OLLAMA_MODELS": f"{home}/models",
        "OLLAMA_KEEP_ALIVE": "30m",
        "OLLAMA_ORIGINS": "app://50%",
    }


def test_a_launchd_job_and_the_app_are_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    job = {"Label": "homebrew.mxcl.ollama", "EnvironmentVariables": {"OLLAMA_FLASH_ATTENTION": "1", "PATH": "/bin"}}
    write(home / "Library/LaunchAgents/homebrew.mxcl.ollama.plist", plistlib.dumps(job))
    write(home / "Library/LaunchAgents/com.ollama.damaged.plist", b"\x00bplist" * 10)
    database = home / "Library/Application Support/Ollama/db.sqlite"
    database.parent.mkdir(parents=True)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE settings (id INTEGER, expose BOOLEAN, models TEXT, context_length INTEGER)")
        connection.execute("INSERT INTO settings VALUES (1, 1, '/Volumes/big/models', 16384)")
    before = database.read_bytes()
    assert values(find({"OLLAMA_DEBUG": "1", "PATH": "/bin"}, home, tmp_path)) == {
        "OLLAMA_DEBUG": "1",
        "OLLAMA_FLASH_ATTENTION": "1",
        "OLLAMA_HOST": "0.0.0.0",
        "OLLAMA_MODELS": "/Volumes/big/models",
        "OLLAMA_CONTEXT_LENGTH": "16384",
    }
    assert database.read_bytes() == before


@pytest.mark.parametrize("name", ["db.sqlite", "ollama.plist", "ollama.service"])
def test_a_damaged_place_counts_as_empty(tmp_path: Path, name: str) -> None:
    places = {
        "db.sqlite": tmp_path / "Library/Application Support/Ollama/db.sqlite",
        "ollama.plist": tmp_path / "Library/LaunchAgents/ollama.plist",
        "ollama.service": tmp_path / "etc/systemd/system/ollama.service",
    }
    write(places[name], b'[Service]\nEnvironment="OLLAMA_HOST=1\xff\n' + os.urandom(500))
    assert find({}, tmp_path, tmp_path) == []


def given(**variables: str) -> list[GivenVariable]:
    return [GivenVariable(f"OLLAMA_{name}", value, "the environment") for name, value in variables.items()]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOST": "0.0.0.0:8080"}, {"host": "http://0.0.0.0:8080"}),
        ({"HOST": "127.0.0.1:11434"}, {}),
        ({"KEEP_ALIVE": "1h"}, {"keep_alive": 3600.0}),
        ({"KEEP_ALIVE": "-1"}, {"keep_alive": -1}),
        ({"NUM_PARALLEL": "4", "MAX_LOADED_MODELS": "2", "MAX_QUEUE": "64"},
         {"max_concurrent_requests": 4, "max_loaded_models": 2, "max_queue": 64}),
        ({"ORIGINS": "https://a.example,app://mine"}, {"origins": ["https://a.example", "app://mine"]}),
        ({"DEBUG": "2"}, {"debug": True}),
        ({"LOAD_TIMEOUT": "0"}, {"load_timeout": -1}),
        ({"CONTEXT_LENGTH": "none"}, {}),
        ({"MODELS": "/big", "FLASH_ATTENTION": "1"}, {}),
    ],
)  # fmt: skip
def test_variables_become_settings(variables: dict[str, str], expected: dict[str, object], tmp_path: Path) -> None:
    made = plan(given(**variables), "")
    assert made.values == expected
    path = tmp_path / "config.toml"
    path.write_text(made.config(""))
    loaded = load({}, {}, path).settings
    # What is written means what Ollama's variable means.
    wanted = load({}, {f"OLLAMA_{name}": text for name, text in variables.items() if name in _GOOD}, tmp_path / "none")
    for name in expected:
        assert getattr(loaded, name) == getattr(wanted.settings, name)


_GOOD = {"HOST", "KEEP_ALIVE", "NUM_PARALLEL", "MAX_LOADED_MODELS", "MAX_QUEUE", "ORIGINS", "DEBUG", "LOAD_TIMEOUT"}


def test_what_config_toml_says_already_stays() -> None:
    existing = 'keep_alive = "2h"'
    made = plan(given(KEEP_ALIVE="1h", MAX_QUEUE="64"), existing)
    text = made.config(existing)
    assert tomllib.loads(text) == {"keep_alive": "2h", "max_queue": 64}
    assert text.startswith(existing + "\n")
    assert made.notes == ["OLLAMA_KEEP_ALIVE: config.toml already sets keep_alive, which is kept"]
    again = plan(given(KEEP_ALIVE="1h", MAX_QUEUE="64"), text)
    assert again.values == {} and again.config(text) == text
    with pytest.raises(SettingError, match="cannot be read"):
        plan([], "keep_alive =")


def test_differences_are_said() -> None:
    made = plan(given(FLASH_ATTENTION="1", KV_CACHE_TYPE="q8_0", NEW="1", CONTEXT_LENGTH="x", MODELS="/big"), "")
    notes = dict(zip(("flash", "kv", "new", "context", "models"), made.notes, strict=True))
    assert "MLX always uses its fused attention" in notes["flash"]
    assert "own precision" in notes["kv"]
    assert notes["new"] == "OLLAMA_NEW: oMLX has no such setting"
    assert "is skipped: context_length" in notes["context"]
    assert "omlx import --from ollama" in notes["models"] and "set OMLX_MODELS" in notes["models"]


def test_of_two_places_the_first_counts() -> None:
    made = plan([*given(MAX_QUEUE="1"), GivenVariable("OLLAMA_MAX_QUEUE", "2", "/etc/x"), *given(MAX_QUEUE="1")], "")
    assert made.values == {"max_queue": 1}
    assert made.notes == ["OLLAMA_MAX_QUEUE = 2 (from /etc/x) is overridden by the environment"]


def test_the_port_and_who_has_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = listener(server.getsockname()[1])
        assert found is not None and found.pid == os.getpid()
        port = server.getsockname()[1]
    assert listener(port) is None
    ollama = PortOwner("ollama", 7)
    assert "kill 8" in how_to_free(PortOwner("nginx", 8), tmp_path, tmp_path)
    assert how_to_free(ollama, tmp_path, tmp_path) == "`kill 7`"
    write(tmp_path / "Library/LaunchAgents/homebrew.mxcl.ollama.plist", b"")
    assert how_to_free(ollama, tmp_path, tmp_path) == "`brew services stop ollama`"
    write(tmp_path / "etc/systemd/system/ollama.service", UNIT)
    assert how_to_free(PortOwner(), tmp_path, tmp_path) == "`sudo systemctl disable --now ollama`"
    write(tmp_path / ".config/systemd/user/ollama.service", UNIT)
    assert how_to_free(ollama, tmp_path, tmp_path) == "`systemctl --user disable --now ollama`"
