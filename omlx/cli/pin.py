"""`omlx pin` and `omlx unpin`: models that are never unloaded to make room and do not expire."""

from __future__ import annotations

from omlx.cli.command import verb
from omlx.cli.connect import connected
from omlx.cli.console import err, out, run_async


@verb("pin", usage="[MODEL...]", models=True)
def command(args: tuple[str, ...]) -> None:
    """Keep models loaded, whatever happens

    A pinned model does not expire and is not unloaded to make room; it is not loaded by this either. Without MODEL the
    pinned ones are listed. Pins survive restarts.
    """
    run_async(_list() if not args else set_pins(args, pinned=True))


async def set_pins(models: tuple[str, ...], *, pinned: bool) -> None:
    async with connected() as client:
        for model in models:
            warning = await client.pin(model, pinned)
            out(f"{'pinned' if pinned else 'unpinned'} '{model}'")
            if warning:
                err(f"warning: {warning}")


async def _list() -> None:
    async with connected() as client:
        for name in (await client.status()).pinned:
            out(name)
