"""launchd's words: a property list in ~/Library/LaunchAgents."""

from __future__ import annotations

import plistlib

from omlx.service.job import ServiceJob

_GRACE_S = 60
"""How long the server gets to end: running requests, then the KV cache on its way to disk."""


def agent(job: ServiceJob, *, label: str) -> str:
    """The property list of a job that starts at login and again whenever it fails."""
    return plist({
        "Label": label,
        "ProgramArguments": job.command,
        "EnvironmentVariables": job.environment,
        "WorkingDirectory": str(job.folder),
        "RunAtLoad": True,
        # `omlx stop --server` ends it with 0 and means it.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": _GRACE_S,
        # Otherwise macOS slows down what it takes for background work.
        "ProcessType": "Interactive",
        "StandardOutPath": str(job.log),
        "StandardErrorPath": str(job.log),
    })  # fmt: skip


def plist(values: dict[str, object]) -> str:
    return plistlib.dumps({name: value for name, value in values.items() if value != {}}, sort_keys=False).decode()
