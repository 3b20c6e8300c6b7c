"""A catalog file: the version and the families of one catalog, as TOML; its format stands at the head of catalog.toml.

The one that comes with the package is always there. A newer one that a publisher signed can be kept beside the models
(see `catalog_update`); the one with the higher version counts.
"""

from __future__ import annotations

import functools
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from omlx_registry.errors import RegistryError

KEPT: Final = "catalog.toml"
"""The newer catalog, in the folder that `keep_in` names."""
ORIGIN: Final = "catalog.json"
_folder: Path | None = None


class Size(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One size of a family and where its quantizations lie."""

    repo: str = ""
    quants: list[str] = []
    files: dict[str, str] = {}
    source: str = ""
    default: str = ""
    """The quantization behind the bare size, where it is not the family's."""

    def repositories(self) -> dict[str, str]:
        """Quantization → repository."""
        return {quant: f"{self.repo}-{quant}" for quant in self.quants} | self.files

    def words(self) -> set[str]:
        """What its repositories' names are made of, in lower case."""
        return {word for path in self.repositories().values() for word in path.rpartition("/")[2].lower().split("-")}

    def unquantized(self) -> str:
        """The repository to quantize from; "" where there is none."""
        return self.source or self.repositories().get("bf16", "")


class ModelFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A short name: its sizes, the one behind `latest`, and the quantization behind a bare size."""

    latest: str = ""
    sizes: dict[str, Size] = {}
    default: str = "4bit"
    also: list[str] = []
    """Further short names that mean this family."""
    capabilities: list[str] = []
    note: str = ""
    refused: str = ""
    """The sentence with which every tag is refused: what cannot be run, and what to use instead."""
    seen: Literal["", "publisher", "exo", "mlx-swift-lm", "mentions"] = ""
    """Where the names of its repositories were read."""


class CatalogFile(msgspec.Struct, frozen=True):
    """A catalog; of two the one with the higher `version` counts."""

    version: int
    families: dict[str, ModelFamily]
    """By every short name, further ones included."""


def parse(text: str) -> CatalogFile:
    """Raises RegistryError where the text is no catalog that this version of oMLX can read."""
    try:
        entries: dict[str, Any] = tomllib.loads(text)
        version = msgspec.convert(entries.pop("version"), int)
        shipped = msgspec.convert(entries, dict[str, ModelFamily])
    except (tomllib.TOMLDecodeError, KeyError, msgspec.ValidationError) as error:
        raise RegistryError("this is no catalog that this version of oMLX can read: install a newer oMLX") from error
    for name, family in shipped.items():
        if not family.refused and family.latest not in family.sizes:
            raise RegistryError(f"the catalog is damaged: {name} has no size {family.latest!r}")
    return CatalogFile(version, shipped | {other: family for family in shipped.values() for other in family.also})


@functools.cache
def shipped() -> CatalogFile:
    """The catalog that comes with the package."""
    return parse(files("omlx_registry").joinpath("catalog.toml").read_text("utf-8"))


def keep_in(folder: Path) -> None:
    """Where a newer catalog is kept; for the whole process."""
    global _folder
    _folder = folder


def current() -> CatalogFile:
    """The shipped catalog, or a newer one that is kept; an unreadable one counts as none."""
    if _folder is None:
        return shipped()
    path = _folder / KEPT
    try:
        kept = _read(path, path.stat().st_mtime_ns)
    except (OSError, RegistryError, UnicodeDecodeError):
        return shipped()
    return kept if kept.version > shipped().version else shipped()


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> CatalogFile:
    return parse(path.read_text("utf-8"))
