"""Tiny embedders and rerankers in a folder, with random weights, and a float64 BERT written anew to compare with.

The tokenizer spells: one token a letter, `[CLS] … [SEP]` around it; as published ones do, its file carries a truncation
and a padding that must not be obeyed.
"""

from __future__ import annotations

import json
import math
import shutil
import string
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 32
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
_LETTERS = string.ascii_lowercase + string.digits + ".,?!"
_VOCABULARY = [*_SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
_ENCODER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "vocab_size": len(_VOCABULARY),
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {**_ENCODER, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2},
    "xlm-roberta": {**_ENCODER, "layer_norm_eps": 1e-5, "type_vocab_size": 1},
    "modernbert": {**_ENCODER, "local_attention": 8, "global_attn_every_n_layers": 2},
    "qwen3": {
        **_ENCODER,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "gemma3_text": {
        **_ENCODER,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
    },
}
_MODULES = {"xlm-roberta": "xlm_roberta", "qwen3": "qwen3_embedding", "gemma3_text": "gemma3_embedding"}


def make_encoder(
    folder: Path,
    model_type: str,
    *,
    pooling: Mapping[str, Any] | None = None,
    max_seq_length: int | None = None,
    ranks: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model folder. `pooling`: the content of 1_Pooling/config.json; `ranks`: with a head for one logit."""
    from omlx.engine import blas

    blas.prepare()
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map

    folder.mkdir(parents=True, exist_ok=True)
    write_speller(folder)
    name = "ForSequenceClassification" if ranks else "Model"
    full = {"model_type": model_type, "architectures": [name], **CONFIGS[model_type], **(config or {})}
    (folder / "config.json").write_text(json.dumps(full))
    module = import_module(f"mlx_vlm.models.{_MODULES.get(model_type, model_type)}")
    network = (module.SequenceClassificationModel if ranks else module.Model)(module.ModelConfig.from_dict(full))
    mx.random.seed(7)
    # Weights that start as zeros or ones hide mistakes, and small ones hardly mix the tokens.
    network.update(tree_map(lambda value: 2.5 * value + 0.1 * mx.random.normal(value.shape), network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(network.parameters())))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
        (folder / "modules.json").write_text(json.dumps(modules))
    if max_seq_length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_seq_length}))
    return folder


def quantize_encoder(folder: Path, target: Path) -> None:
    """Write the model in `folder` anew with 8-bit weights, as MLX conversions are."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_vlm.embedding_loader import load_embedding_model

    shutil.copytree(folder, target)
    network = load_embedding_model(folder)
    quantization = {"group_size": 32, "bits": 8}
    nn.quantize(
        network,
        **quantization,
        class_predicate=lambda _, module: hasattr(module, "to_quantized") and module.weight.size % 64 == 0,
    )
    mx.save_safetensors(str(target / "model.safetensors"), dict(tree_flatten(network.parameters())))
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization": quantization}))


def write_speller(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {token: number for number, token in enumerate(_VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=10_000))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=16, pad_id=0, pad_token="[PAD]")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


class Reference:
    """BERT in float64, one text at a time, from the tensors of a folder."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file

        self._config = json.loads((folder / "config.json").read_text())
        found = load_file(str(folder / "model.safetensors"))
        self._tensors = {name: value.astype(np.float64) for name, value in found.items()}

    def hidden(self, tokens: Sequence[int], segments: Sequence[int] = ()) -> Any:
        """The last hidden states, shape (tokens, width)."""
        table = "embeddings."
        kinds = list(segments) or [0] * len(tokens)
        x = self._tensors[table + "word_embeddings.weight"][list(tokens)]
        x = x + self._tensors[table + "position_embeddings.weight"][: len(tokens)]
        x = self._norm(table, x + self._tensors[table + "token_type_embeddings.weight"][kinds])
        for layer in range(self._config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}."
            x = self._norm(at + "attention.output.", x + self._attention(at + "attention.", x))
            inner = self._linear(at + "intermediate.dense", x)
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            x = self._norm(at + "output.", x + self._linear(at + "output.dense", inner))
        return x

    def embed(self, tokens: Sequence[int], pooling: str = "mean") -> Any:
        hidden = self.hidden(tokens)
        vector = {"mean": hidden.mean(0), "cls": hidden[0], "max": hidden.max(0), "lasttoken": hidden[-1]}[pooling]
        return vector / np.linalg.norm(vector)

    def score(self, tokens: Sequence[int], segments: Sequence[int]) -> float:
        """Of a cross-encoder: the probability that the texts belong together."""
        pooled = np.tanh(self._linear("pooler.dense", self.hidden(tokens, segments)[:1]))
        return float(1 / (1 + np.exp(-self._linear("classifier", pooled)[0, 0])))

    def _linear(self, name: str, x: Any) -> Any:
        return x @ self._tensors[name + ".weight"].T + self._tensors[name + ".bias"]

    def _norm(self, name: str, x: Any) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self._config["layer_norm_eps"])
        return x * self._tensors[name + "LayerNorm.weight"] + self._tensors[name + "LayerNorm.bias"]

    def _attention(self, at: str, x: Any) -> Any:
        heads = self._config["num_attention_heads"]
        q, k, v = (
            self._linear(at + f"self.{name}", x).reshape(len(x), heads, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        weights = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(weights - weights.max(-1, keepdims=True))
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return self._linear(at + "output.dense", mixed.transpose(1, 0, 2).reshape(x.shape))


def spell(*texts: str) -> list[int]:
    """The tokens of a text, or of two as a pair, as the tokenizer should find them."""
    tokens = [2]
    for text in texts:
        for word in text.lower().split():
            tokens += [_VOCABULARY.index(("##" if at else "") + letter) for at, letter in enumerate(word)]
        tokens.append(3)
    return tokens
