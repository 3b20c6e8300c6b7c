"""Several servers behind one address: requests go to the one that knows their beginning, or has the least to do."""

from __future__ import annotations

from functools import partial

from omlx.replicas.fleet import Fleet
from omlx.replicas.front import Front
from omlx.server.app import Balancer
from omlx.settings import SettingError, Settings


def balance(settings: Settings) -> Balancer:
    """What balances requests across `settings.replicas`. Raises SettingError where one is no URL of a server."""
    try:
        fleet = Fleet(settings.replicas)
    except ValueError as error:
        raise SettingError(f"replicas: {error}") from error
    return Balancer(partial(Front, fleet=fleet, max_body=settings.max_body), fleet.start, fleet.close)
