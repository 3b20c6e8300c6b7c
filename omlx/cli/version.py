"""`omlx --version`: the version of the server that answers, and of this client where it differs."""

from __future__ import annotations

from omlx import __version__
from omlx.cli.console import effective, out, run_async
from omlx.client import Client, ClientError
from omlx.settings import client_url


def print_version() -> None:
    async def ask() -> tuple[str, str]:
        """Whose version, and which. A genuine Ollama has one only."""
        async with Client(client_url(effective())) as client:
            version = await client.version()
            return ("omlx", version.omlx_version) if version.omlx_version else ("ollama", version.version)

    try:
        program, version = run_async(ask())
    except ClientError:
        out("Warning: could not connect to a running oMLX instance")
        out(f"Warning: client version is {__version__}")
        return
    out(f"{program} version is {version}")
    if (program, version) != ("omlx", __version__):
        out(f"Warning: client version is {__version__}")
