"""Tokenizers: a GGUF file's vocabulary as the tokenizer.json and tokenizer_config.json of a model folder; pure.

GGUF stores tokens with scores or merges and only *names* the way text is cut before merging ("pre-tokenizer"); the
patterns behind the names are here. Two kinds are supported: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`),
whose merges are not stored: they follow from the scores, since any two neighbours that form a token may merge and
the highest score goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from omlx_registry.gguf.container import GgufError

_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

# The contractions, words, numbers, punctuation and spaces of GPT-4's pattern, which most models vary in one place.
_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL_SLASH: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NO_LETTER: Final = r"[^\r\n\p{L}\p{N}]"

_LLAMA3: Final = _CONTRACTION + r"|" + _NO_LETTER + r"?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2: Final = _CONTRACTION + r"|" + _NO_LETTER + r"?\p{L}+|\p{N}" + _TAIL
_TEKKEN: Final = f"{_NO_LETTER}?{_UPPER}*{_LOWER}+|{_NO_LETTER}?{_UPPER}+{_LOWER}*" + r"|\p{N}" + _TAIL_SLASH
_GPT4O: Final = (
    f"{_NO_LETTER}?{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_NO_LETTER}?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}" + _TAIL_SLASH
)


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN35: Final = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER: Final = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3: Final = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_CJK: Final = "[一-龥ࠀ-一가-\ud7ff]+"
_DEEPSEEK_LLM: Final = (
    r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+",
)  # fmt: skip
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_FALCON: Final = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_VIKING: Final = (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}")


@dataclass(frozen=True, slots=True)
class _Cut:
    """How text is cut: by each pattern in turn, else by GPT-2's; digits one by one first where `digits`."""

    pattern: str | tuple[str, ...] | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False  # a piece that is a token needs no merges
    adds_bos: bool = False


_CUTS: Final[dict[str, _Cut]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "roberta-bpe"), _Cut()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _Cut(digits=True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _Cut(_LLAMA3, whole_words=True, adds_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _Cut(_LLAMA3)),
    # Qwen composes characters first (NFC); llama.cpp leaves that out.
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan"), _Cut(_QWEN2, nfc=True)),
    "stablelm2": _Cut(_QWEN2),
    "qwen35": _Cut(_QWEN35, nfc=True),
    "seed-coder": _Cut(_SEED_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _Cut(_DEEPSEEK_V3)),
    "deepseek-llm": _Cut(_DEEPSEEK_LLM),
    "deepseek-coder": _Cut(_DEEPSEEK_CODER),
    "falcon": _Cut(_FALCON),
    "viking": _Cut(_VIKING),
    "tekken": _Cut(_TEKKEN, whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _Cut(_GPT4O)),
}

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
    else:
        raise GgufError(f"tokenizers of kind {model!r} in GGUF files are not supported; 'gpt2' and 'llama' are")
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos))
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
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
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
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
    cut = _CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise GgufError(f"the pre-tokenizer {name!r} of the GGUF file is not supported")
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

    body = {
        "normalizer": {"type": "NFC"} if cut.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _pretokenizers(cut)},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(ids, pairs, ignore_merges=cut.whole_words),
    }
    return body, cut.adds_bos


def _pretokenizers(cut: _Cut) -> list[dict[str, Any]]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cut.pattern is None}
    steps: list[dict[str, Any]] = []
    if cut.digits:
        steps.append({"type": "Digits", "individual_digits": True})
    patterns = (cut.pattern,) if isinstance(cut.pattern, str) else cut.pattern or ()
    steps += [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return [*steps, level]


def cut_name(tokenizer: Mapping[str, Any]) -> str | None:
    """The pre-tokenizer's name for a byte-level tokenizer.json that cuts text as one of ours; None: there is none."""
    pre = tokenizer.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") if pre.get("type") == "Sequence" else [pre]
    normalizer = tokenizer.get("normalizer") or {}
    if normalizer.get("type") not in (None, "NFC"):
        return None
    # Where offsets are trimmed is no matter of which tokens there are.
    found = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps or []]
    whole = bool((tokenizer.get("model") or {}).get("ignore_merges"))
    for name, cut in _CUTS.items():
        ours = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in _pretokenizers(cut)]
        if ours == found and cut.nfc == bool(normalizer) and cut.whole_words == whole:
            return name
    return None


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
