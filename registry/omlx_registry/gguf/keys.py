"""Keys: typed access to the metadata of one architecture in a GGUF file; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from omlx_registry.gguf.container import GgufError


class GgufKeys:
    """Typed access to `<architecture>.<key>`; a missing or malformed value is a GgufError naming the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str):
        self.metadata, self.architecture = metadata, architecture

    def widest(self, *names: str) -> GgufKeys:
        """The same with the largest number of those keys that have one for each layer."""
        found = dict(self.metadata)
        for name in (f"{self.architecture}.{name}" for name in names):
            value = found.get(name)
            if isinstance(value, np.ndarray) and len(value) and value.dtype.kind in "iu":
                found[name] = int(value.max())
        return GgufKeys(found, self.architecture)

    def assuming(self, values: Mapping[str, int]) -> GgufKeys:
        """The same with other values."""
        others = {f"{self.architecture}.{name}": value for name, value in values.items()}
        return GgufKeys({**self.metadata, **others}, self.architecture)

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = int(value[0])  # the same number for every layer
        name = f"{self.architecture}.{key}"
        if value is None:
            raise GgufError(f"the GGUF file lacks {name!r} in its metadata")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise GgufError(f"the GGUF file's metadata {name!r} has an unusable value")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            value = default
        name = f"{self.architecture}.{key}"
        if value is None:
            raise GgufError(f"the GGUF file lacks {name!r} in its metadata")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise GgufError(f"the GGUF file's metadata {name!r} has an unusable value")
        return shortest(float(value))

    def per_layer(self, key: str, layers: int) -> list[int] | None:
        """A value for each layer; None where the file has none, or one number for all of them."""
        value = self.get(key)
        if not isinstance(value, np.ndarray):
            return None
        if len(value) != layers or value.dtype.kind not in "iub":
            raise GgufError(f"the GGUF file's metadata '{self.architecture}.{key}' has an unusable value")
        return [int(item) for item in value]


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 9.999999747378752e-06 was meant as 1e-05."""
    return float(str(np.float32(value))) if abs(value) < 3e38 else value
