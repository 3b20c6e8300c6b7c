"""What a reply is held to: a *grammar* for its text, and a limit on its thinking.

The prompting package puts them together in the model's own markers, the engine makes matchers of them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextTerminal(msgspec.Struct, frozen=True):
    """A text that obeys a JSON schema as it is, without quotes."""

    schema: dict[str, Any]
    without: str = ""
    """It does not contain this."""


class Grammar(msgspec.Struct, frozen=True):
    """What the reply must look like."""

    kind: Literal["json", "schema", "regex", "lark", "gbnf"]
    source: str | dict[str, Any] = ""
    """The schema (object or text), regular expression, Lark or GBNF text; unused for "json" (any object)."""
    schemas: dict[str, dict[str, Any]] = {}
    """JSON schemas that Lark text refers to as `@name`."""
    texts: dict[str, TextTerminal] = {}
    """Texts that Lark text refers to as terminals of these names."""
    opening: str = ""
    """With this the reply either begins with this text and is free until `after`, or obeys the grammar at once."""
    after: str = ""
    """The grammar begins once the reply contains this text (say, the end of thinking); "": at once."""
    trusted: bool = False
    """It was put together here, not by a client: its text may be long."""


class ThinkLimit(msgspec.Struct, frozen=True):
    """How long the reply may think, and how its thinking is marked."""

    budget: int
    """Tokens; all thinking of the reply together."""
    opening: str
    closing: str
    ending: str
    """What is put into the reply where the budget is used up."""
    open: bool = False
    """The prompt ends inside of thinking."""
    anywhere: bool = False
    """Thinking may begin anywhere in the reply, and several times; else only at its start."""
