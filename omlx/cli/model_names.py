"""Model names for shell completion, from the running server."""

from __future__ import annotations

import os
from urllib.request import ProxyHandler, build_opener

import msgspec

from omlx import settings
from omlx.protocols.ollama import models as models_wire

TIMEOUT_S = 0.5


def model_names() -> list[str]:
    """The server's models; [] if none answers quickly. Never starts a server."""
    try:
        url = settings.client_url(settings.load({}, os.environ).settings)
        with build_opener(ProxyHandler({})).open(f"{url}/api/tags", timeout=TIMEOUT_S) as reply:
            return [model.name for model in msgspec.json.decode(reply.read(), type=models_wire.ListResponse).models]
    except (OSError, settings.SettingError, msgspec.DecodeError, ValueError):
        return []
