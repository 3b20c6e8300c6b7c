"""Quantizing: a full-precision model folder becomes a quantized one; runs in the worker process.

mlx-lm builds the model lazily: weights are promises until evaluated. Quantizing adds to the promises, so the shape
of every result is known before a byte is read. Then module by module is evaluated, written to its place and
forgotten: memory holds one module's weights, whatever the size of the model. Models with vision or audio are built
by mlx-vlm; their towers keep full precision.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from omlx_registry import mxfp4
from omlx_registry.errors import CreateError, InvalidModel
from omlx_registry.plain_network import plain_network
from omlx_registry.quantize import DType, Recipe, quantization_config, recipe, require_unquantized
from omlx_registry.sanitized_folder import inert_folder, without_inert_folder
from omlx_registry.speech import is_speech
from omlx_registry.weights import Quantization
from omlx_registry.weights_file import MAX_SHARD_BYTES, TensorSlot, WeightsWriter, require_space

Report = Callable[[str, int, int], None]
"""Called with a status, bytes of the source done so far, and in all."""

_SAFETENSORS: Final = {
    mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16", mx.uint32: "U32", mx.uint8: "U8",
}  # fmt: skip
_LEVELS: Final = {mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}
_DTYPES: Final[dict[DType, Any]] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_COPIED: Final = frozenset({".json", ".jinja", ".txt", ".model", ".md", ".tiktoken"})
_ENCODERS: Final = frozenset({"bert", "roberta", "xlm-roberta", "xlm_roberta", "modernbert"})
_NOMIC: Final = "nomic_bert"
"""Its network is the engine's own: no library builds it."""
_CACHE_BYTES: Final = 64 << 20


def quantize_model(
    source: Path, folder: Path, name: str, report: Report, *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> dict[str, Any]:
    """Write the model in `source` to `folder` (made if missing), quantized by the recipe called `name`.

    Returns {"quantization_level", "source_level", "files"}. Raises CreateError with Ollama's sentences when the name is
    unknown or the source is quantized already, InvalidModel when the folder holds no model that can be built.
    """
    with inert_folder(source) as safe:
        return _quantize_folder(safe, folder, recipe(name), report, max_shard_bytes)


def _quantize_folder(
    source: Path, folder: Path, chosen: Recipe, report: Report, max_shard_bytes: int
) -> dict[str, Any]:
    config = _read_config(source)
    if "quantization" in config or "quantization_config" in config:
        require_unquantized("quantized")
    if is_speech(config):
        raise CreateError("speech models are not quantized here: use a repository with quantized weights")
    mx.set_cache_limit(_CACHE_BYTES)
    model = _build(source, config)
    level, original = _level(model)
    status = f"quantizing {level} model to {chosen.label}"
    total = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    report(status, 0, total)

    modules = _quantize(model, chosen, config)
    dtype = _DTYPES[chosen.dtype] if chosen.dtype else mx.bfloat16 if original == mx.float32 else original
    groups = _promises(model, dtype)
    del model  # from here on `groups` alone keeps the weights
    by_hand = {path for path, module in modules.items() if _is_slow(module)}
    slots = [slot for arrays in groups for slot in _slots(arrays, by_hand)]
    folder.mkdir(parents=True, exist_ok=True)
    written, size = 0, sum(slot.nbytes for slot in slots)
    require_space(folder, size)
    with WeightsWriter(folder, slots, max_shard_bytes=max_shard_bytes) as out:
        groups.reverse()
        while groups:
            arrays = groups.pop()
            mx.eval([array for _, array in arrays])
            for tensor, array in arrays:
                for stored, values in _stored(tensor, array, by_hand):
                    out.write(stored, 0, values)
                    written += values.nbytes
            del arrays
            report(status, total * written // size, total)
        files = list(out.files)
    if len(files) > 1:
        files.append("model.safetensors.index.json")
    files += _copy_others(source, folder)
    (folder / "config.json").write_text(json.dumps(_new_config(config, chosen, modules, dtype), indent=2))
    return {"quantization_level": chosen.label, "source_level": level, "files": sorted([*files, "config.json"])}


def _read_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel("the model folder has no readable config.json") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InvalidModel("the model's config.json names no model_type")
    return config


def _build(source: Path, config: dict[str, Any]) -> nn.Module:
    """The model with lazy weights."""
    kind = config["model_type"]
    try:
        if kind in _ENCODERS:
            return _build_encoder(source, config)
        if kind == _NOMIC:
            return plain_network(source, ("word_embeddings", "token_type_embeddings"))
        if config.get("vision_config") or config.get("audio_config"):
            from mlx_vlm.utils import load_model as load_multimodal

            return load_multimodal(source, lazy=True)
        from mlx_lm.utils import load_model

        return load_model(source, lazy=True)[0]
    except Exception as error:  # both libraries raise whatever the model's code raises
        said = without_inert_folder(str(error))
        raise InvalidModel(f"a model of type {kind!r} could not be opened for quantizing: {said}") from error


def _build_encoder(source: Path, config: dict[str, Any]) -> nn.Module:
    if any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or []):
        from mlx_vlm.reranker_loader import load_sequence_classification_model

        return load_sequence_classification_model(source, lazy=True)
    from mlx_vlm.embedding_loader import load_embedding_model

    return load_embedding_model(source, lazy=True)


def _level(model: nn.Module) -> tuple[str, Any]:
    """The type most of the weights have, by Ollama's name and MLX's. Raises Ollama's error for anything quantized."""
    sizes: Counter[Any] = Counter()
    for _, array in tree_flatten(model.parameters()):
        sizes[array.dtype] += array.nbytes
    if not sizes:
        raise InvalidModel("the model has no weights")
    dtype = sizes.most_common(1)[0][0]
    require_unquantized(_LEVELS.get(dtype, str(dtype)))
    return _LEVELS[dtype], dtype


def _quantize(model: nn.Module, chosen: Recipe, config: dict[str, Any]) -> dict[str, Quantization]:
    """Quantize lazily; returns what each quantized module got. The model's own exceptions (routers) are honoured."""
    base = chosen.quantization
    if base is None:
        return {}
    text = config.get("text_config") or {}
    layers = int(text.get("num_hidden_layers") or config.get("num_hidden_layers") or 0)
    tied = not any("lm_head" in path for path, _ in model.named_modules())
    wishes = getattr(model, "quant_predicate", None)
    modules: dict[str, Quantization] = {}

    def decide(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(module, "to_quantized") or _is_tower(path, config):
            return False
        wish = wishes(path, module) if callable(wishes) else True
        if isinstance(wish, dict):
            picked: Quantization | None = Quantization(wish["group_size"], wish["bits"], wish.get("mode", "affine"))
        else:
            picked = chosen.for_module(path, module.weight.shape[-1], layers=layers, tied=tied) if wish else None
        if picked is None or module.weight.shape[-1] % picked.group_size:
            return False
        modules[path] = picked
        # What MLX does slowly is done when the weight is written.
        return False if _is_slow(picked) else picked.as_config()

    nn.quantize(model, base.group_size, base.bits, mode=base.mode, class_predicate=decide)
    return modules


def _is_slow(quantization: Quantization) -> bool:
    return quantization.mode == "mxfp4" and bool(mx.default_device() == mx.cpu)


def _is_tower(path: str, config: dict[str, Any]) -> bool:
    if not (config.get("vision_config") or config.get("audio_config")):
        return False
    from mlx_vlm.utils import skip_multimodal_module

    return bool(skip_multimodal_module(path) or "visual" in path)


def _promises(model: nn.Module, dtype: Any) -> list[list[tuple[str, Any]]]:
    """All parameters, unevaluated and cast, grouped by module: weight, scales and biases come of one computation."""
    groups: dict[str, list[tuple[str, Any]]] = {}
    for name, array in tree_flatten(model.parameters()):
        cast = array.astype(dtype) if array.dtype in _LEVELS else array
        groups.setdefault(name.rpartition(".")[0], []).append((name, cast))
    return list(groups.values())


def _slots(arrays: list[tuple[str, Any]], by_hand: set[str]) -> list[TensorSlot]:
    slots = []
    for name, array in arrays:
        if array.dtype not in _SAFETENSORS:
            raise CreateError(f"the model's tensor {name!r} has the type {array.dtype}, which cannot be stored", 500)
        shape = tuple(array.shape)
        if _by_hand(name, by_hand):
            slots.append(TensorSlot(name, "U32", (*shape[:-1], shape[-1] // 8)))
            slots.append(TensorSlot(_scales(name), "U8", (*shape[:-1], shape[-1] // mxfp4.GROUP)))
        else:
            slots.append(TensorSlot(name, _SAFETENSORS[array.dtype], shape))
    return slots


def _stored(name: str, array: Any, by_hand: set[str]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors that a parameter is stored as, evaluated."""
    if not _by_hand(name, by_hand):
        yield name, _bytes(array)
        return
    weights, scales = mxfp4.quantize(np.array(array.astype(mx.float32), copy=False))
    yield name, weights
    yield _scales(name), scales


def _by_hand(name: str, by_hand: set[str]) -> bool:
    path, _, leaf = name.rpartition(".")
    return leaf == "weight" and path in by_hand


def _scales(name: str) -> str:
    return f"{name.removesuffix('weight')}scales"


def _bytes(array: Any) -> NDArray[Any]:
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)


def _copy_others(source: Path, folder: Path) -> list[str]:
    """Tokenizer, templates, processor: small files at the top, never code and never another index."""
    names = []
    for file in sorted(source.iterdir()):
        if file.name in ("config.json", "model.safetensors.index.json") or file.suffix not in _COPIED:
            continue
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
            names.append(file.name)
    # What sentence-transformers put behind the network: `1_Pooling`, and `2_Dense` with weights of its own.
    for file in sorted([*source.glob("[0-9]*_*/config.json"), *source.glob("[0-9]*_*/model.safetensors")]):
        name = file.relative_to(source).as_posix()
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(file, folder / name)
        names.append(name)
    return names


def _new_config(config: dict[str, Any], chosen: Recipe, modules: dict[str, Quantization], dtype: Any) -> dict[str, Any]:
    new = dict(config)
    name = next(name for name, value in _DTYPES.items() if value == dtype)
    for key in ("torch_dtype", "dtype"):
        if key in new:
            new[key] = name
    if chosen.quantization is not None:
        quantization = quantization_config(chosen.quantization, modules)
        new |= {"quantization": quantization, "quantization_config": quantization}
    return new
