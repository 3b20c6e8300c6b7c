"""*API keys*: who may call at all, and how often, where the server asks for a key.

A key arrives as `Authorization: Bearer …` or as `x-api-key`. Without keys in the settings everybody may call, which is
right on loopback and worth a warning anywhere else. A key has a name, which the log and the metrics know it by.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from omlx.settings import SettingError, Settings


class Key(NamedTuple):
    """`rate` is the most requests a minute; 0: no limit."""

    name: str
    secret: str
    rate: int = 0


class Admission(NamedTuple):
    """Whether a request may pass. `name` is its key's, "" where it needs none; `retry_after` in s, 0: now."""

    known: bool
    name: str = ""
    retry_after: int = 0


WELCOME = Admission(True)


class Keys:
    """The keys that are accepted; none: no key is needed. `clock` in s."""

    def __init__(self, keys: Iterable[Key] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = [(_digest(key.secret.encode()), key, _Bucket(key.rate, clock)) for key in keys]

    def admit(self, authorization: str, x_api_key: str) -> Admission:
        """What becomes of a request that needs a key; it counts against its key's rate.

        The header values are decoded as latin-1. Takes the same time whichever key is wrong, and wherever.
        """
        if not self._keys:
            return WELCOME
        scheme, _, token = authorization.strip().partition(" ")
        shown = [x_api_key.strip(), token.strip() if scheme.lower() == "bearer" else ""]
        candidates = [_digest(candidate.encode("latin-1")) for candidate in shown if candidate]
        matches = [
            (key, bucket)
            for candidate in candidates
            for digest, key, bucket in self._keys
            if hmac.compare_digest(candidate, digest)
        ]
        if not matches:
            return Admission(False)
        key, bucket = matches[0]
        return Admission(True, key.name, bucket.take())


class _Bucket:
    """Requests a key still has: it starts with a minute's worth, and that is what it fills up to again."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._left = float(rate)
        self._seen = clock()

    def take(self) -> int:
        """Take one request; returns after how many s there is one, 0 where there was."""
        if not self._rate:
            return 0
        now = self._clock()
        self._left = min(self._rate, self._left + (now - self._seen) * self._rate / 60)
        self._seen = now
        if self._left < 1:
            return max(1, math.ceil((1 - self._left) * 60 / self._rate))
        self._left -= 1
        return 0


def _digest(key: bytes) -> bytes:
    """All digests are equally long, so that comparing them says nothing about a key's length."""
    return hashlib.sha256(key).digest()


def keys_of(settings: Settings) -> Keys:
    """Raises SettingError where the file of keys cannot be used."""
    if settings.no_auth:
        return Keys()
    rate = settings.key_rate_limit
    keys = [Key(f"key-{number}", secret, rate) for number, secret in enumerate(settings.api_key, 1)]
    return Keys([*keys, *(_read(Path(settings.api_key_file), rate) if settings.api_key_file else ())])


def _read(file: Path, rate: int) -> list[Key]:
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the file of API keys {file} cannot be read: {error}") from None
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = [] if line.lstrip().startswith("#") else line.split()
        if not fields:
            continue
        # A message must not hold a key: it ends up in logs.
        if not 2 <= len(fields) <= 3 or not all(field.isdecimal() for field in fields[2:]):
            raise SettingError(
                f"line {number} of the file of API keys {file} is not NAME KEY, or NAME KEY REQUESTS-A-MINUTE"
            )
        if fields[0] in keys:
            raise SettingError(f"line {number} of the file of API keys {file} has the name {fields[0]} once more")
        name, secret, *own_rate = fields
        keys[name] = Key(name, secret, int(own_rate[0]) if own_rate else rate)
    if not keys:
        # To read it as "no keys" would open the server to everybody.
        raise SettingError(f"the file of API keys {file} holds no key")
    return list(keys.values())


def warning(settings: Settings, address: str) -> str:
    """What the log should say about who may call a server that listens on IP `address`; "" where all is well."""
    if settings.api_key or settings.api_key_file or settings.no_auth or is_loopback(address):
        return ""
    return (
        f"everybody who reaches {address} may use and delete models: "
        "set api_key to ask for a key, or no_auth if that is intended"
    )


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach a server that listens on this IP address, as its socket tells it."""
    ip = ipaddress.ip_address(address)
    return ip.is_loopback or (isinstance(ip, ipaddress.IPv6Address) and bool((ip.ipv4_mapped or ip).is_loopback))
