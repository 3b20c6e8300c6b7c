"""`omlx help [COMMAND]`."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import CliError, verb


@verb("help", usage="[COMMAND]", environment=())
@click.pass_context
def command(ctx: click.Context, args: tuple[str, ...]) -> None:
    """Help about any command"""
    root = ctx.parent
    if root is None or not isinstance(root.command, click.Group):
        raise CliError("help is a command of omlx")
    if not args:
        click.echo(root.get_help())
        return
    subcommand = root.command.get_command(root, args[0])
    if subcommand is None:
        raise CliError(f"unknown help topic {args[0]!r}: see `omlx help` for the list of commands")
    with subcommand.make_context(subcommand.name, ["--help"], parent=root):
        pass
