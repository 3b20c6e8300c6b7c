"""*Infilling* (fill-in-the-middle) asks for the text between a prefix and a suffix, which code models were trained on.

A Jinja chat template says nothing about it: the convention is read off the vocabulary, where each has its own tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Infill(NamedTuple):
    """One convention: its tokens and the order of the two texts."""

    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False

    def render(self, before: str, behind: str) -> str:
        """The prompt; the model goes on with what belongs between `before` and `behind`."""
        if self.suffix_first:
            # Mistral's: the prefix comes last, so that the model goes on where it ends.
            return f"{self.suffix}{behind}{self.prefix}{before}"
        return f"{self.prefix}{before}{self.suffix}{behind}{self.middle}"


KNOWN = (
    Infill("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    Infill("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    Infill("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    Infill("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    Infill("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    Infill("▁<PRE>", "▁<SUF>", "▁<MID>"),
    Infill("<PRE>", "<SUF>", "<MID>"),
    Infill("[PREFIX]", "[SUFFIX]", "[MIDDLE]", suffix_first=True),
)
"""Qwen2.5-Coder and CodeGemma, StarCoder and Granite, SantaCoder, DeepSeek-Coder, Yi-Coder, Code Llama, Codestral."""


def find_infill(tokens: Collection[str]) -> Infill | None:
    """The convention whose tokens the vocabulary has."""
    known = set(tokens)
    return next((kind for kind in KNOWN if known.issuperset(kind[:3])), None)
