"""`omlx service`: hand the server to launchd or systemd, or take it back."""

from __future__ import annotations

import os

import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import own_client
from omlx.cli.console import err, out, run_async
from omlx.client import Unreachable
from omlx.service.job import ServiceError, server_job
from omlx.service.manager import Manager, manager

_ACTIONS = ("install", "uninstall", "status")


@verb("service", usage="install|uninstall|status", count=Count(1, 1), environment=())
@click.option("--print", "show", is_flag=True, help="With install: print the file, write and start nothing")
def command(args: tuple[str, ...], show: bool) -> int:
    """Let the system run the server: from login on, and again after a crash

    `install` writes a launchd agent (macOS) or a systemd user unit (Linux) and starts it, with the OMLX_…, OLLAMA_… and
    HF_… variables of this shell; run it again to change them. The config file counts as always. `uninstall` ends the
    service and removes the file. `omlx stop --server` ends a server that is a service until the next login.
    """
    (action,) = args
    if action not in _ACTIONS:
        raise CliError(f"service does not know {action}: say install, uninstall or status")
    if show and action != "install":
        raise CliError("--print goes with install")
    try:
        held_by = manager()
        if action == "install":
            _install(held_by, show)
        elif action == "uninstall":
            _uninstall(held_by)
        else:
            return _status(held_by)
    except ServiceError as error:
        raise CliError(str(error)) from error
    return 0


def _install(held_by: Manager, show: bool) -> None:
    job = server_job(os.environ)
    if show:
        out(held_by.text(job), end="")
        return
    if not held_by.state().running:
        run_async(_nobody_listens())
    started = held_by.install(job)
    out(f"wrote {held_by.file}")
    if started:
        out(f"the service runs; its log: {held_by.log_hint}")
    else:
        err("note: this system has no service manager that could be told; the file alone starts nothing")


async def _nobody_listens() -> None:
    """The service could not have the address of a server that runs already, and would fail again and again."""
    async with own_client() as client:
        try:
            await client.alive()
        except Unreachable:
            return
        raise CliError(f"a server runs at {client.url} already: end it first, an oMLX with `omlx stop --server`")


def _uninstall(held_by: Manager) -> None:
    out(f"removed {held_by.file}" if held_by.uninstall() else "the service was not installed")


def _status(held_by: Manager) -> int:
    """Like `systemctl status`: 0 if it runs, 3 if it does not, 4 if there is none."""
    state = held_by.state()
    if not state.installed:
        out("not installed")
        return 4
    out(f"installed: {held_by.file}")
    if state.running:
        out(f"running: process {state.pid}; log: {held_by.log_hint}")
        return 0
    out("not running" if state.known else "the service manager cannot be asked whether it runs")
    return 3
