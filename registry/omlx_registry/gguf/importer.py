"""GGUF import: one GGUF file becomes an MLX model folder that mlx-lm opens; runs in the worker process.

How the weights are stored is the job's choice (`weights`):

- "keep" (default): the file's own precision. Quantized tensors keep their codes as MLX affine groups of 32 or as mxfp4
  (see `tensors` for what is exact); tensors of different width sit side by side, which config.json says per module.
  Measured on SmolLM2-135M Q4_1 (98 MB): 98 MB kept, with no error at all; 269 MB as float16, 538 MB as float32.
- "float32", "float16", "bfloat16" or f32, f16, bf16: everything dequantized.
- any other recipe of `quantize`: everything dequantized and quantized anew.

Scales, biases, norms and whatever is not quantized share one 16-bit type, so that activations stay 16 bits wide on a
GPU: float16, which ggml's own scales are, or bfloat16 where activations outgrow float16 (Gemma) and where the file
says so. Memory stays bounded: rows are converted in pieces of some megabytes and go straight to their place on disk.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.gguf.container import TENSOR_TYPES, GgufError, GgufFile
from omlx_registry.gguf.encoder_layouts import pooling_files
from omlx_registry.gguf.models import ModelPlan, Weight, plan_model
from omlx_registry.gguf.split import open_gguf
from omlx_registry.gguf.tensors import (
    DENSE,
    GROUP,
    MXFP4_TYPES,
    SAFETENSORS_DTYPE,
    dequantize,
    keeps_codes,
    kept_quantization,
    mxfp4,
    pack,
    to_dtype,
    unpack,
)
from omlx_registry.gguf.tokenizer import TokenizerFiles, build_tokenizer
from omlx_registry.mxfp4 import quantize as quantize_mxfp4
from omlx_registry.quantize import DType, Recipe, quantization_config, recipe
from omlx_registry.weights import Quantization
from omlx_registry.weights_file import MAX_SHARD_BYTES, TensorSlot, WeightsWriter, require_space

PIECE_WEIGHTS: Final = 4 << 20
"""Weights converted at a time: 16 MB as float32, a few times that with all intermediate arrays."""

KEEP: Final = "keep"

_ROUTERS: Final = ("mlp.gate", "mlp.router", "router.layer", "shared_expert_gate")
"""They are small and choose: they keep their precision."""

Report = Callable[[int, int], None]
"""Called with the bytes of the file converted so far and in all."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How one weight is stored: quantized, with the file's codes (`keeps_codes`) or new ones, or dense; in `dtype`."""

    weight: Weight
    dtype: DType
    quantization: Quantization | None = None
    keeps_codes: bool = False

    def slots(self) -> list[TensorSlot]:
        shape, dtype = self.weight.shape, SAFETENSORS_DTYPE[self.dtype]
        if self.quantization is None:
            return [TensorSlot(self.weight.name, dtype, shape)]
        groups = (*shape[:-1], shape[-1] // self.quantization.group_size)
        affine = self.quantization.mode == "affine"
        slots = [
            TensorSlot(f"{self.weight.path}.weight", "U32", (*shape[:-1], shape[-1] * self.quantization.bits // 32)),
            TensorSlot(f"{self.weight.path}.scales", dtype if affine else "U8", groups),
        ]
        return [*slots, TensorSlot(f"{self.weight.path}.biases", dtype, groups)] if affine else slots

    def describe(self) -> str:
        """What becomes of the tensor, for the user: "Q6_K → 8 bits in groups of 32, quantized anew"."""
        kind, quantization = self.weight.tensor.type, self.quantization
        if quantization is None:
            return f"{kind} → {self.dtype}"
        form = "mxfp4" if quantization.mode == "mxfp4" else f"{quantization.bits} bits in groups of "
        form += "" if quantization.mode == "mxfp4" else str(quantization.group_size)
        return f"{kind} → {form}, {'codes kept' if self.keeps_codes else 'quantized anew'}"


def import_gguf(
    path: Path, folder: Path, weights: str, report: Report, *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> dict[str, Any]:
    """Convert the file at `path` into `folder` (made if missing) and describe the model.

    Returns what `inspect_gguf` does, and the "files" of the folder. Raises GgufError; what `folder` then holds is for
    the caller to remove.
    """
    with open_gguf(path) as file:
        tokenizer, plan = _read(file)
        storages = plan_storage(plan, weights)
        folder.mkdir(parents=True, exist_ok=True)
        slots = [slot for storage in storages for slot in storage.slots()]
        require_space(folder, sum(slot.nbytes for slot in slots))
        with WeightsWriter(folder, slots, max_shard_bytes=max_shard_bytes) as out:
            _convert(file, storages, out, report)
            names = out.files
        config = plan.config | _stored_config(storages)
        names += _write_json(folder, config, tokenizer, pooling_files(file.metadata, plan.architecture))
        if len(out.files) > 1:
            names.append("model.safetensors.index.json")
        return _description(file, plan, storages, weights) | {"files": sorted(names)}


def inspect_gguf(path: Path, weights: str = KEEP) -> dict[str, Any]:
    """What `import_gguf` would make of the file; reads its header only.

    Returns {"architecture", "parameter_count", "quantization_level", "context_length", "embedding_length", "name",
    "license", "bytes", "tensors", "notes"}: `bytes` of the converted weights, of each tensor a line for the user.
    Raises GgufError.
    """
    with open_gguf(path) as file:
        _, plan = _read(file)
        return _description(file, plan, plan_storage(plan, weights), weights)


def _read(file: GgufFile) -> tuple[TokenizerFiles, ModelPlan]:
    tokenizer = build_tokenizer(file.metadata)

    def rope_factors(name: str) -> NDArray[np.float32] | None:
        tensor = file.tensors.get(name)
        return None if tensor is None else dequantize(tensor.type, file.rows(tensor)).reshape(-1)

    plan = plan_model(file.metadata, file.tensors, rope_factors, tokenizer.eos)
    if len(file.metadata["tokenizer.ggml.tokens"]) > plan.config["vocab_size"]:
        raise GgufError("the GGUF file's vocabulary has more tokens than its embedding has rows")
    return tokenizer, plan


def _description(file: GgufFile, plan: ModelPlan, storages: list[Storage], weights: str) -> dict[str, Any]:
    return {
        "architecture": plan.architecture,
        "parameter_count": sum(math.prod(weight.shape) for weight in plan.weights),
        "quantization_level": quantization_level(file, plan) if weights == KEEP else recipe(weights).label,
        "context_length": plan.config["max_position_embeddings"],
        "embedding_length": plan.config["hidden_size"],
        "name": _text(file, "general.name"),
        "license": _text(file, "general.license"),
        "bytes": sum(slot.nbytes for storage in storages for slot in storage.slots()),
        "tensors": [f"{storage.weight.tensor.name}: {storage.describe()}" for storage in storages],
        "notes": list(plan.notes),
    }


def _text(file: GgufFile, key: str) -> str:
    value = file.metadata.get(key, "")
    return value if isinstance(value, str) else ""


def quantization_level(file: GgufFile, plan: ModelPlan) -> str:
    """The file's own name for its precision (Q4_K_M), or else the type that most of its weights have."""
    from gguf import LlamaFileType

    declared = file.metadata.get("general.file_type")
    if isinstance(declared, int):
        try:
            name: str = LlamaFileType(declared).name
            return name.removeprefix("MOSTLY_").removeprefix("ALL_")
        except ValueError:
            pass
    weights: Counter[str] = Counter()
    for weight in plan.weights:
        weights[weight.tensor.type] += weight.tensor.nbytes
    return weights.most_common(1)[0][0]


def plan_storage(plan: ModelPlan, weights: str) -> list[Storage]:
    """Decide for every weight how it is stored; raises GgufError (CreateError) for an unknown choice."""
    chosen = None if weights == KEEP else recipe(weights)
    dtype = _common_dtype(plan, chosen)
    layers, tied = plan.config["num_hidden_layers"], plan.config["tie_word_embeddings"]
    storages = []
    for weight in plan.weights:
        tensor = weight.tensor
        if weight.undo is not None:
            storages.append(Storage(weight, "float32"))
        elif not weight.is_matrix or (weight.path.endswith(_ROUTERS) and chosen is not None):
            storages.append(Storage(weight, dtype))
        elif chosen is None:
            quantization = kept_quantization(tensor.type)
            storages.append(Storage(weight, dtype, quantization, keeps_codes(tensor.type) and _runs_of_groups(weight)))
        else:
            quantization = chosen.for_module(weight.path, tensor.columns, layers=layers, tied=tied)
            storages.append(Storage(weight, dtype, quantization))
    return storages


def _runs_of_groups(weight: Weight) -> bool:
    """Whether columns in another order leave groups whole; MXFP4's are not put in order as codes."""
    order = weight.columns
    if order is None:
        return True
    runs = order.reshape(-1, GROUP) if len(order) % GROUP == 0 else order[:, None]
    whole = bool((runs[:, :1] + np.arange(runs.shape[1]) == runs).all() and (runs[:, 0] % GROUP == 0).all())
    return whole and len(order) % GROUP == 0 and weight.tensor.type not in MXFP4_TYPES


def _common_dtype(plan: ModelPlan, chosen: Recipe | None) -> DType:
    if chosen is not None and chosen.dtype is not None:
        return chosen.dtype
    sizes: Counter[DType] = Counter()
    for weight in plan.weights:
        if len(weight.tensor.shape) > 1:
            sizes[DENSE.get(weight.tensor.type, "float16")] += weight.tensor.nbytes
    dtype = sizes.most_common(1)[0][0]
    if chosen is not None and dtype == "float32":
        dtype = "bfloat16"
    return "bfloat16" if plan.wide_range and dtype == "float16" else dtype


def _stored_config(storages: list[Storage]) -> dict[str, Any]:
    modules = {s.weight.path: s.quantization for s in storages if s.quantization is not None}
    config: dict[str, Any] = {"torch_dtype": Counter(s.dtype for s in storages).most_common(1)[0][0]}
    if modules:
        sizes: Counter[Quantization] = Counter()
        for storage in storages:
            if storage.quantization is not None:
                sizes[storage.quantization] += storage.weight.tensor.nbytes
        quantization = quantization_config(sizes.most_common(1)[0][0], modules)
        config |= {"quantization": quantization, "quantization_config": quantization}
    return config


def _write_json(
    folder: Path, config: dict[str, Any], tokenizer: TokenizerFiles, plan_files: Mapping[str, str]
) -> list[str]:
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    texts = {
        "config.json": json.dumps(config, indent=2),
        "generation_config.json": json.dumps(generation, indent=2),
        "tokenizer.json": tokenizer.tokenizer_json,
        "tokenizer_config.json": json.dumps(tokenizer.tokenizer_config, indent=2, ensure_ascii=False),
    }
    texts |= plan_files
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return list(texts)


def _convert(file: GgufFile, storages: list[Storage], out: WeightsWriter, report: Report) -> None:
    total = sum({storage.weight.tensor.name: storage.weight.tensor.nbytes for storage in storages}.values())
    done = 0
    report(0, total)
    for storage in storages:
        tensor = storage.weight.tensor
        at: Counter[str] = Counter()
        for slot in storage.slots() if storage.weight.zero_rows else ():
            at[slot.name] = slot.nbytes // slot.shape[0] * storage.weight.zero_rows  # what is not written is zero
        for raw in _pieces(file, storage.weight):
            for name, values in _encode(storage, raw):
                out.write(name, at[name], values)
                at[name] += values.nbytes
            done += raw.nbytes
            report(done, total)
        for slot in storage.slots():
            if at[slot.name] != slot.nbytes:
                raise GgufError(f"tensor {tensor.name!r} of {file.name} could not be converted to {slot.shape}")


def _pieces(file: GgufFile, weight: Weight) -> Iterator[NDArray[np.uint8]]:
    """Raw rows in the order of the result, some megabytes at a time. A vector with an order is rows of one value."""
    tensor, order = weight.tensor, weight.row_order()
    if order is not None and weight.by_value:
        item = TENSOR_TYPES[tensor.type_code][2]
        yield file.rows(tensor).reshape(-1, item)[order].reshape(1, -1)
        return
    step = max(1, PIECE_WEIGHTS // tensor.columns)
    for start in range(0, tensor.rows if order is None else len(order), step):
        index = slice(start, start + step)
        yield file.rows(tensor, index if order is None else order[index])


def _encode(storage: Storage, raw: NDArray[np.uint8]) -> Iterator[tuple[str, NDArray[Any]]]:
    weight, quantization = storage.weight, storage.quantization
    tensor = weight.tensor
    if quantization is not None and storage.keeps_codes:
        # Columns in another order come in runs of whole groups, which `plan_storage` has made sure of.
        if quantization.mode == "mxfp4":
            packed, exponents = mxfp4(tensor.type, raw)
            yield f"{weight.path}.weight", packed
            yield f"{weight.path}.scales", exponents
            return
        codes, scales, biases = unpack(tensor.type, raw, TENSOR_TYPES[tensor.type_code][2])
        if weight.columns is not None:
            groups = weight.columns[::GROUP] // GROUP
            codes, scales, biases = codes[:, weight.columns], scales[:, groups], biases[:, groups]
        yield f"{weight.path}.weight", pack(codes, quantization.bits)
        yield f"{weight.path}.scales", to_dtype(scales, storage.dtype)
        yield f"{weight.path}.biases", to_dtype(biases, storage.dtype)
        return
    with np.errstate(all="ignore"):  # damage is looked for below
        values = dequantize(tensor.type, raw)
        if weight.shift:
            values = values + np.float32(weight.shift)
        if weight.columns is not None:
            values = values[:, weight.columns]
        if weight.undo is not None:
            values = weight.undo(values)
    if not np.isfinite(values).all():
        raise GgufError(f"tensor {tensor.name!r} of the GGUF file holds values that are not finite")
    if quantization is None:
        yield weight.name, to_dtype(values, storage.dtype)
    else:
        yield from _quantize_anew(storage, quantization, values)


def _quantize_anew(
    storage: Storage, quantization: Quantization, values: NDArray[np.float32]
) -> Iterator[tuple[str, NDArray[Any]]]:
    import mlx.core as mx

    if quantization.mode == "mxfp4" and mx.default_device() == mx.cpu:  # MLX does it slowly there
        weights, scales = quantize_mxfp4(values.reshape(-1, values.shape[-1]))
        yield f"{storage.weight.path}.weight", weights
        yield f"{storage.weight.path}.scales", scales
        return
    parts = mx.quantize(
        mx.array(values), group_size=quantization.group_size, bits=quantization.bits, mode=quantization.mode
    )
    for leaf, part in zip(("weight", "scales", "biases"), parts, strict=False):
        array = np.array(part)
        if array.dtype == np.float32:
            array = to_dtype(array, storage.dtype)
        yield f"{storage.weight.path}.{leaf}", array
