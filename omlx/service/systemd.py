"""systemd's words: a unit for the user's own instance."""

from __future__ import annotations

from omlx.service.job import ServiceJob

_UNIT = """[Unit]
Description={description}

[Service]
ExecStart={command}
WorkingDirectory={folder}
{environment}# `omlx stop --server` ends it with 0 and means it.
Restart=on-failure
RestartSec=2
# The server ends its runners itself: first running requests, then the KV cache on its way to disk.
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""


def unit(job: ServiceJob) -> str:
    """The unit of a job that starts with the user's session and again whenever it fails. It logs to the journal."""
    environment = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in job.environment.items())
    return _UNIT.format(
        description=job.description,
        command=_command(job.command),
        folder=str(job.folder).replace("%", "%%"),
        environment=environment,
    )


def _command(words: list[str]) -> str:
    """`$` begins a variable in every word but the program's path."""
    program, *rest = map(_quoted, words)
    return " ".join([program, *(word.replace("$", "$$") for word in rest)])


def _quoted(word: str) -> str:
    """One word as systemd reads it: `%` begins a specifier of its own."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
