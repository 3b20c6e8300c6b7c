"""*API keys*: who may call at all, where the server asks for a key.

A key arrives as `Authorization: Bearer …` or as `x-api-key`. Without keys in the settings everybody may call, which is
right on loopback and worth a warning anywhere else.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable

from omlx.settings import Settings, bind_address

OPEN_PATHS = frozenset({"/", "/health", "/api/version"})
"""What answers without a key: it tells nothing but that a server is here."""


class Keys:
    """The keys that are accepted; none: no key is needed."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def allow(self, path: str, authorization: str, x_api_key: str) -> bool:
        """Whether a request may pass; the header values are decoded as latin-1.

        Takes the same time whichever key is wrong, and wherever.
        """
        if not self._digests or path in OPEN_PATHS:
            return True
        scheme, _, token = authorization.strip().partition(" ")
        shown = [x_api_key.strip(), token.strip() if scheme.lower() == "bearer" else ""]
        found = [
            hmac.compare_digest(_digest(candidate.encode("latin-1")), digest)
            for candidate in shown
            if candidate
            for digest in self._digests
        ]
        return any(found)


def _digest(key: bytes) -> bytes:
    """All digests are equally long, so that comparing them says nothing about a key's length."""
    return hashlib.sha256(key).digest()


def keys_of(settings: Settings) -> Keys:
    return Keys(() if settings.no_auth else settings.api_key)


def warning(settings: Settings) -> str:
    """What the log should say about who may call; "" where all is well."""
    host, _ = bind_address(settings)
    if settings.api_key or settings.no_auth or bound_to_loopback(host):
        return ""
    return (
        f"everybody who reaches {host} may use and delete models: "
        "set api_key to ask for a key, or no_auth if that is intended"
    )


def bound_to_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that binds `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
