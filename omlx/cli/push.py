"""`omlx push`: send a model to a registry."""

from __future__ import annotations

import rich_click as click

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.cli.progress import Display, follow


@verb("push", usage="MODEL", count=Count(1, 1), models=True)
@click.option("--insecure", is_flag=True, help="Use an insecure registry")
def command(args: tuple[str, ...], insecure: bool) -> None:
    """Push a model to Hugging Face

    MODEL is hf.co/ORG/NAME; `omlx cp` gives a model that name. Needs HF_TOKEN with write access, in the environment
    of the server.
    """
    run_async(_push(args[0], insecure))


async def _push(model: str, insecure: bool) -> None:
    async with connected() as client:
        with Display() as display:
            await follow(client.push(model, insecure=insecure), display)
    repository = model.split(":")[0].removeprefix("hf.co/").removeprefix("huggingface.co/")
    out(f"\nYou can find your model at:\n\n\thttps://huggingface.co/{repository}")
