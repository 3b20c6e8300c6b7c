"""Plans: what a GGUF file's metadata and tensor names mean as an MLX model; pure, reads no weights.

`plan_model` turns the metadata into the config.json mlx-lm expects and says for every tensor which MLX parameter it
becomes and how; what differs between architectures stands in `layouts`. For all of them:

- no `output.weight` means the embedding is also the output layer.
- Llama 3.1's rope scaling is only there as a tensor of factors; its parameters are found again from the factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.encoders import encodes, without_encoder
from omlx_registry.gguf.keys import GgufKeys, shortest
from omlx_registry.gguf.layout import ZERO_ROWS, Layout
from omlx_registry.gguf.layouts import LAYOUTS, SUPPORTED
from omlx_registry.gguf.picks import Indices, TensorPick

RopeFactors = Callable[[str], "NDArray[np.float32] | None"]
"""Reads one of the small factor tensors by name; None when the file has none."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor's place in the MLX model.

    `heads` > 0: its rows are interleaved per head, to be put back; `shift` is added to every value; `shape` is the
    result's where it differs from the tensor's. `pick`: its rows, of a tensor that holds several;
    `zero_rows`: so many are put before the tensor's. `columns`: for each of the result's the tensor's. `undo`: as in
    `Layout`.
    """

    tensor: GgufTensor
    path: str  # module path, as in config.json's "quantization": "model.layers.0.self_attn.q_proj"
    leaf: str  # "weight" or "bias"; "" where the path is the parameter
    shape: tuple[int, ...]
    heads: int = 0
    shift: float = 0.0
    pick: TensorPick | None = None
    zero_rows: int = 0
    columns: Indices | None = None
    undo: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None

    @property
    def name(self) -> str:
        return f"{self.path}.{self.leaf}" if self.leaf else self.path

    @property
    def is_matrix(self) -> bool:
        """It may be quantized: biases, norms and kernels of convolutions may not."""
        whole = len(self.shape) == len(self.tensor.shape)
        return self.leaf == "weight" and len(self.tensor.shape) > 1 and whole and not self.zero_rows

    @property
    def by_value(self) -> bool:
        """What is ordered or picked are values, not rows: of a vector, or a bias of several experts."""
        return self.leaf == "bias" or len(self.tensor.shape) == 1

    def row_order(self) -> NDArray[np.int64] | None:
        """For each row of the result the row of the file it comes from; None: in order."""
        if self.pick is not None:
            return self.pick.rows(self.tensor.shape, self.by_value)
        if not self.heads:
            return None
        count = math.prod(self.tensor.shape) if self.by_value else self.tensor.rows
        order: NDArray[np.int64] = np.arange(count).reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)
        return order


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What a GGUF file becomes: architecture, config.json without quantization, all weights in file order."""

    architecture: str
    config: dict[str, Any]
    weights: tuple[Weight, ...]
    wide_range: bool
    """Its activations exceed float16's range, so 16-bit weights must be bfloat16."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what of the file is left out."""


_NOT_WEIGHTS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def plan_model(
    metadata: Mapping[str, Any], tensors: Mapping[str, GgufTensor], rope_factors: RopeFactors, eos: list[int]
) -> ModelPlan:
    """Config and weights of a GGUF file. Raises GgufError for an architecture or a layout that is not supported."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise GgufError("the GGUF file does not name its architecture")
    if metadata.get("general.type", "model") != "model":
        raise GgufError(f"the GGUF file holds no model but {str(metadata['general.type'])!r}")
    layout = LAYOUTS.get(architecture)
    if layout is None:
        raise GgufError(
            f"GGUF files of architecture {architecture!r} cannot be imported; supported are {', '.join(SUPPORTED)}"
        )
    if metadata.get("split.count", 0) > 1:
        raise GgufError("the GGUF file is one part of several; join them first with `llama-gguf-split --merge`")
    keys = GgufKeys(metadata, architecture)
    if keys.get("expert_count") and not layout.experts:
        raise GgufError(f"mixture-of-experts GGUF files of architecture {architecture!r} cannot be imported")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError("the GGUF file lacks the tensor 'token_embd.weight'")

    config = _base_config(keys, embedding, tied="output.weight" not in tensors, layout=layout)
    drafts = _draft_layers(keys, config)
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(drafts)}
    config["model_type"] = layout.model_type
    config |= layout.settings(keys, config, tensors)
    by_kind = config.get("rope_parameters", {}).get("full_attention")
    scaling = None if by_kind else _rope_scaling(architecture, keys, config, rope_factors)
    if by_kind:
        by_kind["partial_rotary_factor"] = _rotated(rope_factors("rope_freqs.weight"))
    if scaling:
        config["rope_scaling"] = scaling
    if layout.generates:
        config["eos_token_id"] = eos
    for name in ("bos", "padding"):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int):
            config["pad_token_id" if name == "padding" else "bos_token_id"] = token

    encoded = {kind for name in tensors if (kind := encodes(name))}
    weights = tuple(
        weight
        for tensor in tensors.values()
        if tensor.name not in _NOT_WEIGHTS and not encodes(tensor.name)
        for weight in _weights(architecture, layout, tensor, config)
    )
    _require_all(architecture, layout, config, {full_name(weight.tensor.name, layout) for weight in weights})
    config.pop(ZERO_ROWS, None)
    notes = tuple(without_encoder(kind) for kind in sorted(encoded))
    return ModelPlan(architecture, config, weights, wide_range=layout.wide_range, notes=notes)


def _base_config(keys: GgufKeys, embedding: GgufTensor, *, tied: bool, layout: Layout) -> dict[str, Any]:
    if layout.varied:
        keys = keys.widest("feed_forward_length", "attention.head_count_kv")
    if not layout.attends:
        keys = keys.assuming({"feed_forward_length": 1, "attention.head_count": 1, "attention.head_count_kv": 1})
    heads = keys.whole("attention.head_count", most=65_536)
    hidden = keys.whole("embedding_length")
    if embedding.columns != hidden:
        raise GgufError(f"the GGUF file's embeddings are {embedding.columns} wide; its metadata says {hidden}")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": keys.whole("block_count", most=4096),
        "intermediate_size": keys.whole("feed_forward_length", keys.get("expert_feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(keys, heads),
        "head_dim": keys.whole("attention.key_length", hidden // heads),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon", keys.get("attention.layer_norm_epsilon")),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": keys.whole("context_length"),
        "rope_theta": keys.real("rope.freq_base", 10_000.0),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
    }


def _draft_layers(keys: GgufKeys, config: dict[str, Any]) -> tuple[str, ...]:
    """Subtract multi-token prediction layers, which mlx-lm does not use; returns their prefixes of tensor names."""
    count = keys.whole("nextn_predict_layers", 0, least=0, most=64)
    layers = config["num_hidden_layers"]
    if count >= layers:
        raise GgufError(f"the GGUF file's metadata '{keys.architecture}.nextn_predict_layers' has an unusable value")
    config["num_hidden_layers"] = layers - count
    return tuple(f"blk.{layer}." for layer in range(layers - count, layers))


def _key_value_heads(keys: GgufKeys, heads: int) -> int:
    """Of the layers that have any."""
    value = keys.get("attention.head_count_kv")
    if isinstance(value, np.ndarray) and value.any():
        value = value[value != 0]
        keys = GgufKeys({f"{keys.architecture}.attention.head_count_kv": value}, keys.architecture)
    return keys.whole("attention.head_count_kv", heads, most=65_536)


def _rope_scaling(
    architecture: str, keys: GgufKeys, config: Mapping[str, Any], rope_factors: RopeFactors
) -> dict[str, Any] | None:
    long, short = rope_factors("rope_factors_long.weight"), rope_factors("rope_factors_short.weight")
    if long is not None and short is not None:
        return {
            "type": "longrope",
            "long_factor": [shortest(x) for x in long.tolist()],
            "short_factor": [shortest(x) for x in short.tolist()],
            "original_max_position_embeddings": keys.whole(
                "rope.scaling.original_context_length", config["max_position_embeddings"]
            ),
        }
    factors = rope_factors("rope_freqs.weight")
    if factors is not None:
        return _llama3_scaling(factors, config)
    kind = keys.get("rope.scaling.type")
    if kind in (None, "none") or "rope_parameters" in config or "rope_scaling" in config:
        return None
    if kind == "linear":
        return {"type": "linear", "rope_type": "linear", "factor": keys.real("rope.scaling.factor")}
    if kind == "yarn":
        return {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": keys.real("rope.scaling.factor"),
            "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length"),
        }
    raise GgufError(f"rope scaling of kind {str(kind)!r} in {architecture!r} GGUF files is not supported")


def _rotated(factors: NDArray[np.float32] | None) -> float:
    """The part of a head that is rotated: the factors of the rest are huge."""
    return 1.0 if factors is None else shortest(float((factors < 1e20).mean()))


def _llama3_scaling(factors: NDArray[np.float32], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parameters of Llama 3's rope scaling whose per-frequency factors these are; None when they are all 1."""
    factor = float(factors.max())
    if factor <= 1.0:
        return None
    head_dim, original = 2 * len(factors), 8192
    wavelength = 2 * math.pi * config["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / wavelength - 1.0) / 3.0, 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if not np.allclose(factors, expected, rtol=1e-3):
        raise GgufError("the GGUF file's rope frequency factors are not Llama 3's; such a model cannot be imported")
    return {
        "rope_type": "llama3",
        "factor": shortest(factor),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def full_name(name: str, layout: Layout) -> str:
    """A tensor's name with the ".weight" that Ollama's converter leaves out where the model's name has none."""
    stem, _, last = name.rpartition(".")
    if last in layout.bare:
        return f"{name}.weight"
    if last == "scale" and f"{stem.rpartition('.')[2]}_scale" in layout.bare:
        return f"{stem}_scale.weight"
    return f"{stem}.weight" if last == "bias" and stem.rpartition(".")[2] in layout.bare else name


def _weights(architecture: str, layout: Layout, tensor: GgufTensor, config: Mapping[str, Any]) -> list[Weight]:
    stem, _, leaf = full_name(tensor.name, layout).rpartition(".")
    unknown = GgufError(f"the {architecture!r} GGUF file has an unknown tensor {tensor.name!r}; it cannot be imported")
    if leaf not in ("weight", "bias"):
        raise unknown
    own, columns, undo = leaf, None, None
    if stem in layout.joined_top:
        return [_picked(tensor, path, leaf, "", pick, None) for path, pick in layout.joined_top[stem](config)]
    if stem in layout.top:
        path, part = layout.top[stem], ""
    else:
        block, _, rest = stem.partition(".")
        layer, _, part = rest.partition(".")
        if block != "blk" or not layer.isdecimal() or int(layer) >= config["num_hidden_layers"]:
            raise unknown
        before = f"{layout.prefix}.{int(layer)}."
        columns = layout.columns[part](config) if part in layout.columns else None
        if columns is not None and len(columns) != tensor.columns:
            raise GgufError(f"tensor {tensor.name!r} has {tensor.columns} columns, not {len(columns)}")
        undo = layout.undo.get(part)
        own = "" if part in layout.bare else leaf
        if part in layout.joined:
            return [
                _picked(tensor, f"{before}{path}", own, part, pick, undo) for path, pick in layout.joined[part](config)
            ]
        if part not in layout.parts:
            raise unknown
        path = f"{before}{layout.parts[part]}"
    heads = 0
    if layout.interleaved and part in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        rows = tensor.shape[0]
        if rows != heads * config["head_dim"] or config["head_dim"] % 2:
            raise GgufError(f"tensor {tensor.name!r} has {rows} rows, which do not fit {heads} heads")
    shift = -1.0 if layout.norms_plus_one and stem.endswith("norm") else 0.0
    zero_rows = config.get(ZERO_ROWS, 0) if stem == "position_embd" else 0
    shape = _with_ones(part or stem, tensor.shape)
    if zero_rows:
        shape = (shape[0] + zero_rows, *shape[1:])
    return [Weight(tensor, path, own, shape, heads, shift, None, zero_rows, columns, undo)]


def _picked(
    tensor: GgufTensor,
    path: str,
    leaf: str,
    part: str,
    pick: TensorPick,
    undo: Callable[..., NDArray[np.float32]] | None,
) -> Weight:
    by_value = leaf == "bias" or len(tensor.shape) == 1
    try:
        pick.rows(tensor.shape, by_value)
    except IndexError:
        raise GgufError(f"tensor {tensor.name!r} has fewer rows than its model's metadata says") from None
    return Weight(tensor, path, leaf, _with_ones(part, pick.shape(tensor.shape, by_value)), pick=pick, undo=undo)


def _with_ones(part: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """ggml drops dimensions of 1 that MLX has."""
    if part in ("ffn_gate_inp_shexp", "token_types") and len(shape) == 1:
        return (1, *shape)
    if part in ("shortconv.conv", "ssm_conv1d") and len(shape) == 2:
        return (*shape, 1)
    return shape


def _require_all(architecture: str, layout: Layout, config: Mapping[str, Any], present: set[str]) -> None:
    needed = [f"{layout.final_norm}.weight"]
    for layer in range(config["num_hidden_layers"]):
        for part in layout.needs(layer, config):
            names = [f"blk.{layer}.{it}.weight" for it in sorted(layout.instead_of(part))]
            needed += [] if present & {*names} else [f"blk.{layer}.{part}.weight"]
    missing = [name for name in needed if name not in present]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise GgufError(f"the {architecture!r} GGUF file lacks the tensor {missing[0]!r}{more}")
