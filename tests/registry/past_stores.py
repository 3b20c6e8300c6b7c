"""Stores as past versions left them: manifests and small blobs are kept under tests/data/stores, the weights are those
of the taught model. `python -m tests.registry.past_stores` writes the one of the present version.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from omlx_registry import Overrides, Registry, Texts
from omlx_registry.versions import VERSION

from tests.support.tiny import DATA

STORES = DATA / "stores"
SMALL = 2_000
"""Bytes: larger blobs are files of the taught model."""


def versions() -> list[str]:
    return sorted(path.name for path in STORES.iterdir())


def restore(version: str, root: Path) -> None:
    """Make the store of that version at `root`."""
    shutil.copytree(STORES / version, root)
    for path in (DATA / "taught-qwen3").iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (root / "blobs").mkdir(exist_ok=True)
        shutil.copyfile(path, root / "blobs" / f"sha256-{digest}")


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        registry = Registry(root, [])
        registry.bring_up_to_date()
        texts = Texts(system="Be kind.", parameters={"temperature": 0.5, "stop": ["END"]}, licenses=["Free."])
        registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
        registry.add_model_folder("kind:v1", DATA / "taught-qwen3", texts=texts, overrides=Overrides(), transfer="copy")
        for path in [*root.glob("manifests/**/*"), *root.glob("blobs/*"), root / "omlx" / "version.json"]:
            if path.is_file() and path.stat().st_size <= SMALL:
                place = target / path.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)


if __name__ == "__main__":
    make(STORES / f"version-{VERSION}")
