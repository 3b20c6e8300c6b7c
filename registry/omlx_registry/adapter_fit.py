"""Whether a LoRA adapter in mlx-lm's form belongs to a base model: rank, layers and widths of its matrices. Pure.

mlx-lm makes matrices of the rank that adapter_config.json states and leaves out what does not match by name, without a
word. So an adapter of another model changes nothing, or fails at the first request; here it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from omlx_registry.errors import CreateError
from omlx_registry.weights import TensorHeader, quantization_of

_MATRIX: Final = re.compile(r"(?P<module>.+)\.lora_(?P<side>[ab])\Z")
_OTHER: Final = "the adapter is for another model"
_MOST_RANK: Final = 8192
"""Real ones have up to 512."""
_LAYER: Final = re.compile(r"\.layers\.(\d{1,9})\.")


def check_fit(
    adapter_config: Mapping[str, Any],
    adapter: Iterable[TensorHeader],
    base_config: Mapping[str, Any],
    base: Iterable[TensorHeader],
    block_count: int,
) -> None:
    """Raises CreateError with a sentence for the user. `block_count`: layers of the base model, 0 where not known."""
    settings = adapter_config.get("lora_parameters")
    rank = settings.get("rank") if isinstance(settings, Mapping) else None
    if rank is not None and not (type(rank) is int and 0 < rank <= _MOST_RANK):
        # Modules without matrices in the file get random ones of this rank, which take memory.
        raise CreateError(f"adapter_config.json: the rank must be a whole number from 1 to {_MOST_RANK:,}")
    weights = {tensor.name: tensor for tensor in base}
    for tensor in adapter:
        match = _MATRIX.match(tensor.name)
        if match is None:
            continue
        layer = _LAYER.search(tensor.name)
        if layer is not None and 0 < block_count <= int(layer[1]):
            raise CreateError(f"{_OTHER}: it changes layer {int(layer[1]):,}, but this one has {block_count:,} layers")
        if len(tensor.shape) != 2:
            continue  # experts: their widths are not looked at
        own_rank, width = tensor.shape if match["side"] == "b" else tensor.shape[::-1]
        if isinstance(rank, int) and rank != own_rank:
            raise CreateError(f"adapter_config.json states rank {rank:,}, but {tensor.name} has rank {own_rank:,}")
        widths = _widths(match["module"], match["side"], weights, base_config)
        if widths and width not in widths:
            raise CreateError(f"{_OTHER}: {tensor.name} has width {width:,}, but this one needs {min(widths):,}")


def _widths(module: str, side: str, weights: Mapping[str, TensorHeader], config: Mapping[str, Any]) -> set[int]:
    """Widths that the matrix of a module may have: of a layer, or of an embedding; none where it is not known."""
    weight = weights.get(f"{module}.weight")
    if weight is None or len(weight.shape) != 2:
        return set()
    rows, columns = weight.shape
    if weight.dtype == "U32":
        packing = quantization_of(module, config)
        if packing is None:
            return set()
        columns = columns * 32 // packing.bits
    # A layer's weight is [out, in] and takes `in` first, an embedding's is [tokens, width] and takes tokens first.
    return {columns, rows} if module.endswith(("embed_tokens", "wte")) else {columns if side == "a" else rows}
