"""Model folders for tests of the registry: small files that look like a model, written without MLX."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "U8": 1, "I32": 4, "I64": 8}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 16,
    "tie_word_embeddings": True,
}
_SQUARE = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
    "mlp.down_proj",
)  # fmt: skip
TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("F32", (16, 8)),
    "model.norm.weight": ("F32", (8,)),
    **{
        f"model.layers.{layer}.{part}.weight": ("F32", (8, 8) if part in _SQUARE else (8,))
        for layer in range(2)
        for part in (*_SQUARE, "input_layernorm", "post_attention_layernorm")
    },
}
"""Of a model that mlx-lm loads."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], fill: int = 0) -> Path:
    """A safetensors file of these tensors (dtype, shape), every byte `fill`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in tensors.items():
        size = WIDTHS[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes([fill]) * offset)
    return path


def make_folder(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    template: str | None = TEMPLATE,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
    fill: int = 0,
) -> Path:
    """A folder with configuration, tokenizer, template and one weights file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(CONFIG if config is None else config)))
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"content": "<s>"}]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
    write_safetensors(folder / "model.safetensors", tensors or TENSORS, fill)
    return folder


def files_below(root: Path) -> set[str]:
    """Every file of a store but its locks and the memory of listings, as relative paths."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.suffix not in {".lock", ".msgpack"}
    }


def blobs_in(root: Path) -> set[str]:
    return {path.name for path in (root / "blobs").glob("*")} if (root / "blobs").is_dir() else set()
