"""Cuts: how byte-level tokenizers cut text before merging, by the names that GGUF files have for it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
class Cut:
    """How text is cut: by each pattern in turn, else by GPT-2's; digits one by one first where `digits`."""

    pattern: str | tuple[str, ...] | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False  # a piece that is a token needs no merges
    adds_bos: bool = False


CUTS: Final[dict[str, Cut]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "roberta-bpe"), Cut()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), Cut(digits=True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        Cut(_LLAMA3, whole_words=True, adds_bos=True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), Cut(_LLAMA3)),
    # Qwen composes characters first (NFC); llama.cpp leaves that out.
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan"), Cut(_QWEN2, nfc=True)),
    "stablelm2": Cut(_QWEN2),
    "qwen35": Cut(_QWEN35, nfc=True),
    "seed-coder": Cut(_SEED_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), Cut(_DEEPSEEK_V3)),
    "deepseek-llm": Cut(_DEEPSEEK_LLM),
    "deepseek-coder": Cut(_DEEPSEEK_CODER),
    "falcon": Cut(_FALCON),
    "viking": Cut(_VIKING),
    "tekken": Cut(_TEKKEN, whole_words=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Cut(_GPT4O)),
}


def pretokenizers(cut: Cut) -> list[dict[str, Any]]:
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
    # `trim_offsets` does not change the tokens.
    found = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps or []]
    whole = bool((tokenizer.get("model") or {}).get("ignore_merges"))
    for name, cut in CUTS.items():
        ours = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in pretokenizers(cut)]
        if ours == found and cut.nfc == bool(normalizer) and cut.whole_words == whole:
            return name
    return None
