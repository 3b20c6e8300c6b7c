"""GGUF files of tiny embedders, as llama.cpp's converter writes them; spelled out here and not taken from the importer.

`make_embedder` writes the MLX folder and the GGUF file of the same weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, PoolingType
from gguf.quants import quantize
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

WIDTH, HEADS, INNER, LAYERS, POSITIONS = 64, 4, 96, 2, 64
CORPUS = [
    "The quick brown fox jumps over the lazy dog, twice.",
    "Weather and climate are not the same thing at all!",
    "Räksmörgås är gott; café crème costs 4.50 euros (not 5).",
    "東京 is the capital of Japan; 京都 was it before.",
]
KINDS = ["bert", "nomic-bert", "xlm-roberta"]
_POOLINGS = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS}

_BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_NOMIC = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
}


def make_embedder(
    folder: Path, kind: str, *, pooling: str = "mean", type_of: Callable[[str], str] = lambda name: "F32"
) -> tuple[Path, Path]:
    """The MLX folder and the GGUF file. `type_of`: the ggml type of a matrix by its GGUF name."""
    mlx, path = folder / "mlx", folder / f"{kind}.gguf"
    (mlx / "1_Pooling").mkdir(parents=True)
    tokenizer = _unigram() if kind == "xlm-roberta" else _word_piece()
    tokenizer.save(str(mlx / "tokenizer.json"))
    _write_settings(mlx, kind, tokenizer.get_vocab_size(), pooling)
    tensors = _nomic_tensors(tokenizer) if kind == "nomic-bert" else _bert_tensors(tokenizer, kind)
    save_file(tensors, mlx / "model.safetensors", {"format": "mlx"})
    _write_gguf(path, mlx, kind, pooling, type_of)
    return mlx, path


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(_runs(), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False, shrinking_factor=0.8
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _runs() -> Any:
    from tokenizers import Regex

    return Regex(" {2,}")


def _write_settings(folder: Path, kind: str, vocabulary: int, pooling: str) -> None:
    common = {"vocab_size": vocabulary, "layer_norm_eps": 1e-12, "pad_token_id": 0}
    bert = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
    }
    config: dict[str, Any]
    if kind == "bert":
        config = common | bert | {"model_type": "bert", "architectures": ["BertModel"], "type_vocab_size": 2}
    elif kind == "xlm-roberta":
        config = common | bert | {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}
        config |= {"type_vocab_size": 1, "pad_token_id": 1, "max_position_embeddings": POSITIONS + 2}
    else:
        config = common | {
            "model_type": "nomic_bert",
            "architectures": ["NomicBertModel"],
            "activation_function": "swiglu",
            "layer_norm_epsilon": 1e-12,
            "n_embd": WIDTH,
            "n_head": HEADS,
            "n_inner": INNER,
            "n_layer": LAYERS,
            "n_positions": POSITIONS,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "type_vocab_size": 2,
        }
    (folder / "config.json").write_text(json.dumps(config))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    if kind == "xlm-roberta":
        names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **names})
    )
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))


def _chance() -> Callable[..., np.ndarray]:
    generator = np.random.default_rng(11)
    return lambda *shape, around=0.0: (around + 0.2 * generator.standard_normal(shape)).astype(np.float32)


def _bert_tensors(tokenizer: Tokenizer, kind: str) -> dict[str, np.ndarray]:
    some = _chance()
    rows, kinds = (POSITIONS + 2, 1) if kind == "xlm-roberta" else (POSITIONS, 2)
    tensors = {
        "embeddings.word_embeddings.weight": some(tokenizer.get_vocab_size(), WIDTH),
        "embeddings.position_embeddings.weight": some(rows, WIDTH),
        "embeddings.token_type_embeddings.weight": some(kinds, WIDTH),
        "embeddings.LayerNorm.weight": some(WIDTH, around=1.0),
        "embeddings.LayerNorm.bias": some(WIDTH),
    }
    widths = {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
    for layer in range(LAYERS):
        for name in list(_BERT)[4:]:
            at = f"encoder.layer.{layer}.{name}"
            if name.endswith("LayerNorm"):
                tensors[f"{at}.weight"] = some(WIDTH, around=1.0)
                tensors[f"{at}.bias"] = some(WIDTH)
            else:
                shape = widths.get(name, (WIDTH, WIDTH))
                tensors[f"{at}.weight"], tensors[f"{at}.bias"] = some(*shape), some(shape[0])
    return tensors


def _nomic_tensors(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    some = _chance()
    tensors = {
        "embeddings.word_embeddings.weight": some(tokenizer.get_vocab_size(), WIDTH),
        "embeddings.token_type_embeddings.weight": some(2, WIDTH),
        "emb_ln.weight": some(WIDTH, around=1.0),
        "emb_ln.bias": some(WIDTH),
    }
    widths = {"attn.Wqkv": (3 * WIDTH, WIDTH), "attn.out_proj": (WIDTH, WIDTH), "mlp.fc2": (WIDTH, INNER)}
    for layer in range(LAYERS):
        for name in list(_NOMIC)[3:]:
            at = f"encoder.layers.{layer}.{name}"
            if name.startswith("norm"):
                tensors[f"{at}.weight"], tensors[f"{at}.bias"] = some(WIDTH, around=1.0), some(WIDTH)
            else:
                tensors[f"{at}.weight"] = some(*widths.get(name, (INNER, WIDTH)))
    return tensors


def _write_gguf(path: Path, mlx: Path, kind: str, pooling: str, type_of: Callable[[str], str]) -> None:
    writer = GGUFWriter(path, "nomic-bert" if kind == "nomic-bert" else "bert")
    writer.add_name("tiny")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(_POOLINGS[pooling])
    if kind == "nomic-bert":
        writer.add_rope_freq_base(1000.0)
    _add_vocabulary(writer, json.loads((mlx / "tokenizer.json").read_text()), kind)
    names = _NOMIC if kind == "nomic-bert" else _BERT
    for name, values in load_file(mlx / "model.safetensors").items():
        stem, _, leaf = name.rpartition(".")
        ours = names.get(stem)
        if ours is None:
            layer, _, rest = stem.removeprefix("encoder.layers.").removeprefix("encoder.layer.").partition(".")
            ours = f"blk.{layer}.{names[rest]}"
        if ours == "position_embd" and kind == "xlm-roberta":
            values = values[2:]
        matrix = values.ndim > 1 and ours not in ("position_embd", "token_types")
        type_ = GGMLQuantizationType[type_of(ours)] if matrix else GGMLQuantizationType.F32
        writer.add_tensor(f"{ours}.{leaf}", quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: GGUFWriter, tokenizer: dict[str, Any], kind: str) -> None:
    special = {entry["id"] for entry in tokenizer["added_tokens"]}
    if kind == "xlm-roberta":
        vocabulary = tokenizer["model"]["vocab"]
        writer.add_tokenizer_model("t5")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([token for token, _ in vocabulary])
        writer.add_token_scores([score for _, score in vocabulary])
        writer.add_token_types([2 if index == 3 else 3 if index in special else 1 for index in range(len(vocabulary))])
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_token_type_count(1)
        for add, index in (
            (writer.add_bos_token_id, 0), (writer.add_pad_token_id, 1), (writer.add_eos_token_id, 2),
            (writer.add_unk_token_id, 3), (writer.add_sep_token_id, 2), (writer.add_mask_token_id, 4),
        ):  # fmt: skip
            add(index)
        return
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    writer.add_token_list(
        [it if at in special else it[2:] if it.startswith("##") else f"▁{it}" for at, it in enumerate(tokens)]
    )
    writer.add_token_types([3 if index in special else 1 for index in range(len(tokens))])
    for add, index in (
        (writer.add_pad_token_id, 0), (writer.add_unk_token_id, 1), (writer.add_sep_token_id, 3),
        (writer.add_mask_token_id, 4), (writer.add_bos_token_id, 2),
    ):  # fmt: skip
        add(index)
