"""Reading the line: help, arguments, flags and complaints are what Ollama's users and scripts expect."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys

import pexpect
import pytest
import rich_click as click

from omlx.cli import main, serve
from omlx.cli.app import VERBS
from omlx.cli.command import Count, OptionalValue, go_flags, verb
from tests.cli.conftest import Omlx, run_omlx


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show"], "accepts 1 arg(s), received 0"),
        (["pull", "a", "b"], "accepts 1 arg(s), received 2"),
        (["cp", "a"], "accepts 2 arg(s), received 1"),
        (["run"], "requires at least 1 arg(s), only received 0"),
        (["rm"], "requires at least 1 arg(s), only received 0"),
        (["serve", "now"], "accepts 0 arg(s), received 1"),
        (["run", "m", "--bogus"], "unknown flag: --bogus"),
        (["run", "m", "-x"], "unknown shorthand flag: 'x' in -x"),
        (["--bogus"], "unknown flag: --bogus"),
        (["run", "m", "--format"], "flag needs an argument: --format"),
        (["create", "m", "-f"], "flag needs an argument: 'f' in -f"),
        (["frobnicate"], 'unknown command "frobnicate" for "omlx"'),
        (
            ["run", "m", "--dimensions", "x"],
            'invalid argument "x" for "--dimensions" flag: strconv.ParseInt: parsing "x": invalid syntax',
        ),
        (
            ["run", "m", "--verbose=2"],
            'invalid argument "2" for "--verbose" flag: strconv.ParseBool: parsing "2": invalid syntax',
        ),
        (
            ["run", "m", "--think=often"],
            'invalid value for --think: "often" (must be true, false, high, medium, low, or max)',
        ),
        (["run", "m", "--keepalive", "5"], 'time: missing unit in duration "5"'),
        (
            ["show", "m", "--license", "--system"],
            "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' can be specified",
        ),
        (["create", "m", "-f", "/nowhere/Modelfile"], "specified Modelfile wasn't found"),
        (["create", "b a d"], "invalid model name: b a d"),
    ],
)
def test_a_wrong_line_is_one_sentence_on_stderr_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert main(words) == 1
    assert capsys.readouterr() == ("", f"Error: {complaint}\n")


def test_a_mistyped_command_is_answered_with_the_likely_one(omlx: Omlx) -> None:
    ran = omlx("lst")
    assert ran.code == 1
    assert ran.err.startswith('Error: unknown command "lst" for "omlx"\n\nDid you mean this?\n\tlist\n')


def test_help_lists_every_verb_and_is_quick(omlx: Omlx) -> None:
    omlx("--help")  # compiles the modules
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = omlx("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 0.4, "seconds of CPU, whatever else the machine does"
    assert (ran.code, ran.err) == (0, "")
    assert listed_verbs(ran.out) == list(VERBS)
    assert "\x1b" not in ran.out
    assert omlx().out == omlx("-h").out == omlx("help").out == ran.out


def listed_verbs(help_text: str) -> list[str]:
    """The first words of the box of commands, without their aliases."""
    box = help_text[help_text.index(" Commands ") : help_text.index(" Options ")]
    return [found[1] for found in re.finditer(r"^│ (\S+?)(?:,| )", box, re.MULTILINE)]


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_help_on_a_terminal_shows_the_verbs_whole(columns: int) -> None:
    output = pexpect.run(
        f"{sys.executable} -m omlx --help",
        env={**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": str(columns)},
        encoding="utf-8",
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output).replace("\r", "")
    assert listed_verbs(plain) == list(VERBS)


def test_help_of_a_verb_ends_with_its_environment(omlx: Omlx) -> None:
    ran = omlx("run", "--help")
    assert ran.code == 0
    assert "--hidethinking" in ran.out
    assert "Environment Variables:" in ran.out
    assert "OLLAMA_HOST" in ran.out
    assert omlx("help", "run").out == ran.out


@pytest.mark.parametrize("alias", ["start", "ls"])
def test_aliases_are_verbs_too(omlx: Omlx, alias: str) -> None:
    assert omlx(alias, "--help").code == 0


def test_every_setting_of_the_server_is_a_flag_of_serve(omlx: Omlx) -> None:
    text = omlx("serve", "--help").out
    for option in serve.command.params:
        if isinstance(option, click.Option):
            assert option.opts[0] in text
    assert "OLLAMA_KEEP_ALIVE" in text


def test_a_bad_setting_stops_with_a_sentence_that_names_it(omlx: Omlx) -> None:
    ran = omlx("serve", "--max-queue", "lots")
    assert ran.code == 1
    assert ran.err.startswith("Error: max_queue = 'lots' (from flag --max-queue) cannot be used")
    ran = omlx("list", OMLX_KEEP_ALIVE="soon")
    assert (ran.code, ran.out) == (1, "")
    assert "keep_alive = 'soon' (from env OMLX_KEEP_ALIVE)" in ran.err


def test_without_a_server_the_error_says_how_to_start_one(omlx: Omlx) -> None:
    ran = omlx("list")
    assert ran == (
        1,
        "",
        "Error: could not connect to omlx server at http://127.0.0.1:1, run 'omlx serve' to start it\n",
    )


def test_version_without_a_server_warns_and_succeeds(omlx: Omlx) -> None:
    ran = omlx("--version")
    assert ran.code == 0
    first, second = ran.out.splitlines()
    assert first == "Warning: could not connect to a running oMLX instance"
    assert second.startswith("Warning: client version is ")


def test_config_tells_each_value_and_where_it_came_from(omlx: Omlx, tmp_path: object) -> None:
    config = f"{tmp_path}/config.toml"
    with open(config, "w") as file:
        file.write('keep_alive = "-1"\n')
    ran = omlx("config", OMLX_CONFIG=config, OLLAMA_NUM_PARALLEL="4")
    rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines() if line}
    assert rows["keep_alive"] == ["forever", config]
    assert rows["max_concurrent_requests"] == ["4", "env", "OLLAMA_NUM_PARALLEL"]
    assert rows["max_queue"] == ["512", "default"]
    as_json = omlx("config", "--json", OMLX_CONFIG=config)
    assert '"keep_alive": {\n    "value": -1,' in as_json.out


def test_an_unusable_port_and_a_missing_config_file_are_said() -> None:
    for words, code in ((("config",), 0), (("show", "m", "--modelfile"), 1)):
        ran = run_omlx(*words, host="127.0.0.1:99999")
        assert ran.code == code
        notes = [line for line in ran.err.splitlines() if line.startswith("note: ")]
        assert notes == ["note: OLLAMA_HOST 127.0.0.1:99999 has no usable port: http://127.0.0.1:11434 is used"]
    ran = run_omlx("serve", "--host", "127.0.0.1:99999")
    assert (ran.code, ran.err.splitlines()[-1].startswith("Error: host = '127.0.0.1:99999'")) == (1, True)
    ran = run_omlx("list", OMLX_CONFIG="/nowhere/config.toml")
    assert (ran.code, ran.err) == (
        1, "Error: the config file /nowhere/config.toml (from env OMLX_CONFIG) does not exist\n")  # fmt: skip


@verb("probe", count=Count(0))
@click.option("-v", "--verbose", is_flag=True)
@click.option("-f", "--file", default="")
@click.option("--think", cls=OptionalValue, bare="true")
@click.option("--truncate/--no-truncate", default=True)
def probe(args: tuple[str, ...], **flags: object) -> tuple[object, ...]:
    return (args, flags)


@pytest.mark.parametrize(
    ("line", "args", "given"),
    [
        ("--think m", ("m",), {"think": "true"}),
        ("m --think=low hello", ("m", "hello"), {"think": "low"}),
        ("-v=false m", ("m",), {"verbose": False}),
        ("--verbose=T m", ("m",), {"verbose": True}),
        ("-f=x m", ("m",), {"file": "x"}),
        ("-fx m", ("m",), {"file": "x"}),
        ("--file --think m", ("m",), {"file": "--think"}),
        ("m --truncate=0", ("m",), {"truncate": False}),
        ("m -- --think", ("m", "--think"), {"think": None}),
        ("m - x", ("m", "-", "x"), {}),
    ],
)
def test_flags_are_read_as_go_reads_them(line: str, args: tuple[str, ...], given: dict[str, object]) -> None:
    found_args, found = probe.main(line.split(), standalone_mode=False)
    assert found_args == args
    assert {name: found[name] for name in given} == given
    assert go_flags(probe, []) == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_is_like_the_null_device(closed: str) -> None:
    nobody = {**os.environ, "OLLAMA_HOST": "127.0.0.1:1", "OMLX_AUTOSTART": "false"}
    line = f"{sys.executable} -m omlx list {closed}"
    done = subprocess.run(line, shell=True, capture_output=True, timeout=60, env=nobody)
    assert done.returncode == 1
    complaint = b"" if closed == "2>&-" else b"Error: could not connect to omlx server at http://127.0.0.1:1"
    assert done.stderr.startswith(complaint)
    assert b"Traceback" not in done.stderr
