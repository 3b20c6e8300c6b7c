"""A *merged* schema has together all that holds for one value: `merge` makes it, `write` writes it."""

from __future__ import annotations

from typing import Any

from omlx.engine.schemas.facts import TYPES
from omlx.engine.schemas.refs import Place


class Merged:
    """One value's schema, its parts still places. `impossible`: no value obeys it."""

    def __init__(self) -> None:
        self.types: set[str] = set(TYPES)
        self.values: list[Any] | None = None
        self.excepted: list[Any] = []
        self.limits: dict[str, Any] = {}
        self.also: list[dict[str, Any]] = []
        self.properties: dict[str, list[Place]] = {}
        self.patterns: dict[str, list[Place]] = {}
        self.additional: list[Place] | None = None
        self.required: dict[str, None] = {}
        self.prefix: list[list[Place]] = []
        self.items: list[Place] | None = None
        self.closes = False
        """The object lists its properties, and nothing says that there may be others."""
        self.impossible = False

    @property
    def empty(self) -> bool:
        """Every value obeys it."""
        return not (
            self.values is not None or self.excepted or self.limits or self.also or self.objects or self.arrays
        ) and self.types == set(TYPES)

    @property
    def objects(self) -> bool:
        """It says something of objects."""
        return bool(self.properties or self.patterns or self.required or self.additional is not None)

    @property
    def arrays(self) -> bool:
        return bool(self.prefix or self.items is not None)
