"""`omlx import`: models that are on this machine already."""

from __future__ import annotations

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, out, run_async


@verb("import", count=Count(0, 0))
def command(args: tuple[str, ...]) -> None:
    """Register models that other programs have on this machine

    Looks into the Hugging Face cache and LM Studio's folders. Models are hard-linked, so they take no further space;
    each gets the name hf.co/ORG/NAME.
    """
    run_async(_import())


async def _import() -> None:
    found = False
    async with connected() as client:
        async for step in client.import_found():
            if step.status != "success":
                found = True
                out(step.status)
    if not found:
        err("note: the Hugging Face cache and LM Studio have no models here")
