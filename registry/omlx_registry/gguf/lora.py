"""GGUF adapters: a LoRA adapter as llama.cpp keeps it becomes mlx-lm's two files; runs in the worker process.

Both formats hold two matrices for each changed layer, A [rank, in] and B [out, rank] in GGUF, their transposes in MLX.
Rows of B are in the order of the base model's rows: where the architecture interleaves those of q and k, they are put
back as the base model's are. What mlx-lm cannot apply (changed embeddings, several ranks) is refused: an adapter that
is applied in part would be wrong silently.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.gguf.container import GgufError, GgufFile
from omlx_registry.gguf.layout import Layout
from omlx_registry.gguf.layouts import LAYOUTS
from omlx_registry.gguf.tensors import dequantize
from omlx_registry.lora import CONFIG_FILE, MLX_WEIGHTS

_MATRIX: Final = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.weight\.lora_([ab])\Z")
_MOST_BYTES: Final = 8 << 30
"""Size limit of the converted adapter, which is held in memory."""


def import_adapter(path: Path, folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the adapter at `path` into `folder` (made if missing). `config`: the base model's config.json.

    Returns {"rank"}. Raises GgufError.
    """
    from safetensors.numpy import save_file

    with GgufFile(path) as file:
        if file.metadata.get("general.type") != "adapter" or file.metadata.get("adapter.type") != "lora":
            raise GgufError("the GGUF file is not a LoRA adapter")
        layout = LAYOUTS.get(str(file.metadata.get("general.architecture")))
        if layout is None:
            name = file.metadata.get("general.architecture")
            raise GgufError(f"GGUF adapters for models of architecture {name!r} cannot be converted")
        if 4 * sum(tensor.rows * tensor.columns for tensor in file.tensors.values()) > _MOST_BYTES:
            raise GgufError("the GGUF file is too large for a LoRA adapter")
        matrices: dict[str, NDArray[np.float32]] = {}
        modules: set[str] = set()
        for tensor in file.tensors.values():
            match = _MATRIX.match(tensor.name)
            module = layout.parts.get(match[2]) if match else None
            if match is None or module is None or len(tensor.shape) != 2:
                raise GgufError(f"the adapter changes {tensor.name!r}, which MLX adapters do not support")
            values = dequantize(tensor.type, file.rows(tensor)).reshape(tensor.shape)
            if not np.isfinite(values).all():
                raise GgufError(f"tensor {tensor.name!r} of the adapter holds values that are not finite")
            if match[3] == "b":
                values = _in_order(values, match[2], layout, config)
            modules.add(module)
            matrices[f"model.layers.{int(match[1])}.{module}.lora_{match[3]}"] = np.ascontiguousarray(values.T)
        alpha = file.metadata.get("adapter.lora.alpha", 0.0)
    rank = _rank(matrices)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise GgufError("the adapter's metadata 'adapter.lora.alpha' has an unusable value")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(matrices, folder / MLX_WEIGHTS)
    settings = {
        "fine_tune_type": "lora",
        "num_layers": config.get("num_hidden_layers", 0),
        # llama.cpp treats an alpha of 0 as unset and does not scale the product.
        "lora_parameters": {"rank": rank, "scale": alpha / rank or 1.0, "dropout": 0.0, "keys": sorted(modules)},
    }
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2))
    return {"rank": rank}


def _rank(matrices: Mapping[str, NDArray[np.float32]]) -> int:
    """The rank that all matrices share."""
    paths = {name.rpartition(".")[0] for name in matrices}
    if not matrices or len(matrices) != 2 * len(paths):
        raise GgufError("the adapter lacks one of the two matrices of a module")
    ranks = {values.shape[1 if name.endswith("a") else 0] for name, values in matrices.items()}
    if len(ranks) != 1:
        raise GgufError("adapters with different ranks per module are not supported")
    (rank,) = ranks
    return int(rank)


def _in_order(values: NDArray[np.float32], part: str, layout: Layout, config: Mapping[str, Any]) -> NDArray[np.float32]:
    """Rows of B in the order of MLX's weights."""
    if not layout.interleaved or part not in ("attn_q", "attn_k"):
        return values
    heads = config.get("num_attention_heads" if part == "attn_q" else "num_key_value_heads")
    if not isinstance(heads, int) or heads < 1 or values.shape[0] % (2 * heads):
        raise GgufError(f"the adapter is for another model: {values.shape[0]} rows of {part} do not fit its heads")
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
