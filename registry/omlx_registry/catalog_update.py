"""Catalog updates: a newer catalog than the shipped one, signed by its publisher and kept beside the models.

A publisher's catalog is two files: the TOML text, and under the same name with `.sig` behind it the Ed25519 signature
of its bytes in base64. The public key (base64, 32 bytes) is given with the first update and kept; from then on nothing
that another key signed is taken, and no version that is lower than the one at hand.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from pathlib import Path

import msgspec

from omlx_registry.catalog_file import KEPT, ORIGIN, CatalogFile, current, keep_in, parse, shipped
from omlx_registry.errors import RegistryError, storage_errors

Fetch = Callable[[str], bytes]
"""Reads an address; raises RegistryError with a sentence."""

_MOST_BYTES = 4 << 20


class Origin(msgspec.Struct, frozen=True):
    """Where catalogs come from, and the public key that must have signed them."""

    url: str
    key: str


def verify(text: bytes, signature: str, key: str) -> None:
    """Raises RegistryError where `key` did not sign `text`; key and signature are base64."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError) as error:
        raise RegistryError("this is no public key: 32 bytes in base64 are expected") from error
    try:
        public.verify(base64.b64decode(signature.strip(), validate=True), text)
    except (binascii.Error, ValueError, InvalidSignature) as error:
        raise RegistryError("the catalog is not signed with the publisher's key: nothing was changed") from error


def origin(folder: Path) -> Origin | None:
    """Of the updates so far."""
    try:
        return msgspec.json.decode((folder / ORIGIN).read_bytes(), type=Origin)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RegistryError(f"{ORIGIN} beside the models cannot be read: remove it to start anew") from error


def update(folder: Path, fetch: Fetch, url: str = "", key: str = "") -> tuple[CatalogFile, bool]:
    """Fetch the publisher's catalog into `folder`; the catalog that counts now, and whether it changed.

    `url` and `key` are those of the last update where they are not given. Raises RegistryError.
    """
    before = origin(folder)
    if before is not None and key and key != before.key:
        raise RegistryError(f"another key was used before: remove {ORIGIN} and {KEPT} beside the models to change it")
    url, key = url or (before.url if before else ""), key or (before.key if before else "")
    if not url or not key:
        raise RegistryError("no publisher is known yet: use `omlx catalog update --from URL --key KEY`")
    text = fetch(url)
    if len(text) > _MOST_BYTES:
        raise RegistryError("this is no catalog: it is too large")
    verify(text, fetch(f"{url}.sig").decode("ascii", "replace"), key)
    catalog = parse(text.decode("utf-8", "replace"))
    keep_in(folder)
    at_hand = current()
    if catalog.version < at_hand.version:
        raise RegistryError(f"the publisher's catalog {catalog.version} is older than {at_hand.version}, which is kept")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if catalog.version > shipped().version:
            _write(folder / KEPT, text)
        _write(folder / ORIGIN, msgspec.json.encode(Origin(url, key)))
    return current(), catalog.version > at_hand.version


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)
