"""Limits of tokenizer files: how large they are, and how much longer their steps may make a text.

tokenizer.json is a small program: normalizers rewrite the text one after the other, and each may multiply its length.
A file of a kilobyte can so make a gigabyte of a word, already while it is loaded (added tokens are normalized then).
The *growth* of a chain of steps is the product of what each can do to one character, in characters; real tokenizers
stay below 4. The vocabulary is not looked at: its size is that of the file.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from omlx_registry.errors import InvalidModel

MAX_TOKENIZER_BYTES: Final = 128 << 20
"""Of one tokenizer file; the largest known have 35 MB."""
MAX_STEPS: Final = 64
"""Of one chain: normalizers, pre-tokenizers, decoders or post-processors."""
MAX_GROWTH: Final = 64
MAX_PATTERN: Final = 16_384
"""Characters of a regular expression; the longest known has 1,500."""
MAX_CONTENT: Final = 1024
"""Characters of what a step puts in."""
MAX_ADDED_TOKENS: Final = 400_000
MAX_ADDED_LENGTH: Final = 4096
MAX_PADDING: Final = 1 << 20
_UNICODE_GROWTH: Final = 18
"""Characters that Unicode's normal forms make of one at most (U+FDFA)."""
_BYTES_OF_A_CHARACTER: Final = 4
_NORMAL_FORMS: Final = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Precompiled"})
_MAX_MAPPED: Final = 256
"""Bytes that a precompiled character map may put in place of one character; Unicode's longest has 33."""
_FILES: Final = ("*.json", "*.model", "*.tiktoken", "*.txt", "*.bpe")


class _AddedToken(msgspec.Struct):
    content: str = ""


class _Tokenizer(msgspec.Struct):
    """tokenizer.json without its model."""

    added_tokens: list[_AddedToken] | None = None
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None
    padding: dict[str, Any] | None = None


def check_tokenizer_files(folder: Path) -> None:
    """Raises InvalidModel where a tokenizer file in `folder` is beyond the limits."""
    for pattern in _FILES:
        for file in folder.glob(pattern):
            if file.is_file():
                check_size(file.name, file.stat().st_size)
    path = folder / "tokenizer.json"
    if path.is_file():
        check_tokenizer(path.read_bytes())


def check_size(name: str, size: int) -> None:
    """Raises InvalidModel."""
    if size > MAX_TOKENIZER_BYTES:
        raise InvalidModel(f"{name} has {size:,} bytes: at most {MAX_TOKENIZER_BYTES:,} are taken")


def check_tokenizer(data: bytes) -> None:
    """Raises InvalidModel where the tokenizer.json that these bytes are is damaged or beyond the limits."""
    try:
        tokenizer = msgspec.json.decode(data, type=_Tokenizer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModel(f"tokenizer.json is damaged: {error}") from error
    added = tokenizer.added_tokens or []
    if len(added) > MAX_ADDED_TOKENS:
        raise _beyond(f"has {len(added):,} added tokens", f"{MAX_ADDED_TOKENS:,}")
    longest = max((len(token.content) for token in added), default=0)
    if longest > MAX_ADDED_LENGTH:
        raise _beyond(f"has an added token of {longest:,} characters", f"{MAX_ADDED_LENGTH:,}")
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        chain = getattr(tokenizer, name)
        if chain is not None:
            _check_chain(name, list(_steps(chain)))
    _check_padding(tokenizer.padding)


def _beyond(what: str, limit: str) -> InvalidModel:
    return InvalidModel(f"tokenizer.json {what}: at most {limit} are taken")


def _steps(step: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The steps of a chain in order, sequences opened."""
    if not isinstance(step, dict) or depth > MAX_STEPS:
        raise InvalidModel("tokenizer.json is damaged: a step is no object, or lies too deep")
    for key in ("normalizers", "pretokenizers", "processors", "decoders"):
        if isinstance(step.get(key), list):
            for inner in step[key]:
                yield from _steps(inner, depth + 1)
            return
    yield step


def _check_chain(name: str, steps: list[dict[str, Any]]) -> None:
    if len(steps) > MAX_STEPS:
        raise _beyond(f"has {len(steps):,} steps in its {name}", str(MAX_STEPS))
    growth, normalized = 1.0, False
    for step in steps:
        for text in _texts(step):
            if len(text) > MAX_CONTENT:
                raise _beyond(f"has a step that puts in {len(text):,} characters", f"{MAX_CONTENT:,}")
        pattern = _pattern(step)
        if len(pattern) > MAX_PATTERN:
            raise _beyond(f"has a pattern of {len(pattern):,} characters", f"{MAX_PATTERN:,}")
        # One normal form is what real tokenizers have; only between steps that put such characters in can more of them
        # multiply anything.
        grows = _growth(step)
        growth *= grows / _UNICODE_GROWTH if step.get("type") in _NORMAL_FORMS and not normalized else grows
        normalized |= step.get("type") in _NORMAL_FORMS
        if name == "post_processor":
            _check_template(step)
    if growth > MAX_GROWTH:
        raise InvalidModel(f"tokenizer.json makes a text {growth:,.0f} times as long: at most {MAX_GROWTH} is taken")


def _texts(step: dict[str, Any]) -> list[str]:
    return [step[key] for key in ("content", "prepend", "replacement", "suffix") if isinstance(step.get(key), str)]


def _pattern(step: dict[str, Any]) -> str:
    pattern = step.get("pattern")
    if isinstance(pattern, dict):
        pattern = next((value for value in pattern.values() if isinstance(value, str)), "")
    return pattern if isinstance(pattern, str) else ""


def _growth(step: dict[str, Any]) -> float:
    """How many characters a step can make of one, at most."""
    kind = step.get("type")
    if kind == "Replace":
        content, pattern = step.get("content"), step.get("pattern")
        length = len(content) if isinstance(content, str) else 0
        # A regular expression may match nothing, in front of every character and behind the last.
        if isinstance(pattern, dict) and "Regex" in pattern:
            return max(1.0, length if _needs_a_character(_pattern(step)) else length + 1)
        return max(1.0, length / max(1, len(_pattern(step))))
    if kind == "Precompiled":
        return max(float(_UNICODE_GROWTH), _longest_mapped(step) / 2)
    if kind == "ByteLevel":
        return _BYTES_OF_A_CHARACTER
    return _UNICODE_GROWTH if kind in _NORMAL_FORMS else 1.0


def _needs_a_character(pattern: str) -> bool:
    """Whether a regular expression surely matches no empty text. Simple ones only; of others it is not known."""
    return pattern.isalnum() or pattern in {r"\s+", r"\s", " +", " ", r" {2,}", r"\n", r"\n+", "[ ]+"}


def _longest_mapped(step: dict[str, Any]) -> int:
    """Bytes of the longest text in a SentencePiece character map: after a trie come texts that end with a zero."""
    blob = step.get("precompiled_charsmap")
    if not blob:
        return 1
    try:
        data = base64.b64decode(blob)
        (size,) = struct.unpack_from("<I", data)
    except (binascii.Error, struct.error, TypeError, ValueError) as error:
        raise InvalidModel("tokenizer.json is damaged: precompiled_charsmap cannot be read") from error
    longest = max((len(text) for text in data[4 + size :].split(b"\0")), default=1)
    if longest > _MAX_MAPPED:
        raise _beyond(f"has a character map that puts in {longest:,} bytes", str(_MAX_MAPPED))
    return longest


def _check_template(step: dict[str, Any]) -> None:
    """A template post-processor adds these tokens to every text."""
    tokens = step.get("special_tokens")
    added = 0
    if isinstance(tokens, dict):
        added = sum(len(token.get("ids", ())) for token in tokens.values() if isinstance(token, dict))
    pieces = [len(step[key]) for key in ("single", "pair") if isinstance(step.get(key), list)]
    most = max([added, *pieces])
    if most > MAX_CONTENT:
        raise _beyond(f"puts {most:,} tokens around every text", f"{MAX_CONTENT:,}")


def _check_padding(padding: dict[str, Any] | None) -> None:
    strategy = (padding or {}).get("strategy")
    fixed = strategy.get("Fixed") if isinstance(strategy, dict) else 0
    multiple = (padding or {}).get("pad_to_multiple_of") or 0
    for length in (fixed, multiple):
        if not isinstance(length, int) or length > MAX_PADDING:
            raise _beyond("pads every text to more tokens", f"{MAX_PADDING:,}")
