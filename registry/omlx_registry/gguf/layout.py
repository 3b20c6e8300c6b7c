"""A layout: what the tensors of an architecture in GGUF files are called in MLX, and how its settings are named.

A converter to GGUF renames tensors and changes some. The `Layout` of an architecture says which ones, and the importer
undoes it. Settings that a file does not carry, because llama.cpp has them in its code, are filled in by the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.gguf.container import GgufTensor
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.picks import Indices, TensorPick

ZERO_ROWS: Final = "omlx_zero_rows"
"""Of the settings: rows of zeros before the file's position embeddings; not written to config.json."""

Config = dict[str, Any]
Settings = Callable[[GgufKeys, Mapping[str, Any], Mapping[str, GgufTensor]], Config]
"""What the architecture adds to config.json, from the metadata, the common part of config.json and the tensors."""


Joined = Callable[[Mapping[str, Any]], list[tuple[str, TensorPick]]]
"""By config.json: the paths of the parameters that a part holds, and which of its rows they are."""


def decay_logarithm(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The decays of a state: files have -exp(A_log)."""
    with np.errstate(all="ignore"):  # damage is looked for later
        return np.log(-values)


def nothing(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    return {}


_TOP: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """An architecture: `parts` maps names behind `blk.N.` to module paths behind `model.layers.N.`."""

    model_type: str
    parts: Mapping[str, str]
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    settings: Settings = nothing
    interleaved: bool = False
    """Rows of q and k are interleaved per head (ggml rotates neighbouring pairs); put back into halves."""
    norms_plus_one: bool = False
    """Norms are stored as 1 + w, and MLX adds the 1 itself."""
    wide_range: bool = False
    """Activations exceed float16's range, so 16-bit weights must be bfloat16."""
    experts: bool = False
    in_attention: frozenset[str] = frozenset()
    """Parts that only layers with attention have (`full_attn_idxs` of the settings)."""
    elsewhere: frozenset[str] = frozenset()
    """Parts that only the other layers have."""
    bare: frozenset[str] = frozenset()
    """Parts that are parameters of their own in MLX: no `.weight` behind the path."""
    final_norm: str = "output_norm"
    attends: bool = True
    """False for models without any attention, whose metadata has no heads."""
    generates: bool = True
    """False for encoders, which write no replies."""
    prefix: str = "model.layers"
    """The module path before the number of a layer."""
    joined: Mapping[str, Joined] = field(default_factory=dict)
    """Parts that hold several parameters of MLX, or rows in another order."""
    joined_top: Mapping[str, Joined] = field(default_factory=dict)
    """The same for tensors outside of layers, with whole paths."""
    varied: bool = False
    """Numbers of heads and widths differ between layers: the settings say how."""
    required: frozenset[str] = frozenset()
    """Those of them that a layer must have."""
    columns: Mapping[str, Callable[[Mapping[str, Any]], Indices]] = field(default_factory=dict)
    """Parts with columns in another order: for each of MLX's the file's, in runs of whole groups of 32."""
    undo: Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = field(default_factory=dict)
    """By part, the function that turns the converter's values back into MLX's; such parts stay float32."""
    alternatives: tuple[set[str], ...] = ()
    """Parts of which a layer needs only one."""
    absent: Callable[[int, Mapping[str, Any]], frozenset[str]] = lambda layer, config: frozenset()
    """Parts that a layer need not have, for other reasons than its kind of attention."""

    def instead_of(self, part: str) -> set[str]:
        """The parts that a layer may have for this one, itself included."""
        return {part}.union(*(those for those in self.alternatives if part in those))

    def needs(self, layer: int, config: Mapping[str, Any]) -> list[str]:
        """The parts that a layer must have."""
        if absent := self.absent(layer, config):
            return [part for part in self.parts if part not in absent]
        parts = [*self.parts, *sorted(self.required)]
        attention = config.get("full_attn_idxs")
        if attention is None:
            return parts
        absent = self.elsewhere if layer in attention else self.in_attention
        return [part for part in parts if part not in absent]


ATTENTION: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
MLP: Final = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
COMMON: Final = {**ATTENTION, **MLP}
QK_NORMS: Final = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def experts(router: str, path: str) -> dict[str, str]:
    return {"ffn_gate_inp": router} | {f"ffn_{name}_exps": f"{path}.{name}_proj" for name in ("gate", "up", "down")}
