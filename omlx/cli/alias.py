"""`omlx alias`: the user's own short names for repositories."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.cli.tables import render


@verb("alias", usage="[NAME [TARGET]]", count=Count(0, 2))
@click.option("--remove", is_flag=True, help="Forget the alias NAME")
def command(args: tuple[str, ...], remove: bool) -> None:
    """Give a repository a short name

    `omlx alias mine hf.co/ORG/NAME:q4` makes `omlx pull mine` fetch that repository. Without arguments the aliases are
    listed.
    """
    if (remove and len(args) != 1) or (not remove and len(args) == 1):
        raise CliError("use `omlx alias NAME TARGET`, `omlx alias --remove NAME`, or `omlx alias` alone to list")
    run_async(_list() if not args else _set(args[0], "" if remove else args[1]))


async def _set(name: str, target: str) -> None:
    async with connected() as client:
        await client.set_alias(name, target)
    out(f"'{name}' means '{target}' now" if target else f"'{name}' is no alias any more")


async def _list() -> None:
    async with connected() as client:
        aliases = await client.aliases()
    out(render(sorted(aliases.items()), ("NAME", "TARGET"), max_cell=200), end="")
