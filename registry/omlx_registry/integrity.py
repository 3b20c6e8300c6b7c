"""Verification: whether the blobs of our models are what their manifests say."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from omlx_registry.blobs import BlobStore, hash_file
from omlx_registry.store import Store


class Damage(msgspec.Struct, frozen=True):
    """One blob that is not what it should be. `reason`: missing, truncated or corrupt.

    With the digest "" and the reason "unreadable manifest": a name whose manifest cannot be read.
    """

    digest: str
    reason: str
    models: list[str]


class VerifyReport(msgspec.Struct, frozen=True):
    checked: int
    bytes: int
    damaged: list[Damage]
    repaired: bool = False
    """Corrupt blobs were dropped, so that pulling their models again fetches them."""


def verify(store: Store, *, repair: bool = False, report: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Hash every blob of our models again (reads everything: minutes). `repair` drops the corrupt ones.

    `report` is called with the bytes read so far and in all.
    """
    wanted: dict[str, tuple[int, list[str]]] = {}
    torn: list[str] = []
    for stored in store.manifests.ours(torn):
        for layer in (stored.manifest.config, *stored.manifest.layers):
            models = wanted.setdefault(layer.digest, (layer.size, []))[1]
            if stored.entry.name.short not in models:
                models.append(stored.entry.name.short)
    damaged = [Damage("", "unreadable manifest", [name]) for name in sorted(torn)]
    total, done = sum(size for size, _ in wanted.values()), 0
    for digest, (size, models) in wanted.items():
        if report is not None:
            report(done, total)
        reason = _examine(store.blobs, digest, size)
        done += size
        if reason is not None:
            damaged.append(Damage(digest, reason, sorted(models)))
    if report is not None:
        report(done, total)
    if repair:
        store.remove_damaged(damage.digest for damage in damaged if damage.digest)
    return VerifyReport(len(wanted), total, damaged, repair and bool(damaged))


def _examine(blobs: BlobStore, digest: str, size: int) -> str | None:
    actual = blobs.size(digest)
    if actual is None:
        return "missing"
    if actual != size:
        return "truncated" if actual < size else "corrupt"
    return None if hash_file(blobs.path(digest))[0] == digest else "corrupt"
