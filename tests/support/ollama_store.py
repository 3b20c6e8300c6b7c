"""A store as an Ollama keeps it, made by hand: manifests that name blobs by digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

PREFIX = "application/vnd.ollama.image."
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class OllamaFolder:
    """The folder of models of an Ollama."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)
        (root / "manifests").mkdir()

    def blob(self, data: bytes) -> str:
        """Store a blob; its digest."""
        digest = hashlib.sha256(data).hexdigest()
        (self.root / "blobs" / f"sha256-{digest}").write_bytes(data)
        return f"sha256:{digest}"

    def path(self, digest: str) -> Path:
        return self.root / "blobs" / digest.replace(":", "-")

    def manifest(self, name: str) -> Path:
        """Of a name such as `llama3:8b` or `someone/llama3:8b`."""
        path, _, tag = name.rpartition(":")
        namespace, _, model = path.rpartition("/")
        return self.root / "manifests" / "registry.ollama.ai" / (namespace or "library") / model / tag

    def add(self, name: str, layers: list[tuple[str, bytes]], *, config: dict[str, Any] | None = None) -> list[str]:
        """A model of layers (kind, bytes), where a kind may be `tensor:NAME`; the digests of the layers."""
        entries = []
        for kind, data in layers:
            kind, _, label = kind.partition(":")
            entry: dict[str, Any] = {"mediaType": PREFIX + kind, "digest": self.blob(data), "size": len(data)}
            entries.append(entry | ({"name": label} if label else {}))
        about = json.dumps({"model_format": "gguf", "model_family": "llama", **(config or {})}).encode()
        told = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": self.blob(about), "size": len(about)},
            "layers": entries,
        }
        path = self.manifest(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told))
        return [entry["digest"] for entry in entries]

    def state(self) -> dict[str, tuple[int, int, str]]:
        """Every file with its inode, time of change and content: equal where nothing was touched."""
        return {
            str(path.relative_to(self.root)): (
                path.stat().st_ino, path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()
            )
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }  # fmt: skip
