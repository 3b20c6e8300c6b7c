"""A plain network: the modules that a model's tensors make up, for models that no library builds.

It computes nothing: it serves work that only needs names and shapes, such as quantizing and casting.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten


def plain_network(folder: Path, embeddings: tuple[str, ...]) -> nn.Module:
    """The modules of the safetensors files in `folder`, weights lazy. `embeddings`: the last parts of their paths."""
    tensors: dict[str, mx.array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        tensors |= loaded
    tree = tree_unflatten(list(tensors.items()))
    network: nn.Module = _module(tree, "", embeddings)
    return network


def _module(tree: Any, name: str, embeddings: tuple[str, ...]) -> Any:
    if isinstance(tree, list):
        return [_module(part, name, embeddings) for part in tree]
    if not isinstance(tree, dict):
        return tree
    module = _leaf(tree, name in embeddings)
    for key, part in tree.items():
        module[key] = _module(part, key, embeddings)
    return module


def _leaf(tree: dict[str, Any], is_embedding: bool) -> nn.Module:
    """A layer without its weight; of a kind that can be quantized if the tensors are those of one."""
    weight = tree.get("weight")
    if not isinstance(weight, mx.array) or weight.ndim != 2 or not tree.keys() <= {"weight", "bias"}:
        return nn.Module()
    # Lazy: their initial values are never computed.
    return nn.Embedding(*weight.shape) if is_embedding else nn.Linear(weight.shape[1], weight.shape[0], "bias" in tree)
