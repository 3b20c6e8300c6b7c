"""Aliases: names the user gave to repositories or catalog entries (`omlx alias NAME TARGET`), beside the models."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from omlx_registry import catalog
from omlx_registry.errors import InvalidName, RegistryError, reason, storage_errors
from omlx_registry.names import Name, parse_name


class Aliases:
    """The user's own catalog entries: short name → what to pull. One small JSON file, written atomically."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()

    def all(self) -> dict[str, str]:
        """Alias → target, as the user typed them; raises RegistryError where the file is broken."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            why = reason(error, self._file.parent)
            raise RegistryError(f"the alias file {self._file.name} cannot be read: {why}") from error

    def set(self, name: str, target: str) -> None:
        """Let `name` mean `target` from now on. Raises InvalidName where either is no name, or target means nothing."""
        alias, meaning = parse_name(name), parse_name(target)
        if catalog.resolve(meaning) is None:
            raise InvalidName(
                target, f"{target} is neither in the catalog nor a repository (ORG/NAME or hf.co/ORG/NAME)"
            )
        self._change(lambda entries: entries | {alias.short: target})

    def remove(self, name: str) -> None:
        """Forget an alias; raises InvalidName where there is none."""
        alias = parse_name(name).short

        def without(entries: dict[str, str]) -> dict[str, str]:
            if alias not in entries:
                raise InvalidName(name, f"there is no alias {alias}")
            return {key: value for key, value in entries.items() if key != alias}

        self._change(without)

    def resolve(self, name: Name) -> catalog.PullTarget | None:
        """The target of an alias; None where `name` is none."""
        for alias, target in self.all().items():
            if parse_name(alias).folded == name.folded:
                return catalog.resolve(parse_name(target))
        return None

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        with self._lock, storage_errors(self._file.parent):
            entries = change(self.all())
            self._file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_suffix(".new")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(entries)))
            temporary.replace(self._file)
