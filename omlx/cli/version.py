"""`omlx --version`: the version of the running server, and of this client if it differs.

Scripts and completions call it often, so it imports neither click nor the client: importing httpx alone takes twice as
long as everything here.
"""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

import msgspec

from omlx import __version__
from omlx.cli.console import effective, out
from omlx.settings import client_url

_TIMEOUT_S = 5.0


def print_version() -> None:
    """Print the versions. Raises SettingError."""
    try:
        program, version = _ask(client_url(effective()))
    except (OSError, HTTPException, LookupError, ValueError, msgspec.MsgspecError):
        out("Warning: could not connect to a running oMLX instance")
        out(f"Warning: client version is {__version__}")
        return
    out(f"{program} version is {version}")
    if (program, version) != ("omlx", __version__):
        out(f"Warning: client version is {__version__}")


def _ask(url: str) -> tuple[str, str]:
    """The program that answers, "omlx" or "ollama", and its version. Raises on any failure."""
    address = urlsplit(url)
    host, port = address.hostname or "", address.port
    connection = (
        HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
        if address.scheme == "https"
        else HTTPConnection(host, port, timeout=_TIMEOUT_S)
    )
    try:
        connection.request("GET", f"{address.path}/api/version", headers={"User-Agent": f"omlx/{__version__}"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(response.reason)
        versions = msgspec.json.decode(response.read(), type=dict[str, str])
    finally:
        connection.close()
    return ("omlx", versions["omlx_version"]) if versions.get("omlx_version") else ("ollama", versions["version"])
