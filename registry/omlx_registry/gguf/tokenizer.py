"""Tokenizers: a GGUF file's vocabulary as the tokenizer.json and tokenizer_config.json of a model folder; pure.

GGUF stores tokens with scores or merges and only *names* the way text is cut before merging ("pre-tokenizer"; see
`cuts`). Text generators have two kinds: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`), whose merges are not
stored: they follow from the scores, since any two neighbours that form a token may merge and the highest score goes
first. The kinds of encoders are in `encoder_tokenizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from omlx_registry.gguf.container import GgufError
from omlx_registry.gguf.cuts import CUTS, pretokenizers
from omlx_registry.gguf.encoder_tokenizers import unigram_body, word_piece_body, word_pieces

_SPECIAL_TOKENS: Final = (
    ("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"), ("cls", "cls"), ("sep", "seperator"),
    ("mask", "mask"),
)  # fmt: skip
"""Names in tokenizer_config.json and in the metadata, one of them misspelt there."""
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

# Control tokens that end a reply whichever of them the metadata calls "eos".
_ENDINGS: Final = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
    "<EOT>", "<|EOT|>", "<|return|>", "<|call|>", "<end_of_utterance>", "<|end_of_turn|>",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Texts of the two tokenizer files, the ids that end a reply (the metadata's own first) and the chat template."""

    tokenizer_json: str
    tokenizer_config: dict[str, Any]
    eos: list[int]
    chat_template: str | None


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    kinds: list[int]

    @property
    def ids(self) -> dict[str, int]:
        """Token → id; of tokens with equal text the first counts."""
        ids: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            ids.setdefault(token, index)
        return ids


def build_tokenizer(metadata: Mapping[str, Any]) -> TokenizerFiles:
    """Raises GgufError when the vocabulary is missing, damaged, or of a kind that is not supported."""
    model = metadata.get("tokenizer.ggml.model")
    vocabulary = _vocabulary(metadata)
    ids = vocabulary.ids
    bos, eos = _special(metadata, "bos", vocabulary), _special(metadata, "eos", vocabulary)
    if model == "gpt2":
        body, adds_bos = _byte_level(metadata, ids)
    elif model == "llama":
        body, adds_bos = _sentencepiece(metadata, vocabulary, ids)
    elif model == "gemma4":
        body, adds_bos = _merged_pieces(metadata, vocabulary, ids), True
    elif model == "bert":
        vocabulary = _Vocabulary(word_pieces(vocabulary.tokens, vocabulary.kinds), vocabulary.kinds)
        ids, adds_bos = vocabulary.ids, True
        bos, eos = _framing(metadata, vocabulary)
        ordinary = [it for it, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == _NORMAL]
        body = word_piece_body([it for it in ordinary if it[:1] != "["], ids, _unknown(metadata, vocabulary))
    elif model == "t5":
        adds_bos = False
        bos, eos = _framing(metadata, vocabulary)
        body = unigram_body(metadata, vocabulary.tokens, ids[_unknown(metadata, vocabulary)])
    else:
        raise GgufError(
            f"tokenizers of kind {model!r} in GGUF files are not supported; "
            "'gpt2', 'llama', 'gemma4', 'bert' and 't5' are"
        )
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos))
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", model in ("bert", "t5")))
    before = [bos] if adds_bos and bos is not None else []
    after = [eos] if adds_eos and eos is not None else []
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary, ids),
        **body,
        "post_processor": _frame(vocabulary, before, after),
    }
    text = msgspec.json.encode(tokenizer).decode()
    _check(text)
    template = metadata.get("tokenizer.chat_template")
    template = template if isinstance(template, str) and template else None
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": _context_length(metadata),
    }
    for name, key in _SPECIAL_TOKENS:
        token = _special(metadata, key, vocabulary)
        if token is not None:
            config[f"{name}_token"] = vocabulary.tokens[token]
    if template:
        config["chat_template"] = template
    return TokenizerFiles(text, config, _reply_ends(metadata, vocabulary), template)


def _vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise GgufError("the GGUF file has no vocabulary (tokenizer.ggml.tokens)")
    kinds = metadata.get("tokenizer.ggml.token_type")
    if kinds is None:
        return _Vocabulary(tokens, [_NORMAL] * len(tokens))
    if not isinstance(kinds, np.ndarray) or len(kinds) != len(tokens):
        raise GgufError("the GGUF file's vocabulary is damaged: tokens and their types do not match")
    return _Vocabulary(tokens, [int(kind) for kind in kinds])


def _special(metadata: Mapping[str, Any], name: str, vocabulary: _Vocabulary) -> int | None:
    token = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(token, int) or not 0 <= token < len(vocabulary.tokens):
        return None
    return token


def _framing(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[int | None, int | None]:
    """The tokens before and behind a text of an encoder."""
    found = [
        next((it for name in names if (it := _special(metadata, name, vocabulary)) is not None), None)
        for names in (("bos", "cls"), ("seperator", "separator", "eos"))
    ]
    return found[0], found[1]


def _unknown(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> str:
    """The token for text that has no other. Raises GgufError where there is none."""
    unknown = _special(metadata, "unknown", vocabulary)
    if unknown is None:
        unknown = next((index for index, token in enumerate(vocabulary.tokens) if token in ("[UNK]", "<unk>")), None)
    if unknown is None:
        raise GgufError("the GGUF file's vocabulary has no token for what is unknown")
    return vocabulary.tokens[unknown]


def _context_length(metadata: Mapping[str, Any]) -> int:
    length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return length if isinstance(length, int) and length > 0 else 1 << 30


def _reply_ends(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[int]:
    named = [_special(metadata, name, vocabulary) for name in ("eos", "eot", "eom")]
    marked = [
        index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (_CONTROL, _USER) and token in _ENDINGS
    ]
    return list(dict.fromkeys([index for index in named if index is not None] + marked))


def _added_tokens(vocabulary: _Vocabulary, ids: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER,
        }
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (_CONTROL, _USER, _UNKNOWN) and token and ids[token] == index
    ]


def _frame(vocabulary: _Vocabulary, before: list[int], after: list[int]) -> dict[str, Any] | None:
    """A post-processor that puts bos before and eos after the text; None where there is nothing to put."""
    if not before and not after:
        return None

    def side(text: str) -> list[dict[str, Any]]:
        tokens = [[{"SpecialToken": {"id": vocabulary.tokens[i], "type_id": 0}} for i in x] for x in (before, after)]
        return [*tokens[0], {"Sequence": {"id": text, "type_id": 0}}, *tokens[1]]

    used = {vocabulary.tokens[i]: {"id": vocabulary.tokens[i], "ids": [i], "tokens": [vocabulary.tokens[i]]}
            for i in [*before, *after]}  # fmt: skip
    return {"type": "TemplateProcessing", "single": side("A"), "pair": side("A") + side("B"), "special_tokens": used}


def _bpe(ids: dict[str, int], merges: list[list[str]], **other: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **other,
        "vocab": ids,
        "merges": merges,
    }


def _byte_level(metadata: Mapping[str, Any], ids: dict[str, int]) -> tuple[dict[str, Any], bool]:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name == "default":
        name = _likely_cut(metadata, ids)
    cut = CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise GgufError(f"the pre-tokenizer {name!r} of the GGUF file is not supported")
    pairs = _pairs(metadata, ids)
    body = {
        "normalizer": {"type": "NFC"} if cut.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pretokenizers(cut)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(ids, pairs, ignore_merges=cut.whole_words),
    }
    return body, cut.adds_bos


def _pairs(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> list[list[str]]:
    """The merges of the file as pairs."""
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise GgufError("the GGUF file's vocabulary is damaged: it has no merges (tokenizer.ggml.merges)")
    pairs = []
    for merge in merges:
        # The space between the two halves is never the first character.
        left, space, right = merge[:1], "", ""
        rest = merge[1:]
        head, space, right = rest.partition(" ")
        left += head
        if not space or left not in ids or right not in ids or left + right not in ids:
            raise GgufError(f"the GGUF file's vocabulary is damaged: the merge {merge!r} forms no token")
        pairs.append([left, right])
    return pairs


def _likely_cut(metadata: Mapping[str, Any], ids: Mapping[str, int]) -> str:
    """Files from before pre-tokenizers had names: the family tells, or a token only one family has."""
    if str(metadata.get("general.architecture")).startswith("qwen"):
        return "qwen2"
    return "llama-bpe" if "<|begin_of_text|>" in ids else "gpt-2"


def _sentencepiece(
    metadata: Mapping[str, Any], vocabulary: _Vocabulary, ids: dict[str, int]
) -> tuple[dict[str, Any], bool]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(vocabulary.tokens):
        raise GgufError("the GGUF file's vocabulary is damaged: tokens and their scores do not match")
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = _special(metadata, "unknown", vocabulary)
    body = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}
        if prefix
        else spaces,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _bpe(
            ids,
            _merges_from_scores(vocabulary, ids, [float(score) for score in scores]),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
        ),
    }
    return body, True


def _merged_pieces(metadata: Mapping[str, Any], vocabulary: _Vocabulary, ids: dict[str, int]) -> dict[str, Any]:
    """Gemma 4's: SentencePiece's pieces, but with merges that the file has."""
    unknown = _special(metadata, "unknown", vocabulary)
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": _bpe(
            ids,
            _pairs(metadata, ids),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
        ),
    }


def _merges_from_scores(vocabulary: _Vocabulary, ids: Mapping[str, int], scores: list[float]) -> list[list[str]]:
    """Every way to form a token of two tokens, best score first; equal scores in order of ids."""
    pieces = {token for token, index in ids.items() if vocabulary.kinds[index] in (_NORMAL, _USER)}
    ranked: list[tuple[float, int, int, list[str]]] = []
    for token in pieces:
        index = ids[token]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in pieces and right in pieces:
                ranked.append((-scores[index], ids[left], ids[right], [left, right]))
    ranked.sort()
    return [pair for *_, pair in ranked]


def _check(text: str) -> None:
    """Let the tokenizer library itself judge the result, before it is stored."""
    from tokenizers import Tokenizer

    try:
        Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise GgufError(f"the GGUF file's vocabulary is damaged: {error}") from error
