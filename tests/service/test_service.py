"""`omlx service`: the files are what launchd and systemd read, and the system is told about them where it is there."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omlx.service import systemd
from omlx.service.job import ServiceError, ServiceJob, server_job
from omlx.service.manager import Launchd, manager
from omlx.service.templates import files
from tests.cli.conftest import Omlx, inline, omlx
from tests.cli.standin import StandIn

__all__ = ["inline", "omlx"]
CONTRIB = Path(__file__).parents[2] / "contrib"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd's")

RECORDING = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *show*) printf 'ActiveState=%s\\nMainPID=4711\\n' "${STATE:-inactive}" ;;
*print*) [ -n "$STATE" ] && printf 'gui/1/omlx.server = {\\n\\tstate = running\\n\\tpid = 4711\\n}\\n' || exit 113 ;;
*"$FAILING"*) [ -n "$FAILING" ] && echo "Failed to connect to bus" >&2 && exit 1 ;;
esac
exit 0
"""
"""Stands in for the service managers, of which none runs on test machines; it writes down how it was called."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own and a PATH without service managers."""
    (tmp_path / "bin").mkdir()
    for name, value in {"HOME": tmp_path, "XDG_CONFIG_HOME": tmp_path / ".config", "PATH": tmp_path / "bin"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path


def with_manager(place: Path, program: str) -> None:
    path = place / "bin" / program
    path.write_text(RECORDING.replace("$(basename", "$(/usr/bin/basename"))
    path.chmod(0o755)


def calls(place: Path) -> list[str]:
    path = place / "calls"
    return path.read_text().splitlines() if path.exists() else []


def job(**environment: str) -> ServiceJob:
    return ServiceJob(
        description="d", command=["/a b/py%thon$x", "-m", "omlx"], environment=environment, log=Path("/l o/g"),
        folder=Path("/home/you"),
    )  # fmt: skip


def test_the_committed_templates_are_up_to_date() -> None:
    assert {name: (CONTRIB / name).read_text("utf-8") for name in files()} == files(), "run `make docs`"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt-get install systemd")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "omlx.service"
    unit.write_text(systemd.unit(quoted_job(tmp_path)))
    asked = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (asked.returncode, asked.stderr) == (0, "")


def quoted_job(folder: Path) -> ServiceJob:
    """A job that can be verified: its program exists, and its words need every kind of quoting."""
    program = folder / "a b %n $c"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return ServiceJob(
        description="d",
        command=[str(program), 'x "y" %n $w \\z'],
        environment={"A": 'x "y" 100% \\z $w'},
        log=folder,
        folder=folder,
    )


def test_the_agent_is_a_property_list_with_everything_in_it() -> None:
    found = plistlib.loads(Launchd().text(job(OMLX_API_KEY="<&>\"'")).encode())
    assert found["ProgramArguments"] == job().command
    assert found["EnvironmentVariables"] == {"OMLX_API_KEY": "<&>\"'"}
    assert found["KeepAlive"] == {"SuccessfulExit": False}, "`omlx stop --server` stops it for good"
    assert "EnvironmentVariables" not in plistlib.loads(Launchd().text(job()).encode())


def test_the_service_has_the_variables_that_the_server_reads_and_no_others() -> None:
    environ = {"OMLX_HOST": ":1234", "OLLAMA_MODELS": "models", "HF_TOKEN": "t", "OMLX_API_KEY": "", "SECRET": "s"}
    kept = server_job(environ).environment
    assert set(kept) == {"OMLX_HOST", "OLLAMA_MODELS", "HF_TOKEN"}
    assert Path(kept["OLLAMA_MODELS"]).is_absolute()
    with pytest.raises(ServiceError, match="HF_TOKEN has line breaks"):
        server_job({"HF_TOKEN": "a\nExecStartPre=/bin/evil"})


@linux
def test_without_a_service_manager_the_file_is_written_and_nothing_is_run(inline: Omlx, place: Path) -> None:
    assert inline("service", "status").out == "not installed\n"
    ran = inline("service", "install", OMLX_API_KEY="sesame")
    unit = place / ".config/systemd/user/omlx.service"
    assert (ran.code, ran.out) == (0, f"wrote {unit}\n")
    assert "no service manager" in ran.err
    assert 'Environment="OMLX_API_KEY=sesame"' in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o600, "it may hold a key"
    assert "cannot be asked" in inline("service", "status").out
    assert inline("service", "uninstall").out == f"removed {unit}\n"
    assert inline("service", "uninstall").out == "the service was not installed\n"


@linux
def test_systemd_is_told(inline: Omlx, place: Path) -> None:
    with_manager(place, "systemctl")
    assert inline("service", "install").code == 0
    told = [call for call in calls(place) if "show" not in call]
    assert told == [
        f"systemctl --user {words}" for words in ("daemon-reload", "enable omlx.service", "restart omlx.service")
    ]
    assert inline("service", "status", STATE="active").out.endswith(
        "running: process 4711; log: journalctl --user -u omlx.service\n"
    )
    assert inline("service", "status", STATE="failed").code == 3
    inline("service", "uninstall")
    assert calls(place)[-2:] == ["systemctl --user disable --now omlx.service", "systemctl --user daemon-reload"]


@linux
def test_what_systemd_refuses_is_said(inline: Omlx, place: Path) -> None:
    with_manager(place, "systemctl")
    ran = inline("service", "install", FAILING="daemon-reload")
    assert ran.code == 1
    assert "is written, but `systemctl --user daemon-reload` failed: Failed to connect to bus" in ran.err


def test_launchd_is_told(inline: Omlx, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with_manager(place, "launchctl")
    assert inline("service", "install").code == 0
    agent = place / "Library/LaunchAgents/omlx.server.plist"
    assert plistlib.loads(agent.read_bytes())["Label"] == "omlx.server"
    told = [call.split()[1] for call in calls(place)]
    assert told == ["print", "bootout", "bootstrap"]
    assert "running: process 4711" in inline("service", "status", STATE="running").out
    manager().start()
    assert inline("service", "uninstall").out == f"removed {agent}\n"
    assert [call.split()[1] for call in calls(place)][-2:] == ["kickstart", "bootout"]


@linux
def test_print_writes_and_runs_nothing(inline: Omlx, place: Path) -> None:
    with_manager(place, "systemctl")
    ran = inline("service", "install", "--print", OMLX_MAX_QUEUE="7")
    assert ran.code == 0
    assert 'Environment="OMLX_MAX_QUEUE=7"' in ran.out
    assert not (place / ".config/systemd").exists()
    assert calls(place) == []


@linux
def test_a_server_that_holds_the_address_is_not_fought(inline: Omlx, place: Path) -> None:
    with StandIn({}) as other:
        ran = inline("service", "install", host=other.url)
    assert ran.code == 1
    assert f"a server runs at {other.url} already" in ran.err
    assert not (place / ".config/systemd").exists()


def test_words_that_make_no_sense(inline: Omlx, place: Path) -> None:
    assert "say install, uninstall or status" in inline("service", "restart").err
    assert "--print goes with install" in inline("service", "status", "--print").err
    ran = inline("service", "install", OMLX_MAX_QUEUE="many")
    assert ran.code == 1
    assert "max_queue" in ran.err
