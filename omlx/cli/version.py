"""`omlx --version`: the version of the server that answers, and of this client where it differs.

Scripts and completions ask for it often, so it gets by without click and without the client: httpx alone takes twice as
long to import as everything here.
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
    """Raises SettingError."""
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
    """Whose version, and which. A genuine Ollama has one only. Raises what prevents an answer."""
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
        answer = msgspec.json.decode(response.read(), type=dict[str, str])
    finally:
        connection.close()
    return ("omlx", answer["omlx_version"]) if answer.get("omlx_version") else ("ollama", answer["version"])
