"""`omlx doctor`: problems of this machine, and advice from the server if one runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import rich_click as click

from omlx import settings
from omlx.cli.command import Count, verb
from omlx.cli.connect import own_client
from omlx.cli.console import out, run_async
from omlx.client import ClientError, Unreachable
from omlx.doctor import Finding, advise, examine

if TYPE_CHECKING:
    from omlx.settings import Settings


_PATIENCE_S = 10.0


@verb("doctor", count=Count(0, 0))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object")
def command(args: tuple[str, ...], as_json: bool) -> int:
    """Look for problems of this machine and of the server

    Works with and without a running server, starts none and changes nothing. The exit code is 1 if something is broken;
    warnings leave it 0.
    """
    import msgspec

    findings = run_async(_examine())
    healthy = not any(finding.state == "fail" for finding in findings)
    if as_json:
        result = {"ok": healthy, "checks": findings}
        out(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    else:
        out(report(findings), end="")
    return 0 if healthy else 1


async def _examine() -> list[Finding]:
    try:
        effective = settings.load({}, os.environ).settings
    except settings.SettingError as error:
        how = "correct it: nothing else can be looked at before"
        return [Finding("settings", "fail", str(error), how)]
    server = await _server(effective)
    machine = await examine(effective, server_runs=bool(server))
    return [*machine, *server]


async def _server(effective: Settings) -> list[Finding]:
    """What the server says; nothing where none answers."""
    async with own_client() as client:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                status = await client.status()
        except Unreachable:
            return []
        except TimeoutError:
            how = "see what runs there: it took the connection and says nothing"
            return [Finding("server", "fail", f"{client.url} does not answer", how)]
        except ClientError as error:
            if error.status == 404:
                how = "stop it, or give oMLX another address with OMLX_HOST"
                return [Finding("server", "fail", f"{client.url} is taken by a server that is not oMLX", how)]
            how = "" if error.status == 401 else "see the server's log"
            return [Finding("server", "fail", f"{client.url}: {error}", how)]
    return [Finding("server", "ok", f"{client.url}, process {status.pid}, omlx {status.version}"), *advise(status)]


def report(findings: Sequence[Finding]) -> str:
    """A line per finding, its advice below it, and a last line that counts."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        state = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}[finding.state]
        lines.append(f"{state}  {finding.name:{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':{width + 6}}  -> {finding.advice}")
    counts = [(sum(finding.state == state for finding in findings), word) for state, word in _WORDS]
    summary = ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count)
    return "\n".join([*lines, "", summary or "No problems found."]) + "\n"


_WORDS = (("fail", "problem"), ("warn", "warning"))
