"""Prompts that nobody has sent before, of about a wanted number of tokens.

A benchmark that repeats itself measures the server's cache. Every text here begins with words drawn for it alone, so
nothing is cached unless a measurement wants it to be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_LIST = """
amber anchor apple arrow autumn bakery basket beacon bridge bronze button candle canyon carpet castle cedar cherry
circle cloud coffee copper corner cotton cradle desert dinner dragon eagle engine family feather field finger flower
forest garden ginger glacier grain harbor hammer harvest hollow honey island jacket jungle kettle kitchen ladder lantern
lemon letter library lion market meadow mirror morning mountain music needle ocean olive orange orchard paper parrot
pencil pepper picture pillow planet pocket prairie quarry rabbit ribbon river rocket saddle sailor salmon school season
shadow shelter silver singer spider spring station stone summer sunset table temple thunder tiger timber tower tunnel
valley velvet village violin walnut water weather whistle willow window winter wizard yellow zebra
"""
WORDS = tuple(_LIST.split())
STORY = "Tell a very long story in which some of these words occur. Do not stop before it has twenty chapters."
"""Asks for an answer that does not end by itself before the measurement does."""


class Writer:
    """`begin` makes one run's texts differ from another's; `learn` corrects the length by what a server has counted."""

    def __init__(self, begin: str, words: Sequence[str] = WORDS, ask: str = STORY) -> None:
        self._random = random.Random(begin)  # noqa: S311 - not for secrets
        self._words = words
        self.ask = ask
        self.words_per_token = 0.75

    def text(self, tokens: int) -> str:
        """About `tokens` tokens of words, unlike every other text from the first word on."""
        count = max(8, round(tokens * self.words_per_token))
        return " ".join(self._random.choices(self._words, k=count))

    def prompt(self, tokens: int) -> str:
        """Such a text with the demand for a long answer behind it."""
        return f"{self.text(tokens)} {self.ask}"

    def learn(self, tokens: int, counted: int) -> None:
        """A text asked for with `tokens` came to `counted` tokens (template included); 0: the server did not say."""
        if counted:
            self.words_per_token *= tokens / counted
