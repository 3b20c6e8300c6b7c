"""The layout of Mamba: state-space layers alone, without attention; see `layout`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from omlx_registry.gguf.container import GgufTensor
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.layout import Config, Layout, decay_logarithm


def _mamba(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {
        "intermediate_size": keys.whole("ssm.inner_size"),
        "state_size": keys.whole("ssm.state_size"),
        "conv_kernel": keys.whole("ssm.conv_kernel", most=64),
        "time_step_rank": keys.whole("ssm.time_step_rank"),
        "use_bias": "blk.0.ssm_in.bias" in tensors,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in tensors,
        # Falcon's.
        "use_bcdt_rms": bool(keys.get("ssm.dt_b_c_rms")),
        "mixer_rms_eps": config["rms_norm_eps"],
    }


STATE_SPACE: Final[dict[str, Layout]] = {
    "mamba": Layout(
        "mamba",
        {
            "attn_norm": "norm",
            "ssm_in": "mixer.in_proj",
            "ssm_conv1d": "mixer.conv1d",
            "ssm_x": "mixer.x_proj",
            "ssm_dt": "mixer.dt_proj",
            "ssm_a": "mixer.A_log",
            "ssm_d": "mixer.D",
            "ssm_out": "mixer.out_proj",
        },
        top={"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"},
        settings=_mamba,
        prefix="backbone.layers",
        bare=frozenset({"ssm_a", "ssm_d"}),
        undo={"ssm_a": decay_logarithm},
        attends=False,
    ),
}
