"""Layouts of models with gated linear attention: Qwen3.5 (dense and with experts) and Qwen3-Next; see `layout`.

mlx-lm's network of Qwen3.5 computes what that of Qwen3-Next does, with the projections apart as they are in a file, so
both become it. A converter writes the value heads of Qwen3.5 in another order wherever there are more of them than of
keys: the first head of each key head, then the second of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.layout import ATTENTION, MLP, QK_NORMS, Config, Joined, Layout, decay_logarithm, experts
from omlx_registry.gguf.picks import Indices, TensorPick, grouped

_ONLY_ATTENTION: Final = frozenset({"attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"})
_EXPERTS: Final = {
    **experts("mlp.gate", "mlp.switch_mlp"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_SHARED: Final = {
    **{part: path for part, path in ATTENTION.items() if part != "ffn_norm"},
    **QK_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "ssm_norm": "linear_attn.norm",
}
_TOP: Final = {
    "token_embd": "language_model.model.embed_tokens",
    "output_norm": "language_model.model.norm",
    "output": "language_model.lm_head",
}


def _settings(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    head_dim, layers = config["head_dim"], config["num_hidden_layers"]
    interval = keys.whole("full_attention_interval", 4)
    key_heads, value_heads = keys.whole("ssm.group_count"), keys.whole("ssm.time_step_rank")
    inner = keys.whole("ssm.inner_size")
    if value_heads % key_heads or inner % value_heads:
        raise GgufError("the GGUF file's metadata has numbers of heads of linear attention that do not fit")
    return {
        "linear_conv_kernel_dim": keys.whole("ssm.conv_kernel", most=64),
        "linear_key_head_dim": keys.whole("ssm.state_size"),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": inner // value_heads,
        "full_attention_interval": interval,
        "full_attn_idxs": [layer for layer in range(layers) if (layer + 1) % interval == 0],
        "rope_parameters": {
            "type": "default",
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": keys.whole("rope.dimension_count", head_dim) / head_dim,
        },
    }


def _expert_settings(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return _settings(keys, config, tensors) | {
        "num_experts": keys.whole("expert_count"),
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.whole("expert_shared_feed_forward_length"),
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    }


def _values(config: Mapping[str, Any], width: int, start: int = 0) -> Indices:
    """Where the rows of the value heads are, `width` of each, behind `start` others."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return grouped(groups, heads // groups, width, start)


def _mixed(config: Mapping[str, Any]) -> TensorPick:
    """Queries and keys as they are, the values in order."""
    before = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = _values(config, config["linear_value_head_dim"], before)
    return TensorPick(np.concatenate([np.arange(before, dtype=np.int64), values]))


def _gates(part: int, config: Mapping[str, Any]) -> TensorPick:
    """Of Qwen3-Next's `ssm_ba`: of each key head the rows of its value heads' betas (part 0) or alphas (1)."""
    groups = config["linear_num_key_heads"]
    each = config["linear_num_value_heads"] // groups
    return TensorPick(np.arange(groups * each * 2, dtype=np.int64).reshape(groups, 2, each)[:, part].reshape(-1))


def _gate_up(config: Mapping[str, Any]) -> list[tuple[str, TensorPick]]:
    width = config["moe_intermediate_size"]
    picks = {"gate": TensorPick.every(0, width), "up": TensorPick.every(width, 2 * width)}
    return [(f"mlp.switch_mlp.{name}_proj", pick) for name, pick in picks.items()]


_IN_ORDER: Final[dict[str, Joined]] = {
    "attn_qkv": lambda config: [("linear_attn.in_proj_qkv", _mixed(config))],
    "attn_gate": lambda c: [("linear_attn.in_proj_z", TensorPick(_values(c, c["linear_value_head_dim"])))],
    "ssm_conv1d": lambda config: [("linear_attn.conv1d", _mixed(config))],
    "ssm_beta": lambda config: [("linear_attn.in_proj_b", TensorPick(_values(config, 1)))],
    "ssm_alpha": lambda config: [("linear_attn.in_proj_a", TensorPick(_values(config, 1)))],
    "ssm_a": lambda config: [("linear_attn.A_log", TensorPick(_values(config, 1)))],
    "ssm_dt": lambda config: [("linear_attn.dt_bias", TensorPick(_values(config, 1)))],
}
_NEXT: Final[dict[str, Joined]] = {
    "ssm_ba": lambda c: [("linear_attn.in_proj_b", _gates(0, c)), ("linear_attn.in_proj_a", _gates(1, c))],
    "ffn_gate_up_exps": _gate_up,
}
_BARE: Final = frozenset({"ssm_a", "ssm_dt"})
_ONE_OF: Final = ({"ffn_gate_exps", "ffn_gate_up_exps"}, {"ffn_up_exps", "ffn_gate_up_exps"})


def _columns(config: Mapping[str, Any]) -> Indices:
    return _values(config, config["linear_value_head_dim"])


def _layout(model_type: str, feed_forward: dict[str, str], joined: Mapping[str, Joined], **more: Any) -> Layout:
    linear = frozenset({*joined, "ssm_norm", "ssm_out"} - {"ffn_gate_up_exps"})
    return Layout(
        model_type,
        _SHARED | {"ssm_out": "linear_attn.out_proj"} | feed_forward | more.pop("parts", {}),
        top=_TOP,
        prefix="language_model.model.layers",
        joined=joined,
        required=frozenset(joined) - {"ffn_gate_up_exps"},
        in_attention=_ONLY_ATTENTION,
        elsewhere=linear | frozenset(more.pop("linear", ())),
        bare=_BARE,
        undo={"ssm_a": decay_logarithm},
        **more,
    )


LINEAR_ATTENTION: Final[dict[str, Layout]] = {
    "qwen35": _layout("qwen3_5", MLP, _IN_ORDER, settings=_settings, columns={"ssm_out": _columns}),
    "qwen35moe": _layout(
        "qwen3_5_moe",
        _EXPERTS,
        _IN_ORDER | {"ffn_gate_up_exps": _gate_up},
        settings=_expert_settings,
        experts=True,
        alternatives=_ONE_OF,
        columns={"ssm_out": _columns},
    ),
    "qwen3next": _layout(
        "qwen3_5_moe",
        _EXPERTS,
        _NEXT,
        parts={
            "attn_qkv": "linear_attn.in_proj_qkv",
            "attn_gate": "linear_attn.in_proj_z",
            "ssm_conv1d": "linear_attn.conv1d",
            "ssm_a": "linear_attn.A_log",
            "ssm_dt": "linear_attn.dt_bias",
        },
        linear=("attn_qkv", "attn_gate", "ssm_conv1d", "ssm_a", "ssm_dt"),
        settings=_expert_settings,
        experts=True,
        alternatives=_ONE_OF,
    ),
}
