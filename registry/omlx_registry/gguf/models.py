"""Architectures: what a GGUF file's metadata and tensor names mean as an MLX model; pure, reads no weights.

`plan_model` turns the metadata into the config.json mlx-lm expects and says for every tensor which MLX parameter it
becomes and how: some converters stored weights differently from the model they came from, and that is undone here:

- llama: rows of q and k are interleaved per head (ggml rotates neighbouring pairs); put back into halves.
- gemma3: norms are stored as 1 + w; MLX adds the 1 itself.
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

from omlx_registry.gguf.container import GgufError, Tensor

RopeFactors = Callable[[str], "NDArray[np.float32] | None"]
"""Reads one of the small factor tensors by name; None when the file has none."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor's place in the MLX model.

    `heads` > 0: its rows are interleaved per head, to be put back; `shift` is added to every value.
    """

    tensor: Tensor
    path: str  # module path, as in config.json's "quantization": "model.layers.0.self_attn.q_proj"
    leaf: str  # "weight" or "bias"
    heads: int = 0
    shift: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.path}.{self.leaf}"

    def row_order(self) -> NDArray[np.int64] | None:
        """For each row of the result the row of the file it comes from; None: in order."""
        if not self.heads:
            return None
        count = math.prod(self.tensor.shape) if self.tensor.shape == (self.tensor.columns,) else self.tensor.rows
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


_COMMON: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QK_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LAYER_NAMES: Final[dict[str, dict[str, str]]] = {
    "llama": _COMMON,
    "qwen2": _COMMON,
    "qwen3": {**_COMMON, **_QK_NORMS},
    "qwen3moe": {
        **{part: path for part, path in _COMMON.items() if not path.startswith("mlp.")},
        **_QK_NORMS,
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
        "ffn_up_exps": "mlp.switch_mlp.up_proj",
        "ffn_down_exps": "mlp.switch_mlp.down_proj",
    },
    "gemma3": {
        **_COMMON,
        **_QK_NORMS,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
}
_TOP_NAMES: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_MODEL_TYPES: Final = {"gemma3": "gemma3_text", "qwen3moe": "qwen3_moe"}
_NOT_WEIGHTS: Final = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
SUPPORTED: Final = tuple(sorted(_LAYER_NAMES))


class _Keys:
    """Typed access to `<architecture>.<key>`; a missing or malformed value is a GgufError naming the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str):
        self.metadata, self.architecture = metadata, architecture

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31) -> int:
        value = self.get(key)
        if value is None:
            value = default
        if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
            value = int(value[0])  # the same number for every layer
        name = f"{self.architecture}.{key}"
        if value is None:
            raise GgufError(f"the GGUF file lacks {name!r} in its metadata")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise GgufError(f"the GGUF file's metadata {name!r} has an unusable value")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            value = default
        name = f"{self.architecture}.{key}"
        if value is None:
            raise GgufError(f"the GGUF file lacks {name!r} in its metadata")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise GgufError(f"the GGUF file's metadata {name!r} has an unusable value")
        return _shortest(float(value))


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 9.999999747378752e-06 was meant as 1e-05."""
    return float(str(np.float32(value))) if abs(value) < 3e38 else value


def plan_model(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], rope_factors: RopeFactors, eos: list[int]
) -> ModelPlan:
    """Config and weights of a GGUF file. Raises GgufError for an architecture or a layout that is not supported."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise GgufError("the GGUF file does not name its architecture")
    if metadata.get("general.type", "model") != "model":
        raise GgufError(f"the GGUF file holds no model but {str(metadata['general.type'])!r}")
    if architecture not in _LAYER_NAMES:
        raise GgufError(
            f"GGUF files of architecture {architecture!r} cannot be imported; supported are {', '.join(SUPPORTED)}"
        )
    if metadata.get("split.count", 0) > 1:
        raise GgufError("the GGUF file is one part of several; join them first with `llama-gguf-split --merge`")
    keys = _Keys(metadata, architecture)
    if keys.get("expert_count") and architecture != "qwen3moe":
        raise GgufError(f"mixture-of-experts GGUF files of architecture {architecture!r} cannot be imported")
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError("the GGUF file lacks the tensor 'token_embd.weight'")

    config = _base_config(keys, embedding, tied="output.weight" not in tensors)
    config["model_type"] = _MODEL_TYPES.get(architecture, architecture)
    config |= _family_config(architecture, keys, config)
    scaling = _rope_scaling(architecture, keys, config, rope_factors)
    if scaling:
        config["rope_scaling"] = scaling
    config["eos_token_id"] = eos
    for name in ("bos", "padding"):
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token, int):
            config["pad_token_id" if name == "padding" else "bos_token_id"] = token

    if architecture == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    weights = tuple(
        _weight(architecture, tensor, config) for tensor in tensors.values() if tensor.name not in _NOT_WEIGHTS
    )
    _require_all(architecture, config["num_hidden_layers"], {weight.tensor.name for weight in weights})
    return ModelPlan(architecture, config, weights, wide_range=architecture == "gemma3")


def _base_config(keys: _Keys, embedding: Tensor, *, tied: bool) -> dict[str, Any]:
    heads = keys.whole("attention.head_count", most=65_536)
    hidden = keys.whole("embedding_length")
    if embedding.columns != hidden:
        raise GgufError(f"the GGUF file's embeddings are {embedding.columns} wide; its metadata says {hidden}")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": keys.whole("block_count", most=4096),
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads, most=65_536),
        "head_dim": keys.whole("attention.key_length", hidden // heads),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": keys.whole("context_length"),
        "rope_theta": keys.real("rope.freq_base", 10_000.0),
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
    }


def _family_config(architecture: str, keys: _Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    if architecture == "gemma3":
        # Not in the file, the same for all sizes but one: the 27B scales by its width per head.
        head_dim = config["head_dim"]
        is_27b = config["num_hidden_layers"] == 62
        return {
            "query_pre_attn_scalar": config["hidden_size"] // config["num_attention_heads"] if is_27b else head_dim,
            "sliding_window": keys.whole("attention.sliding_window", 512),
            "sliding_window_pattern": 6,
            "rope_local_base_freq": keys.real("rope.freq_base_swa", 10_000.0),
            "rope_theta": keys.real("rope.freq_base", 1_000_000.0),
            "hidden_act": "gelu_pytorch_tanh",
        }
    if architecture == "qwen3moe":
        return {
            "num_experts": keys.whole("expert_count"),
            "num_experts_per_tok": keys.whole("expert_used_count"),
            "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if architecture == "phi3":
        # Its heads share the hidden size evenly, whatever a file may say.
        head_dim, rest = divmod(config["hidden_size"], config["num_attention_heads"])
        if rest or not head_dim:
            raise GgufError("the GGUF file's hidden size does not divide into its number of heads")
        return {
            "head_dim": head_dim,
            "partial_rotary_factor": keys.whole("rope.dimension_count", head_dim) / head_dim,
            "original_max_position_embeddings": keys.whole(
                "rope.scaling.original_context_length", config["max_position_embeddings"]
            ),
        }
    return {}


def _rope_scaling(
    architecture: str, keys: _Keys, config: Mapping[str, Any], rope_factors: RopeFactors
) -> dict[str, Any] | None:
    long, short = rope_factors("rope_factors_long.weight"), rope_factors("rope_factors_short.weight")
    if long is not None and short is not None:
        return {
            "type": "longrope",
            "long_factor": [_shortest(x) for x in long.tolist()],
            "short_factor": [_shortest(x) for x in short.tolist()],
            "original_max_position_embeddings": keys.whole(
                "rope.scaling.original_context_length", config["max_position_embeddings"]
            ),
        }
    factors = rope_factors("rope_freqs.weight")
    if factors is not None:
        return _llama3_scaling(factors, config)
    kind = keys.get("rope.scaling.type")
    if kind in (None, "none"):
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
        "factor": _shortest(factor),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def _weight(architecture: str, tensor: Tensor, config: Mapping[str, Any]) -> Weight:
    stem, _, leaf = tensor.name.rpartition(".")
    unknown = GgufError(f"the {architecture!r} GGUF file has an unknown tensor {tensor.name!r}; it cannot be imported")
    if leaf not in ("weight", "bias"):
        raise unknown
    if stem in _TOP_NAMES:
        path, part = _TOP_NAMES[stem], ""
    else:
        block, _, rest = stem.partition(".")
        layer, _, part = rest.partition(".")
        if block != "blk" or not layer.isdecimal() or int(layer) >= config["num_hidden_layers"]:
            raise unknown
        if part not in _LAYER_NAMES[architecture]:
            raise unknown
        path = f"model.layers.{int(layer)}.{_LAYER_NAMES[architecture][part]}"
    heads = 0
    if architecture == "llama" and part in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
        rows = tensor.shape[0]
        if rows != heads * config["head_dim"] or config["head_dim"] % 2:
            raise GgufError(f"tensor {tensor.name!r} has {rows} rows, which do not fit {heads} heads")
    is_gemma_norm = architecture == "gemma3" and stem.endswith("norm")
    return Weight(tensor, path, leaf, heads, -1.0 if is_gemma_norm else 0.0)


def _require_all(architecture: str, layers: int, present: set[str]) -> None:
    needed = ["output_norm.weight"]
    needed += [f"blk.{layer}.{part}.weight" for layer in range(layers) for part in _LAYER_NAMES[architecture]]
    missing = [name for name in needed if name not in present]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise GgufError(f"the {architecture!r} GGUF file lacks the tensor {missing[0]!r}{more}")
