"""Tokenizers out of GGUF files cut and merge as the original does, and know where a reply ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from omlx_registry.gguf.container import GgufError
from omlx_registry.gguf.tokenizer import build_tokenizer
from tokenizers import Tokenizer, pre_tokenizers

SAMPLE = "HelloWorld's 12345 naïve\n\n  x,y DON'T /a\n"

# Where each pre-tokenizer cuts the sample: a vocabulary that could merge everything shows the cuts as tokens.
CUTS = {
    "gpt-2": ["HelloWorld", "'s", "Ġ12345", "ĠnaÃ¯ve", "ĊĊĠ", "Ġx", ",", "y", "ĠDON", "'", "T", "Ġ/", "a", "Ċ"],
    "smollm": [
        "HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "ĊĊĠ", "Ġx", ",", "y", "ĠDON", "'", "T", "Ġ/",
        "a",
        "Ċ",
    ],
    "llama-bpe": [
        "HelloWorld", "'s", "Ġ", "123", "45", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/", "a", "Ċ",
    ],
    "qwen2": [
        "HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/", "a",
        "Ċ",
    ],
    "tekken": [
        "Hello", "World", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/",
        "a",
        "Ċ",
    ],
    "gpt-4o": [
        "Hello", "World's", "Ġ", "123", "45", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON'T", "Ġ/", "a", "Ċ",
    ],
    "lfm2": [
        "HelloWorld", "'s", "Ġ", "123", "45", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/", "a", "Ċ",
    ],
    "seed-coder": [
        "HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/",
        "a", "Ċ",
    ],
    "deepseek-v3": [
        "HelloWorld", "'s", "Ġ", "123", "45", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/", "a", "Ċ",
    ],
    "deepseek-llm": [
        "HelloWorld", "'", "s", "Ġ", "12345", "Ġna", "Ã¯", "ve", "Ċ", "Ċ", "Ġ", "Ġx", ",", "y", "ĠDON", "'", "T",
        "Ġ/", "a", "Ċ",
    ],
    "deepseek-coder": [
        "HelloWorld", "'", "s", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "Ċ", "Ċ", "Ġ", "Ġx", ",", "y", "ĠDON",
        "'", "T", "Ġ/", "a", "Ċ",
    ],
    "falcon": [
        "HelloWorld", "'", "s", "Ġ", "123", "45", "ĠnaÃ¯ve", "ĊĊĠ", "Ġx", ",", "y", "ĠDON", "'", "T", "Ġ", "/",
        "a", "Ċ",
    ],
    "viking": [
        "HelloWorld's", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "ĊĊĠ", "Ġx", ",", "y", "ĠDON'T", "Ġ/a", "Ċ",
    ],
    "qwen35": [
        "HelloWorld", "'s", "Ġ", "1", "2", "3", "4", "5", "ĠnaÃ¯ve", "ĊĊ", "Ġ", "Ġx", ",y", "ĠDON", "'T", "Ġ/",
        "a", "Ċ",
    ],
}  # fmt: skip

BASE = {
    "general.architecture": "llama",
    "llama.context_length": 512,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
}


def greedy_vocabulary(pre: str) -> dict[str, Any]:
    """Tokens for every piece of every expected cut, reachable by merging left to right."""
    tokens = dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    merges = {}
    for piece in (piece for pieces in CUTS.values() for piece in [*pieces, "".join(pieces)]):
        for end in range(2, len(piece) + 1):
            tokens[piece[:end]] = None
            merges[f"{piece[: end - 1]} {piece[end - 1]}"] = None
    return BASE | {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.add_bos_token": False,
    }


def load(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(metadata).tokenizer_json)


@pytest.mark.parametrize("pre", sorted(CUTS))
def test_pre_tokenizers_cut_where_the_original_does(pre: str) -> None:
    tokenizer = load(greedy_vocabulary(pre))
    cuts = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(SAMPLE)]
    assert cuts == CUTS[pre]
    assert tokenizer.decode(tokenizer.encode(SAMPLE).ids) == SAMPLE


@pytest.mark.parametrize(
    ("metadata", "cut"),
    [
        ({"general.architecture": "qwen2"}, "qwen2"),
        ({"general.architecture": "llama"}, "gpt-2"),
        ({"general.architecture": "llama", "tokenizer.ggml.pre": "default"}, "gpt-2"),
    ],
)
def test_a_file_without_a_pre_tokenizer_gets_its_familys(metadata: dict[str, Any], cut: str) -> None:
    vocabulary = greedy_vocabulary("gpt-2")
    del vocabulary["tokenizer.ggml.pre"]
    tokenizer = load(vocabulary | metadata)
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(SAMPLE)] == CUTS[cut]


TEXTS = [
    "Hello  world\n\n 12345 don't",
    "héllo 日本語 🎉",
    "  leading and trailing  ",
    "def f(x):\n\treturn x**2\n\n\n",
    "HelloWorld XMLHttpRequest",
    "",
    "[INST] hello",
]


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_vocabularies_give_sentencepieces_tokens(prefix: bool) -> None:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in [*TEXTS, str(CUTS)] * 3 for line in text.split("\n") if line.strip()]),
        model_writer=trained,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["[INST]"],
        minloglevel=3,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    metadata = sentencepiece_metadata(original) | {"tokenizer.ggml.add_space_prefix": prefix}
    tokenizer = load(metadata)
    for text in TEXTS[:-1] if prefix else TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False).ids == original.encode(text)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("hi").ids[0] == original.bos_id()


def sentencepiece_metadata(original: Any) -> dict[str, Any]:
    size = original.vocab_size()
    pieces = [original.id_to_piece(index) for index in range(size)]
    kinds = [
        2 if original.is_unknown(i) else 3 if original.is_control(i) else 6 if original.is_byte(i) else 1
        for i in range(size)
    ]
    kinds[pieces.index("[INST]")] = 4
    return BASE | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.array([original.get_score(i) for i in range(size)], np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": original.bos_id(),
        "tokenizer.ggml.eos_token_id": original.eos_id(),
        "tokenizer.ggml.unknown_token_id": original.unk_id(),
    }


def test_all_tokens_that_end_a_reply_are_found_the_files_own_first() -> None:
    metadata = greedy_vocabulary("gpt-2")
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<stop>"]
    size = len(tokens)
    kinds = np.array([1] * (size - 4) + [3] * 4, np.int32)
    files = build_tokenizer(
        metadata
        | {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.eos_token_id": size - 2,
            "tokenizer.ggml.eot_token_id": size - 1,
            "tokenizer.chat_template": "{{ messages }}",
        }
    )
    assert files.eos == [size - 2, size - 1, size - 4]
    assert files.tokenizer_config["eos_token"] == "<|im_end|>"
    assert files.tokenizer_config["chat_template"] == files.chat_template == "{{ messages }}"
    tokenizer = Tokenizer.from_str(files.tokenizer_json)
    assert tokenizer.encode("a<|im_end|>").ids[-1] == size - 2
    assert tokenizer.decode([size - 2, size - 3]) == ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "kind 'rwkv' .* not supported"),
        ({"tokenizer.ggml.pre": "martian"}, "pre-tokenizer 'martian' .* not supported"),
        ({"tokenizer.ggml.pre": 7}, "pre-tokenizer 7 .* not supported"),
        ({"tokenizer.ggml.tokens": []}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": np.zeros(3)}, "no vocabulary"),
        ({"tokenizer.ggml.token_type": np.zeros(3)}, "tokens and their types do not match"),
        ({"tokenizer.ggml.merges": None}, "it has no merges"),
        ({"tokenizer.ggml.merges": ["nospace"]}, "the merge 'nospace' forms no token"),
        ({"tokenizer.ggml.merges": ["Q Z"]}, "the merge 'Q Z' forms no token"),
        ({"tokenizer.ggml.model": "llama"}, "tokens and their scores do not match"),
    ],
)
def test_an_unusable_vocabulary_is_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(GgufError, match=sentence):
        build_tokenizer(greedy_vocabulary("gpt-2") | change)


def test_mlx_lm_loads_the_tokenizer_unchanged(tmp_path: Path) -> None:
    """transformers replaces tokenizers by classes of its own for some model types; ours must stay what it is."""
    from mlx_lm.tokenizer_utils import load as load_wrapped

    for model_type, pre in (("llama", "smollm"), ("qwen2", "qwen2"), ("qwen3", "qwen2"), ("phi3", "gpt-4o")):
        files = build_tokenizer(greedy_vocabulary(pre))
        (tmp_path / "tokenizer.json").write_text(files.tokenizer_json)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(files.tokenizer_config))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        wrapped = load_wrapped(tmp_path)
        assert wrapped.encode(SAMPLE) == Tokenizer.from_str(files.tokenizer_json).encode(SAMPLE).ids, model_type
