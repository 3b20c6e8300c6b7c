"""`omlx unpin`: see `pin`."""

from __future__ import annotations

from omlx.cli.command import Count, verb
from omlx.cli.console import run_async
from omlx.cli.pin import set_pins


@verb("unpin", usage="MODEL [MODEL...]", count=Count(1), models=True)
def command(args: tuple[str, ...]) -> None:
    """Let pinned models be unloaded again"""
    run_async(set_pins(args, pinned=False))
