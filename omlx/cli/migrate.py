"""`omlx migrate`: copy the settings of an Ollama on this machine into oMLX's config file."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

import rich_click as click

from omlx import settings
from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import own_client
from omlx.cli.console import err, is_terminal, out, printable, run_async
from omlx.client import ClientError, Unreachable
from omlx.folders import write_atomically
from omlx.migration import MigrationPlan, PortOwner, find, listener, plan
from omlx.migration.port import how_to_free
from omlx.settings import bind_address


@verb("migrate", count=Count(0, 0), environment=())
@click.option("-y", "--yes", is_flag=True, help="Write the config file without asking")
@click.option("--dry-run", is_flag=True, help="Only show what would be written")
def command(args: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Migrate the settings of an Ollama on this machine

    Reads Ollama's variables from this shell, from its service (launchd, systemd with drop-ins) and from its app, shows
    the change to the config file, and writes it after you confirm. Lists the settings without an equivalent and the
    process that uses the port. Ollama's files are never changed. `omlx import --from ollama` imports the models.
    """
    path = Path(os.environ.get("OMLX_CONFIG") or settings.config_file())
    try:
        existing = path.read_text("utf-8")
    except FileNotFoundError:
        existing = ""
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"the config file {path} cannot be read: {error}") from error
    planned = plan(find(os.environ, Path.home()), existing)
    _config(path, existing, planned, yes=yes, dry_run=dry_run)
    for note in planned.notes:
        out(f"note: {printable(note)}")
    run_async(_port())


def _config(path: Path, existing: str, planned: MigrationPlan, *, yes: bool, dry_run: bool) -> None:
    if not planned.values:
        out("No settings of an Ollama to migrate.")
        return
    text = planned.config(existing)
    names = str(path), str(path)
    diff = difflib.unified_diff(existing.splitlines(), text.splitlines(), *names, lineterm="", n=1)
    out(printable("\n".join(diff)))
    if dry_run:
        return
    if not yes:
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            err("note: the config file was not written; use --yes to write it")
            return
        if not click.confirm(f"Write {path}?", default=True, err=True):
            return
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise CliError(f"the config file {path} cannot be written: {error.strerror}") from error
    out(f"wrote {path}")


async def _port() -> None:
    """Report which process uses the port of the effective settings."""
    loaded = settings.load({}, os.environ).settings
    host, port = bind_address(loaded)
    async with own_client() as client:
        try:
            ours = await client.alive()
        except Unreachable:
            out(f"Port {port} is free for `omlx serve`.")
            return
        except ClientError:
            ours = ""
    if ours:
        out(f"oMLX {ours} runs at {host}:{port}; restart it to apply new settings.")
        return
    owner = listener(port) or PortOwner()
    out(f"Port {port} is in use ({owner}). To free it: {how_to_free(owner, Path.home())}")
