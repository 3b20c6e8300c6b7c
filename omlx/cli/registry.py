"""`omlx registry`: care of the files behind the models."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.units import human_bytes


@verb("registry", usage="prune|verify", count=Count(1, 1))
@click.option("--repair", is_flag=True, help="verify: drop corrupt files, so that a pull fetches them again")
@click.option("--now", is_flag=True, help="prune: also files that were uploaded within the last hour")
@click.option("--partial", is_flag=True, help="prune: also downloads that broke off and could be continued")
@click.option("--dry-run", is_flag=True, help="prune: only show what would be removed")
def command(args: tuple[str, ...], repair: bool, now: bool, partial: bool, dry_run: bool) -> None:
    """Look after the files of the models

    `omlx registry prune` removes files that no model needs. `omlx registry verify` reads every file again and reports
    what is missing or corrupt.
    """
    match args[0]:
        case "prune":
            run_async(_prune(now, partial, dry_run))
        case "verify":
            run_async(_verify(repair))
        case other:
            raise CliError(f'unknown command "{other}" for "omlx registry": use prune or verify')


async def _prune(now: bool, partial: bool, dry_run: bool) -> None:
    async with connected() as client:
        report = await client.prune(now=now, partial=partial, dry_run=dry_run)
    if report.busy:
        raise CliError("a model is being made right now: nothing was removed, try again later")
    done = "would remove" if dry_run else "removed"
    out(f"{done} {report.removed} files, {human_bytes(report.freed)}")


async def _verify(repair: bool) -> None:
    async with connected() as client:
        report = await client.verify(repair=repair)
    for blob in report.damaged:
        if blob.digest:
            out(f"{blob.reason}: {blob.digest} of {', '.join(blob.models)}")
        else:
            out(f"{blob.reason}: {', '.join(blob.models)} (remove it with `omlx rm`, then pull it again)")
    out(f"checked {report.checked} files, {human_bytes(report.bytes)}: {len(report.damaged)} damaged")
    if report.damaged and not report.repaired:
        raise CliError("pull the damaged models again after `omlx registry verify --repair`")
