"""Nomic's embedder (`nomic_bert`): a BERT with rotary positions and gated layers, which mlx-vlm does not have.

Follows the published configuration of nomic-embed-text v1 and v1.5; anything else that goes by the name is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_vlm.models.pooling import EmbeddingOutput, normalize_embeddings, pool_by_config

from omlx.engine.jsonfile import read_json

MODEL_TYPE = "nomic_bert"
_NEEDED: dict[str, Any] = {
    "activation_function": "swiglu",
    "causal": False,
    "prenorm": False,
    "parallel_block": False,
    "use_rms_norm": False,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
}


class _Layer(nn.Module):  # type: ignore[misc]
    """One transformer layer, its norms behind its sums."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, inner = int(config["n_embd"]), int(config["n_inner"])
        epsilon = float(config.get("layer_norm_epsilon", 1e-12))
        self.attn = _Attention(config)
        self.mlp = _Gated(width, inner, config)
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)

    def __call__(self, states: mx.array, mask: mx.array) -> mx.array:
        states = self.norm1(self.attn(states, mask) + states)
        output: mx.array = self.norm2(self.mlp(states) + states)
        return output


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, self.heads = int(config["n_embd"]), int(config["n_head"])
        bias = bool(config.get("qkv_proj_bias", False))
        self.Wqkv = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)
        size = width // self.heads
        turned = int(size * float(config.get("rotary_emb_fraction", 1.0)))
        self.rope = nn.RoPE(turned, traditional=False, base=float(config.get("rotary_emb_base", 10000)))

    def __call__(self, states: mx.array, mask: mx.array) -> mx.array:
        rows, count, width = states.shape
        joined = self.Wqkv(states).reshape(rows, count, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        queries, keys, values = self.rope(joined[0]), self.rope(joined[1]), joined[2]
        scale = (width // self.heads) ** -0.5
        seen = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
        output: mx.array = self.out_proj(seen.transpose(0, 2, 1, 3).reshape(rows, count, width))
        return output


class _Gated(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, inner: int, config: dict[str, Any]) -> None:
        super().__init__()
        self.fc11 = nn.Linear(width, inner, bias=bool(config.get("mlp_fc1_bias", False)))
        self.fc12 = nn.Linear(width, inner, bias=bool(config.get("mlp_fc1_bias", False)))
        self.fc2 = nn.Linear(inner, width, bias=bool(config.get("mlp_fc2_bias", False)))

    def __call__(self, states: mx.array) -> mx.array:
        output: mx.array = self.fc2(self.fc11(states) * nn.silu(self.fc12(states)))
        return output


class NomicModel(nn.Module):  # type: ignore[misc]
    """The network, with the interface of mlx-vlm's embedders."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.model_type = MODEL_TYPE
        self.pooling_config: dict[str, Any] = {"pooling_mode": "mean"}
        width = int(config["n_embd"])
        self.embeddings = {"word_embeddings": nn.Embedding(int(config["vocab_size"]), width)}
        if int(config.get("type_vocab_size") or 0):
            self.embeddings["token_type_embeddings"] = nn.Embedding(int(config["type_vocab_size"]), width)
        self.emb_ln = nn.LayerNorm(width, eps=float(config.get("layer_norm_epsilon", 1e-12)))
        self.encoder = {"layers": [_Layer(config) for _ in range(int(config["n_layer"]))]}

    def __call__(
        self, tokens: mx.array, attention_mask: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> EmbeddingOutput:
        states = self.embeddings["word_embeddings"](tokens)
        if "token_type_embeddings" in self.embeddings:
            kinds = mx.zeros_like(tokens) if token_type_ids is None else token_type_ids
            states = states + self.embeddings["token_type_embeddings"](kinds)
        states = self.emb_ln(states)
        attention_mask = mx.ones_like(tokens) if attention_mask is None else attention_mask
        mask = attention_mask[:, None, None, :] == 1
        for layer in self.encoder["layers"]:
            states = layer(states, mask)
        pooled = pool_by_config(states, attention_mask, self.pooling_config)
        return EmbeddingOutput(last_hidden_state=states, text_embeds=normalize_embeddings(pooled))


def load(path: Path) -> NomicModel:
    """The network with lazy weights. Raises ValueError where it would not be the one that was trained."""
    config = read_json(path / "config.json")
    for name, value in _NEEDED.items():
        if config.get(name, value) != value:
            raise ValueError(f"this model's {name} {config[name]!r} is not supported (only {value!r} is)")
    if config.get("num_experts") or config.get("moe_every_n_layers"):
        raise ValueError("a nomic_bert with experts is not supported")
    model = NomicModel(config)
    weights: dict[str, mx.array] = {}
    for file in sorted(path.glob("*.safetensors")):
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        weights |= loaded
    if quantization := config.get("quantization"):

        def choose(path: str, module: nn.Module) -> bool | dict[str, Any]:
            own = quantization.get(path)
            return own if isinstance(own, dict) else hasattr(module, "to_quantized") and f"{path}.scales" in weights

        nn.quantize(
            model,
            group_size=quantization["group_size"],
            bits=quantization["bits"],
            mode=quantization.get("mode", "affine"),
            class_predicate=choose,
        )
    known = {name.removeprefix("bert."): value for name, value in weights.items()}
    model.load_weights([(name, value) for name, value in known.items() if not name.startswith(("pooler.", "cls."))])
    return model
