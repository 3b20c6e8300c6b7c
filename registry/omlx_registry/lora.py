"""LoRA adapters: small trained changes to a model, as mlx-lm's two files (adapter_config.json, adapters.safetensors).

MLX's own adapters are taken as they are. PEFT's (`adapter_model.safetensors`) hold the same two matrices per module
under other names and transposed; they are rewritten. What cannot be expressed (DoRA, adapted embeddings, replaced
modules, several ranks) is refused with the reason: an adapter that is applied in part would be wrong silently.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.blobs import BlobStore
from omlx_registry.errors import CreateError
from omlx_registry.manifest import ADAPTER, Layer
from omlx_registry.weights import TensorHeader, read_header

CONFIG_FILE: Final = "adapter_config.json"
MLX_WEIGHTS: Final = "adapters.safetensors"
_PEFT_KEY: Final = re.compile(r"(?:base_model\.model\.)?(.+\.layers\.\d+\.(.+))\.lora_([AB])(?:\.default)?\.weight")
_WIDTHS: Final = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}


class LoraPlan(msgspec.Struct, frozen=True):
    """How a PEFT adapter becomes an MLX one: the new configuration, and for each new tensor the old to transpose."""

    config: dict[str, Any]
    tensors: dict[str, TensorHeader]


def adapter_layers(blobs: BlobStore, files: Mapping[str, str], block_count: int) -> list[Layer]:
    """Layers of an adapter given as blobs (file name → digest). `block_count`: layers of the base model.

    Raises CreateError. Blocking: it may rewrite the adapter's weights.
    """
    by_name = {name.rsplit("/", 1)[-1]: digest for name, digest in files.items()}
    weights = [name for name in by_name if name.endswith(".safetensors")]
    if any(name.endswith(".gguf") for name in by_name):
        raise CreateError("GGUF adapters are not supported: use the adapter's safetensors files")
    if not weights:
        raise CreateError("no safetensors adapter was provided")
    if len(weights) > 1 and MLX_WEIGHTS not in weights:
        raise CreateError("only one adapter is currently supported")
    if CONFIG_FILE not in by_name:
        raise CreateError(f"{CONFIG_FILE} is missing beside the adapter's weights")
    source = blobs.path(by_name[MLX_WEIGHTS if MLX_WEIGHTS in weights else weights[0]])
    config = _read_config(blobs.path(by_name[CONFIG_FILE]))
    tensors = read_header(source)
    if "peft_type" in config or any(".lora_A" in tensor.name for tensor in tensors):
        plan = plan_conversion(config, tensors, block_count)
        return [
            _put(blobs, CONFIG_FILE, msgspec.json.format(msgspec.json.encode(plan.config), indent=2)),
            _convert(blobs, source, plan),
        ]
    if "lora_parameters" not in config or "num_layers" not in config:
        raise CreateError(f"{CONFIG_FILE} is neither PEFT's (peft_type) nor mlx-lm's (lora_parameters, num_layers)")
    return [
        _layer(blobs, CONFIG_FILE, by_name[CONFIG_FILE]),
        _layer(blobs, MLX_WEIGHTS, by_name[MLX_WEIGHTS if MLX_WEIGHTS in weights else weights[0]]),
    ]


def plan_conversion(config: Mapping[str, Any], tensors: list[TensorHeader], block_count: int) -> LoraPlan:
    """Decide how a PEFT adapter maps onto MLX. Pure. Raises CreateError where it does not."""
    kind = str(config.get("peft_type", "LORA")).upper()
    if kind != "LORA" or config.get("use_dora"):
        raise CreateError(f"adapters of type {'DoRA' if config.get('use_dora') else kind} are not supported, only LoRA")
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        raise CreateError("adapters with different ranks per module are not supported")
    renamed: dict[str, TensorHeader] = {}
    modules: set[str] = set()
    ranks: set[int] = set()
    for tensor in tensors:
        match = _PEFT_KEY.fullmatch(tensor.name)
        if match is None or len(tensor.shape) != 2 or tensor.dtype not in _WIDTHS:
            raise CreateError(f"the adapter changes {tensor.name}, which MLX adapters cannot: it was not applied")
        path, module, side = match.groups()
        renamed[f"{path}.lora_{side.lower()}"] = tensor
        modules.add(module)
        ranks.add(tensor.shape[0] if side == "A" else tensor.shape[1])
    paths = {name.rpartition(".")[0] for name in renamed}
    if not renamed or len(renamed) != 2 * len(paths):
        raise CreateError("the adapter lacks one of the two matrices of a module")
    if len(ranks) != 1:
        raise CreateError("adapters with different ranks per module are not supported")
    (rank,) = ranks
    alpha = config.get("lora_alpha", rank)
    if not isinstance(alpha, int | float):
        raise CreateError(f"lora_alpha in {CONFIG_FILE} is no number")
    scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LoraPlan(
        {
            "fine_tune_type": "lora",
            "num_layers": block_count,
            "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": sorted(modules)},
        },
        renamed,
    )


def _convert(blobs: BlobStore, source: Path, plan: LoraPlan) -> Layer:
    """Write the adapter's weights anew, transposed; one tensor in memory at a time."""
    import numpy as np

    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in plan.tensors.items():
        size = math.prod(tensor.shape) * _WIDTHS[tensor.dtype]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape[::-1], "data_offsets": (offset, offset + size)}
        offset += size
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    with source.open("rb") as file, blobs.writer() as writer:
        (length,) = struct.unpack("<Q", file.read(8))
        positions = msgspec.json.decode(file.read(length), type=dict[str, Any])
        writer.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in plan.tensors.values():
            start, end = positions[tensor.name]["data_offsets"]
            file.seek(8 + length + start)
            matrix = np.frombuffer(file.read(end - start), dtype=f"<u{_WIDTHS[tensor.dtype]}").reshape(tensor.shape)
            writer.write(np.ascontiguousarray(matrix.T).tobytes())
    return Layer(ADAPTER, writer.digest, writer.size, name=MLX_WEIGHTS)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CreateError(f"{CONFIG_FILE} is no JSON object: {error}") from error


def _put(blobs: BlobStore, name: str, data: bytes) -> Layer:
    placed = blobs.put_bytes(data)
    return Layer(ADAPTER, placed.digest, placed.size, name=name)


def _layer(blobs: BlobStore, name: str, digest: str) -> Layer:
    return Layer(ADAPTER, digest, blobs.size(digest) or 0, name=name)
