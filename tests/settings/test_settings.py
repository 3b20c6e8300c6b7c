"""One settings struct: precedence, Ollama's spellings, and a bad value that stops the start with a sentence."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from omlx.settings import SettingError, Settings, bind_address, client_url, describe, load, parse_host


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_flag_beats_own_variable_beats_ollamas_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, "max_queue = 1\n")
    assert load({}, {}, tmp_path / "absent.toml").settings.max_queue == 512
    environ: dict[str, str] = {}
    for expected, name in ((1, "file"), (2, "OLLAMA_MAX_QUEUE"), (3, "OMLX_MAX_QUEUE")):
        if name != "file":
            environ[name] = str(expected)
        loaded = load({}, environ, file)
        assert loaded.settings.max_queue == expected
        assert name in loaded.sources["max_queue"] or str(file) == loaded.sources["max_queue"]
    loaded = load({"max_queue": 4}, environ, file)
    assert loaded.settings.max_queue == 4
    assert loaded.sources["max_queue"] == "flag --max-queue"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OLLAMA_MAX_QUEUE": "many"}, ["max_queue", "many", "OLLAMA_MAX_QUEUE", "whole number"]),
        ({"OMLX_MAX_QUEUE": "-1"}, ["max_queue", "negative"]),
        ({"OLLAMA_KEEP_ALIVE": "soon"}, ["keep_alive", "soon", "invalid duration"]),
        ({"OMLX_LOG_LEVEL": "loud"}, ["log_level", "loud", "warning"]),
        ({"OMLX_MAX_BODY": "big"}, ["max_body", "GiB"]),
        ({"OMLX_SPARE_RUNNER": "maybe"}, ["spare_runner", "true or false"]),
        ({"OLLAMA_HOST": "ftp://x"}, ["host", "ftp://x"]),
        ({"OMLX_HOST": "127.0.0.1:99999"}, ["host", "127.0.0.1:99999", "OMLX_HOST", "65535"]),
        ({"OMLX_HOST": "http://[::1]:x/path"}, ["host", "http://[::1]:x/path", "65535"]),
        ({"OMLX_DEBUG": "maybe"}, ["debug", "maybe", "OMLX_DEBUG", "true or false"]),
        ({"OMLX_CONFIG": "/nowhere/config.toml"}, ["/nowhere/config.toml", "OMLX_CONFIG", "does not exist"]),
    ],
)
def test_a_bad_value_is_named(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        load({}, environ)
    for word in words:
        assert word in str(caught.value)


def test_ollamas_variables_take_what_ollama_takes_and_an_unusable_port_is_said() -> None:
    loaded = load({}, {"OLLAMA_HOST": "1.2.3.4:99999", "OLLAMA_DEBUG": "maybe"})
    assert (loaded.settings.host, loaded.settings.debug) == ("http://1.2.3.4:11434", True)
    assert loaded.warnings == ("OLLAMA_HOST 1.2.3.4:99999 has no usable port: http://1.2.3.4:11434 is used",)
    assert load({}, {"OLLAMA_HOST": "1.2.3.4:1"}).warnings == ()
    with pytest.raises(SettingError, match="--host"):
        load({"host": "127.0.0.1:99999"}, {})


@pytest.mark.parametrize("text", ["not toml at all", "unknown_setting = 1"])
def test_a_bad_config_file_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingError, match=r"config\.toml"):
        load({}, {}, write(tmp_path, text))


def test_a_config_file_may_be_pointed_to(tmp_path: Path) -> None:
    file = write(tmp_path, 'keep_alive = "1h"\norigins = ["http://a"]\ndebug = true\n')
    settings = load({}, {"OMLX_CONFIG": str(file)}).settings
    assert (settings.keep_alive, settings.origins, settings.debug) == (3600.0, ["http://a"], True)


@pytest.mark.parametrize(("text", "seconds"), [("0", math.inf), ("-1", math.inf), ("2m", 120.0), ("90", 90.0)])
def test_a_load_timeout_of_nothing_never_runs_out(text: str, seconds: float) -> None:
    found = load({}, {"OLLAMA_LOAD_TIMEOUT": text, "OLLAMA_KEEP_ALIVE": "0"}).settings
    assert (found.load_timeout, found.keep_alive) == (seconds, 0.0)


def test_values_are_trimmed_of_blanks_and_quotes_as_in_service_files() -> None:
    assert load({}, {"OLLAMA_MAX_QUEUE": ' "7" '}).settings.max_queue == 7


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("1.2.3.4", "http://1.2.3.4:11434"),
        ("example.com", "http://example.com:11434"),
        (":1234", "http://0.0.0.0:1234"),
        ("1.2.3.4:1234", "http://1.2.3.4:1234"),
        ("[::1]:1337", "http://[::1]:1337"),
        ("[::1]", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ("http://x", "http://x:80"),
        ("https://x", "https://x:443"),
        ("https://example.com/ollama", "https://example.com:443/ollama"),
        ("1.2.3.4:bad", "http://1.2.3.4:11434"),
        ("1.2.3.4:66000", "http://1.2.3.4:11434"),
        (' "1.2.3.4" ', "http://1.2.3.4:11434"),
    ],
)
def test_ollama_host_forms(text: str, url: str) -> None:
    assert parse_host(text) == url


def test_the_server_binds_and_the_client_reaches_the_same_host() -> None:
    settings = Settings(host=parse_host(":1234"))
    assert bind_address(settings) == ("0.0.0.0", 1234)
    assert client_url(settings) == "http://127.0.0.1:1234"
    assert bind_address(Settings(host=parse_host("[::1]"))) == ("::1", 11434)


def test_every_setting_has_a_flag_a_variable_and_a_description() -> None:
    settings = describe()
    assert [setting.name for setting in settings] == list(Settings.__struct_fields__)
    for setting in settings:
        assert setting.flag.startswith("--")
        assert setting.variable.startswith("OMLX_")
        assert setting.description
