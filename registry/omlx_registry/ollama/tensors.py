"""Tensor layers: the weights of Ollama's MLX models, a safetensors file for each tensor, become mlx-lm's files.

A quantized tensor `X.weight` has the tensors `X.weight.scale` and `X.weight.bias`, which mlx-lm calls `X.scales` and
`X.biases`. The file's metadata states the quantization; mlx-lm reads it from config.json. Only names change, never
values. Files without a changed name are shared with `link`. Runs in the worker.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from omlx_registry.errors import InvalidModel
from omlx_registry.model_json import decode_object
from omlx_registry.quantize import GROUP_SIZES, quantization_config
from omlx_registry.weights import Quantization, read_header
from omlx_registry.weights_file import ITEM_BYTES, TensorSlot, WeightsWriter, require_space

_MODES: Final = {"int4": (4, "affine"), "int8": (8, "affine"), "mxfp4": (4, "mxfp4"), "mxfp8": (8, "mxfp8"),
                 "nvfp4": (4, "nvfp4")}  # fmt: skip
_RENAMED: Final = {".weight.scale": ".scales", ".weight.bias": ".biases"}
_DRAFT: Final = "draft."
_PIECE: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class _TensorSource:
    """One tensor in its file; `begin` is the offset of its first byte."""

    path: Path
    slot: TensorSlot
    begin: int


def import_tensors(
    blobs: list[str], files: Mapping[str, str], folder: Path, report: Callable[[int, int], None], *, link: bool
) -> dict[str, Any]:
    """Assemble a model in `folder`: tensors of the safetensors files `blobs`, and `files` (name → path).

    Returns {"shared", "notes"}: bytes that are shared with Ollama's files. Raises InvalidModel.
    """
    folder.mkdir(parents=True, exist_ok=True)
    modules: dict[str, Quantization] = {}
    copied: list[_TensorSource] = []
    linked: list[Path] = []
    drafts = 0
    for blob in map(Path, blobs):
        sources, quantized, renamed = _read(blob)
        kept = [source for source in sources if not source.slot.name.startswith(_DRAFT)]
        drafts += len(sources) - len(kept)
        modules |= {path: kind for path, kind in quantized.items() if not path.startswith(_DRAFT)}
        if link and kept and not renamed and len(kept) == len(sources):
            linked.append(blob)
        else:
            copied += kept
    names = [source.slot.name for source in copied]
    if len(set(names)) != len(names):
        raise InvalidModel("its manifest is damaged: two layers hold a tensor of the same name")
    shared = _link(linked, folder)
    _copy(copied, folder, bool(linked), report)
    _write_files(files, folder, modules)
    notes = ["its draft model is left out"] if drafts else []
    return {"shared": shared, "notes": notes}


def _read(path: Path) -> tuple[list[_TensorSource], dict[str, Quantization], bool]:
    """The tensors of a file under mlx-lm's names, how its modules are quantized, and whether a name changed."""
    tensors = {tensor.name: tensor for tensor in read_header(path, "a tensor of the model")}
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = msgspec.json.decode(file.read(length), type=dict[str, Any])
    metadata = header.get("__metadata__") or {}
    sources, modules, renamed = [], {}, False
    for name, tensor in tensors.items():
        if tensor.dtype not in ITEM_BYTES:
            raise InvalidModel(f"tensor {name[:200]!r} is of type {tensor.dtype}, which the import does not support")
        ending = next((ending for ending in _RENAMED if name.endswith(ending)), "")
        if ending:
            renamed = True
            module = name.removesuffix(ending)
            if ending == ".weight.scale":
                modules[module] = _quantization(f"{module}.weight", metadata)
            renamed_to = module + _RENAMED[ending]
        else:
            renamed_to = name
        slot = TensorSlot(renamed_to, tensor.dtype, tensor.shape)
        sources.append(_TensorSource(path, slot, 8 + length + header[name]["data_offsets"][0]))
    return sources, modules, renamed


def _quantization(name: str, metadata: Mapping[str, Any]) -> Quantization:
    kind = str(metadata.get(f"{name}.quant_type") or metadata.get("quant_type") or "")
    if kind.lower() not in _MODES:
        raise InvalidModel(f"tensor {name[:200]!r} is quantized as {kind[:50]!r}, which oMLX does not support")
    bits, mode = _MODES[kind.lower()]
    size = str(metadata.get(f"{name}.group_size") or metadata.get("group_size") or GROUP_SIZES[mode])
    if size not in {"16", "32", "64", "128"}:
        raise InvalidModel(f"tensor {name[:200]!r} is quantized in groups of {size[:20]!r}, which is not supported")
    return Quantization(int(size), bits, mode)


def _link(paths: list[Path], folder: Path) -> int:
    """Hard-link the files, or copy them where that fails; returns the bytes that are shared."""
    shared = 0
    for number, path in enumerate(paths, 1):
        target = folder / f"model-shared-{number:05d}-of-{len(paths):05d}.safetensors"
        try:
            os.link(path.resolve(), target)
            shared += path.stat().st_size
        except OSError:  # another file system, or files of another user
            shutil.copyfile(path, target)
    return shared


def _copy(sources: list[_TensorSource], folder: Path, beside_others: bool, report: Callable[[int, int], None]) -> None:
    total = sum(source.slot.nbytes for source in sources)
    if not sources:
        return
    require_space(folder, total)
    done = 0
    report(0, total)
    with WeightsWriter(folder, [source.slot for source in sources]) as out:
        for source in sources:
            with source.path.open("rb") as file:
                file.seek(source.begin)
                offset = 0
                while offset < source.slot.nbytes:
                    data = file.read(min(_PIECE, source.slot.nbytes - offset))
                    if not data:
                        raise InvalidModel("a tensor of the model is truncated")
                    out.write(source.slot.name, offset, np.frombuffer(data, np.uint8))
                    offset += len(data)
            done += source.slot.nbytes
            report(done, total)
    if beside_others:
        # The index would list only some of the files; mlx-lm takes all `model*.safetensors` without one.
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)


def _write_files(files: Mapping[str, str], folder: Path, modules: Mapping[str, Quantization]) -> None:
    for name, path in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    config_path = folder / "config.json"
    if modules and config_path.is_file():
        config = decode_object(config_path.read_bytes(), "config.json")
        kinds = list(modules.values())
        quantization = quantization_config(max(set(kinds), key=kinds.count), modules)
        config |= {"quantization": quantization, "quantization_config": quantization}
        config_path.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
