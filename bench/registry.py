"""How fast the registry answers with many models: `python bench/registry.py [COUNT]` (default 1000).

Builds a store of COUNT tiny models that share their weights, each with parameters and a system prompt of its own, and
times what a server does: a listing of manifests never read before, the first listing after a start, a listing later,
resolving a name, show, copy, delete, prune. Prints the median and the best of five, in milliseconds.
Target: listings of known manifests under 100 ms.
"""

from __future__ import annotations

import json
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "registry")]

from omlx_registry import Registry, Texts
from omlx_registry.assemble import Overrides, assemble, text_layers
from omlx_registry.manifest import FOLDERS
from omlx_registry.names import parse_name


def make_model(folder: Path) -> Path:
    """A folder that passes for a model: a llama configuration, a long template and one small tensor."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "max_position_embeddings": 4096,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}{# tools #}" * 200}))
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    ).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    return folder


def fill(registry: Registry, count: int, folder: Path) -> None:
    """`count` models in 20 families; only their texts differ."""
    registry.add_model_folder("base", make_model(folder), transfer="copy")
    store = registry.store
    layers = [layer for layer in store.get("base").manifest.layers if layer.media_type in FOLDERS]
    for number in range(count - 1):
        texts = Texts(system=f"You are number {number}.", parameters={"temperature": 0.5, "stop": [f"<{number}>"]})
        own = [layer for layer, _ in text_layers(store.blobs, texts)]
        assemble(
            store, parse_name(f"family{number % 20}/model{number // 20}:tag{number % 3}"), [*layers, *own], Overrides()
        )


def timed(action: Callable[[], object]) -> str:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return f"{statistics.median(times):8.2f} ms, best {min(times):8.2f} ms"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as temporary:
        root, folder = Path(temporary, "models"), Path(temporary, "source")
        folder.mkdir()
        registry = Registry(root)
        fill(registry, count, folder)
        assert len(registry.list()) == count
        name = next(spec.name for spec in registry.list() if spec.name.startswith("family7/")).upper()
        numbers = iter(range(10**6))
        for label, action in (
            ("list, nothing known", lambda: ((root / "omlx/known.msgpack").unlink(), Registry(root).list())),
            ("list, first after start", lambda: Registry(root).list()),
            ("list, later", registry.list),
            ("resolve", lambda: registry.resolve(name)),
            ("show", lambda: registry.show(name)),
            ("copy", lambda: registry.copy(name, f"copy{next(numbers)}")),
            ("delete", lambda: registry.delete(registry.names()[-1].full)),
            ("prune", registry.prune),
        ):
            print(f"{label:<24} {timed(action)}   ({count} models)")


if __name__ == "__main__":
    main()
