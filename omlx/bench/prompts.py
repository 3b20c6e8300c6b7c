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


_LEAST_WORDS = 8


class PromptWriter:
    """`begin` makes one run's texts differ from another's. How long words are in tokens is learned from the server."""

    def __init__(self, begin: str, words: Sequence[str] = WORDS, ask: str = STORY) -> None:
        self._random = random.Random(begin)  # noqa: S311 - not for secrets
        self._words = words
        self._ask = ask
        self._tokens_per_word = 1.4
        self._around = 40.0
        """Tokens of a prompt that are not its text: the chat template's, and the demand for a long answer."""

    def text(self, tokens: float) -> str:
        """About `tokens` tokens of words, unlike every other text from the first word on; never less than 8 words."""
        return self._drawn(max(_LEAST_WORDS, round(tokens / self._tokens_per_word)))

    def prompt(self, tokens: int) -> str:
        """Such a text with the demand for a long answer behind it: as one message it comes to about `tokens` tokens."""
        return f"{self.text(tokens - self._around)} {self._ask}"

    def prompt_of(self, words: int) -> str:
        """The same of so many words, to learn from."""
        return f"{self._drawn(words)} {self._ask}"

    def learn(self, words: tuple[int, int], counted: tuple[int, int]) -> None:
        """Prompts of so many words each, the shorter first, came to so many tokens. Nonsense is not believed."""
        rate = (counted[1] - counted[0]) / (words[1] - words[0])
        if rate > 0:
            self._tokens_per_word = rate
            self._around = max(0.0, counted[0] - words[0] * rate)

    def _drawn(self, count: int) -> str:
        return " ".join(self._random.choices(self._words, k=count))
