"""A *manager* writes a job down in its system's words and tells the system about it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import msgspec

from omlx.service import launchd, systemd
from omlx.service.job import ServiceError, ServiceJob

LABEL = "omlx.server"
_PATIENCE_S = 90


class State(msgspec.Struct, frozen=True, kw_only=True):
    """`pid` is 0 while it does not run. `known`: whether the service manager could be asked."""

    installed: bool
    known: bool = False
    running: bool = False
    pid: int = 0


class Manager(Protocol):
    """What holds the server. Everything raises ServiceError with a sentence for the user."""

    @property
    def file(self) -> Path: ...

    @property
    def log_hint(self) -> str:
        """Where the service's log is to be read."""

    def text(self, job: ServiceJob) -> str:
        """What `install` writes."""

    def install(self, job: ServiceJob) -> bool:
        """Write the job down and start it (anew); False where there is nobody to start it."""

    def uninstall(self) -> bool:
        """End the job and forget it; False where there was none."""

    def start(self) -> None: ...

    def state(self) -> State: ...


def manager() -> Manager:
    """This system's manager. Raises ServiceError where oMLX knows none."""
    if sys.platform == "darwin":
        return Launchd()
    if sys.platform.startswith("linux"):
        return Systemd()
    raise ServiceError("services are for macOS (launchd) and Linux (systemd); here, start `omlx serve` yourself")


class Launchd:
    """An agent of the user's: it runs while the user is logged in."""

    def __init__(self) -> None:
        self.file = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self._domain = f"gui/{os.getuid()}"
        self.log_hint = str(Path.home() / "Library" / "Logs" / "omlx")

    def text(self, job: ServiceJob) -> str:
        return launchd.agent(job, label=LABEL)

    def install(self, job: ServiceJob) -> bool:
        job.log.parent.mkdir(parents=True, exist_ok=True)
        _write(self.file, self.text(job))
        if shutil.which("launchctl") is None:
            return False
        _run("launchctl", "bootout", f"{self._domain}/{LABEL}")
        _must("launchctl", "bootstrap", self._domain, str(self.file), file=self.file)
        return True

    def uninstall(self) -> bool:
        if not self.file.exists():
            return False
        _run("launchctl", "bootout", f"{self._domain}/{LABEL}")
        self.file.unlink()
        return True

    def start(self) -> None:
        _must("launchctl", "kickstart", f"{self._domain}/{LABEL}", file=self.file)

    def state(self) -> State:
        answer = _run("launchctl", "print", f"{self._domain}/{LABEL}")
        pid = re.search(r"^\s*pid = (\d+)", answer.stdout, re.MULTILINE) if answer else None
        return State(
            installed=self.file.exists(),
            known=answer is not None,
            running=pid is not None,
            pid=int(pid[1]) if pid else 0,
        )


class Systemd:
    """A unit of the user's instance: it runs while the user has a session, or always with `loginctl enable-linger`."""

    UNIT = "omlx.service"
    log_hint = f"journalctl --user -u {UNIT}"

    def __init__(self) -> None:
        self.file = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user" / self.UNIT

    def text(self, job: ServiceJob) -> str:
        return systemd.unit(job)

    def install(self, job: ServiceJob) -> bool:
        _write(self.file, self.text(job))
        if shutil.which("systemctl") is None:
            return False
        for words in (("daemon-reload",), ("enable", self.UNIT), ("restart", self.UNIT)):
            _must("systemctl", "--user", *words, file=self.file)
        return True

    def uninstall(self) -> bool:
        if not self.file.exists():
            return False
        _run("systemctl", "--user", "disable", "--now", self.UNIT)
        self.file.unlink()
        _run("systemctl", "--user", "daemon-reload")
        return True

    def start(self) -> None:
        _must("systemctl", "--user", "start", self.UNIT, file=self.file)

    def state(self) -> State:
        answer = _run("systemctl", "--user", "show", self.UNIT, "--property=ActiveState,MainPID")
        known = answer is not None and answer.returncode == 0
        properties = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line) if answer else {}
        pid = properties.get("MainPID", "")
        return State(
            installed=self.file.exists(),
            known=known,
            running=properties.get("ActiveState") == "active",
            pid=int(pid) if pid.isdigit() else 0,
        )


def _write(path: Path, text: str) -> None:
    """For the owner's eyes: the variables may hold a key."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        draft.touch(0o600)
        draft.write_text(text, "utf-8")
        draft.replace(path)
    except OSError as error:
        raise ServiceError(f"{path} cannot be written: {error.strerror}") from error


def _run(*words: str) -> subprocess.CompletedProcess[str] | None:
    """Ask the system; None where its program is missing or does not come back."""
    if shutil.which(words[0]) is None:
        return None
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S)
    except (subprocess.TimeoutExpired, OSError):
        return None


def _must(*words: str, file: Path) -> None:
    done = _run(*words)
    if done is None or done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}") if done else "it is missing or does not answer"
        raise ServiceError(f"{file} is written, but `{' '.join(words)}` failed: {reason}")
