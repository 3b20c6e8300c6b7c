"""Tokenizers of encoders in GGUF files: WordPiece (`bert`) and SentencePiece's unigram model (`t5`); pure.

A file of the first kind marks the start of a word with "▁" in place of the "##" that goes on with one, and says nothing
of how text is normalized: llama.cpp takes accents and capitals away, as BERT's "uncased" models do.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from omlx_registry.gguf.container import GgufError

_START: Final = "▁"
_CONTROL: Final = 3
_LONGEST_WORD: Final = 100


def word_pieces(tokens: Sequence[str], kinds: Sequence[int]) -> list[str]:
    """The vocabulary as BERT's own files have it."""
    return [
        token if kind == _CONTROL else token[1:] if token.startswith(_START) else f"##{token}"
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def word_piece_body(pieces: Sequence[str], ids: Mapping[str, int], unknown: str) -> dict[str, Any]:
    """The content of tokenizer.json. `pieces`: of ordinary words; `unknown`: the token for text without one."""
    cased = any(piece != piece.lower() for piece in pieces)
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": not cased,
            "lowercase": not cased,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": _LONGEST_WORD,
            "vocab": ids,
        },
    }


def unigram_body(metadata: Mapping[str, Any], tokens: Sequence[str], unknown: int) -> dict[str, Any]:
    """The content of tokenizer.json. Raises GgufError where scores or the character map are damaged."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens):
        raise GgufError("the GGUF file's vocabulary is damaged: tokens and their scores do not match")
    steps: list[dict[str, Any]] = []
    characters = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if characters is not None:
        if not isinstance(characters, np.ndarray) or characters.dtype.itemsize != 1:
            raise GgufError("the GGUF file's vocabulary is damaged: its character map is no list of bytes")
        encoded = base64.b64encode(characters.tobytes()).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if metadata.get("tokenizer.ggml.remove_extra_whitespaces", False):
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    spaces = {
        "type": "Metaspace",
        "replacement": _START,
        "prepend_scheme": "always" if metadata.get("tokenizer.ggml.add_space_prefix", True) else "never",
        "split": True,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": [[token, float(score)] for token, score in zip(tokens, scores.tolist(), strict=True)],
            "byte_fallback": False,
        },
    }
