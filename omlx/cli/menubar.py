"""`omlx menubar`: the status item of the desktop."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import CliError, Count, verb
from omlx.cli.console import effective
from omlx.menubar.tray import NoTray, run


@verb("menubar", count=Count(0, 0), environment=("host", "api_key"))
@click.option("--start", is_flag=True, help="Start the server, too, where none runs")
def command(args: tuple[str, ...], start: bool) -> None:
    """Show the server in the menu bar

    A status item with the server's state, its models to load, unload and pin, and the way to the dashboard. It needs
    the extra menubar (`pip install 'omlx[menubar]'`) and a desktop: macOS, or Linux with GTK for the menu. Quitting it
    leaves the server as it is.
    """
    try:
        run(effective(), start=start)
    except NoTray as error:
        raise CliError(str(error)) from error
