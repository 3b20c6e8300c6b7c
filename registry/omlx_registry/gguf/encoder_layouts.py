"""Layouts of text encoders (embedders): BERT, XLM-RoBERTa (`bert` with another tokenizer), Nomic; see `layout`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from omlx_registry.gguf.container import GgufError, GgufTensor
from omlx_registry.gguf.keys import GgufKeys
from omlx_registry.gguf.layout import ZERO_ROWS, Config, Layout

POOLINGS: Final = {1: "mean", 2: "cls", 3: "lasttoken"}
"""llama.cpp's numbers of pooling modes; 0 is none, 4 a classifier's."""
_PADDING: Final = 1
"""XLM-RoBERTa's padding token; its first position is the one behind it, and files leave out the rows before."""


def pooling_files(metadata: Mapping[str, Any], architecture: str) -> dict[str, str]:
    """The files in which sentence-transformers keep a pooling: name → text; none where a file does not state one."""
    mode = POOLINGS.get(metadata.get(f"{architecture}.pooling_type", 0))
    if mode is None:
        return {}
    module = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    return {
        "modules.json": json.dumps([module]),
        "1_Pooling/config.json": json.dumps({"pooling_mode": mode}),
    }


def _encoder(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    pooling = keys.get("pooling_type")
    if pooling is not None and pooling not in POOLINGS:
        raise GgufError("the GGUF file holds no embedder: its pooling is none that gives one vector for a text")
    kinds = tensors.get("token_types.weight")
    return {
        "layer_norm_eps": keys.real("attention.layer_norm_epsilon"),
        "type_vocab_size": kinds.rows if kinds is not None and len(kinds.shape) > 1 else 1 if kinds is not None else 0,
        "pad_token_id": int(keys.metadata.get("tokenizer.ggml.padding_token_id", 0)),
        "hidden_act": "gelu",
    }


def _bert(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    found = _encoder(keys, config, tensors) | {"architectures": ["BertModel"]}
    positions = tensors.get("position_embd.weight")
    rows = positions.rows if positions is not None else 0
    tokenizer = keys.metadata.get("tokenizer.ggml.model")
    if tokenizer == "bert":
        return found | {"max_position_embeddings": rows}
    if tokenizer != "t5":
        raise GgufError(f"BERT models with a tokenizer of kind {tokenizer!r} cannot be imported from GGUF")
    return found | {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaModel"],
        "pad_token_id": _PADDING,
        "max_position_embeddings": rows + _PADDING + 1,
        ZERO_ROWS: _PADDING + 1,
    }


def _nomic(keys: GgufKeys, config: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Config:
    biased = "blk.0.attn_qkv.bias" in tensors
    return _encoder(keys, config, tensors) | {
        "architectures": ["NomicBertModel"],
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "n_inner": config["intermediate_size"],
        "layer_norm_epsilon": keys.real("attention.layer_norm_epsilon"),
        "activation_function": "swiglu",
        "rotary_emb_base": keys.real("rope.freq_base", 1000.0),
        "rotary_emb_fraction": 1.0,
        "qkv_proj_bias": biased,
        "mlp_fc1_bias": "blk.0.ffn_up.bias" in tensors,
        "mlp_fc2_bias": "blk.0.ffn_down.bias" in tensors,
        "max_trained_positions": config["max_position_embeddings"],
    }


ENCODERS: Final[dict[str, Layout]] = {
    "bert": Layout(
        "bert",
        {
            "attn_q": "attention.self.query",
            "attn_k": "attention.self.key",
            "attn_v": "attention.self.value",
            "attn_output": "attention.output.dense",
            "attn_output_norm": "attention.output.LayerNorm",
            "ffn_up": "intermediate.dense",
            "ffn_down": "output.dense",
            "layer_output_norm": "output.LayerNorm",
        },
        top={
            "token_embd": "embeddings.word_embeddings",
            "position_embd": "embeddings.position_embeddings",
            "token_types": "embeddings.token_type_embeddings",
            "token_embd_norm": "embeddings.LayerNorm",
        },
        settings=_bert,
        final_norm="token_embd_norm",
        generates=False,
        prefix="encoder.layer",
    ),
    "nomic-bert": Layout(
        "nomic_bert",
        {
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "attn_output_norm": "norm1",
            "ffn_up": "mlp.fc11",
            "ffn_gate": "mlp.fc12",
            "ffn_down": "mlp.fc2",
            "layer_output_norm": "norm2",
        },
        top={
            "token_embd": "embeddings.word_embeddings",
            "token_types": "embeddings.token_type_embeddings",
            "token_embd_norm": "emb_ln",
        },
        settings=_nomic,
        final_norm="token_embd_norm",
        generates=False,
        prefix="encoder.layers",
    ),
}
