"""Projections of one input, computed as one matrix product.

A transformer layer multiplies the same vector by several matrices: queries, keys and values, then gate and up. With few
rows each product is little work, and starting it is what costs; side by side in one matrix they are started once. The
model's own code goes on calling `q_proj`, `k_proj` … one after the other: each is now a *part* of a shared *stack*,
which computes all parts on the first call and hands out the others from there.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.nn.layers.distributed import AllToShardedLinear, QuantizedAllToShardedLinear
from mlx.utils import tree_map

_KINDS = {nn.Linear, nn.QuantizedLinear, AllToShardedLinear, QuantizedAllToShardedLinear}
_SETS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def fuse(model: nn.Module) -> int:
    """Stack the projections of every layer that allows it, lazily and in place; returns how many stacks were made."""
    made = 0
    for _, module in model.named_modules():
        for names in _SETS:
            layers = [module.get(name) for name in names] if isinstance(module, nn.Module) else []
            if layers and _alike(layers):
                for name, part in zip(names, _stack(layers), strict=True):
                    setattr(module, name, part)
                made += 1
    return made


def _alike(layers: list[Any]) -> bool:
    """Whether the layers can share one product: same kind, same input, all or none with a bias."""
    first = layers[0]
    if type(first) not in _KINDS or any(type(layer) is not type(first) for layer in layers):
        return False
    if any(set(layer) != set(first) or layer.weight.shape[1] != first.weight.shape[1] for layer in layers):
        return False
    if any(layer.weight.dtype != first.weight.dtype for layer in layers):
        return False
    kept = ("group_size", "bits", "mode")
    return all(getattr(layer, name, None) == getattr(first, name, None) for layer in layers for name in kept)


def _stack(layers: list[Any]) -> list[FusedPart]:
    sizes = [layer.weight.shape[0] for layer in layers]
    joined = layers[0]
    joined.update(tree_map(lambda *values: mx.concatenate(values, axis=0), *(dict(layer) for layer in layers)))
    stack = _Stack(joined, sizes)
    return [FusedPart(stack, index) for index in range(len(layers))]


class _Stack:
    """The joined layer and, between the calls of one forward, what it computed."""

    def __init__(self, layer: Any, sizes: list[int]) -> None:
        self.layer = layer
        self._ends = [sum(sizes[: index + 1]) for index in range(len(sizes) - 1)]
        self._input: mx.array | None = None
        self._left: dict[int, mx.array] = {}

    def part(self, index: int, x: mx.array) -> mx.array:
        if x is not self._input or index not in self._left:
            self._input = x
            self._left = dict(enumerate(mx.split(self.layer(x), self._ends, axis=-1)))
        part = self._left.pop(index)
        if not self._left:
            self._input = None
        return part


class FusedPart(nn.Module):  # type: ignore[misc]
    """One projection of a stack. The first holds the weights, so that the model's parameters are complete."""

    def __init__(self, stack: _Stack, index: int) -> None:
        super().__init__()
        self._stack = stack
        self._at = index
        if index == 0:
            self.stack = stack.layer

    def __call__(self, x: mx.array) -> mx.array:
        return self._stack.part(self._at, x)
