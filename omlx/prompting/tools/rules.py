"""*Rules* write a family's tool calls as a grammar, for replies that have to be calls: the readers turned round.

The text is Lark as llguidance reads it. Markers that are tokens of their own can only be named by id there; the
schemas of arguments stand beside the text and are referred to as `@name`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from omlx.messages.constraint import TextTerminal
from omlx.prompting.tools.parameters import ANNOTATIONS, Parameter, by_itself, choices_of, schema_types
from omlx.prompting.tools.ways import ways_of

_BREAK = "\n"
_ANYTHING = r"/(.|\n)*/"
_NO_OBJECT = r"/([ \n]*[^ \n{\[](.|\n)*)?/"
"""A text that cannot be taken for a call in plain JSON."""


class OfferedTool(NamedTuple):
    """A tool, and the JSON schema of its arguments: always one of an object."""

    name: str
    schema: dict[str, Any]
    properties: Sequence[Parameter] = ()
    """The arguments of one way to call it (`Rules.each_way`)."""


class CallGrammar(NamedTuple):
    source: str
    schemas: dict[str, dict[str, Any]]
    texts: dict[str, TextTerminal]


def offered(tools: Collection[Any], only: str | None = None) -> list[OfferedTool]:
    """Tools in OpenAI's shape; `only`: just the one of this name. Entries of another shape are passed over."""
    found = []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        if only is not None and function["name"] != only:
            continue
        given = function.get("parameters")
        schema = {**given} if isinstance(given, dict) else {}
        schema["type"] = "object"  # a tool without parameters comes with ""
        if not isinstance(schema.get("properties"), dict):
            schema["properties"] = {}
        found.append(OfferedTool(function["name"], schema))
    return found


class Rules:
    """The rules of one grammar. Methods return expressions to be put together; blanks between them mean sequence."""

    def __init__(self, tools: Sequence[OfferedTool], tokens: Mapping[str, int], *, many: bool) -> None:
        """`tokens`: the added tokens of the vocabulary and their ids; `many`: several calls are allowed."""
        self.tools = tools
        self._many = many
        self._tokens = tokens
        self._marks = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
        self._rules: list[str] = []
        self._schemas: dict[str, dict[str, Any]] = {}
        self._texts: dict[str, TextTerminal] = {}
        self._properties: dict[tuple[int, str], str] = {}
        """Names of arguments' schemas, by the tool's schema and what they say: many are the same."""
        self._opened = ""
        """A text that calls begin with, and that is there already."""
        self._left_out = False
        """It was, of a text."""

    def grammar(self, start: str) -> CallGrammar:
        return CallGrammar("\n".join([f"start: {start}", *self._rules]), self._schemas, self._texts)

    @property
    def count(self) -> int:
        return len(self._rules)

    def knows(self, mark: str) -> bool:
        """Whether the vocabulary has this token."""
        return mark in self._tokens

    def rule(self, expression: str, attributes: str = "") -> str:
        """A rule of its own; returns its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {expression}")
        return name

    def text(self, literal: str) -> str:
        """Exactly this text."""
        if self._opened and literal.startswith(self._opened):
            literal, self._left_out = literal.removeprefix(self._opened), True
        return " ".join(self._token(part) or _quoted(part) for part in self._parts(literal))

    def free(self) -> str:
        """Any text, without tokens that are markers."""
        return self.rule(_ANYTHING)

    def until(self, marker: str, schema: dict[str, Any] | None = None) -> str:
        """A text up to `marker`, and the marker. `schema`: what the text obeys; None: any text will do."""
        first, *rest = self._parts(marker)
        token = self._token(first)
        if schema is None:
            begin = f"{self.free()} {token}" if token else self.rule(_ANYTHING, f"[suffix={_quoted(first)}]")
        else:
            name = f"T{len(self._texts)}"
            self._texts[name] = TextTerminal(schema, "" if token else first)
            begin = f"{self.rule(name)} {token}" if token else self.rule(name, f"[suffix={_quoted(first)}]")
        return " ".join([begin, *(self._token(part) or _quoted(part) for part in rest)])

    def calls_in_text(self, opening: str, call: str) -> str:
        """Any text, in which `opening` begins a call."""
        first, *rest = self._parts(opening)
        token = self._token(first)
        begin = f"{self.free()} {token}" if token else self.rule(f"{_ANYTHING} {_quoted(first)}", "[lazy]")
        behind = " ".join([*(self._token(part) or _quoted(part) for part in rest), call])
        return f"({self.rule(f'{begin} {behind}')})* {self.free()}"

    def calls_or_text(self, write: Callable[[Rules], str], openings: Sequence[str]) -> str:
        """Any text, in which calls must be as `write` has them. Where nothing marks one it is the whole of the text."""
        plain = self._trial(write, "")
        opening = next((one for one in openings if self._trial(write, one) != plain), "")
        if not opening:
            return f"{write(self)} | {self.rule(_NO_OBJECT)}"
        if self._token(self._parts(opening)[0]):
            return f"({self.rule(f'{self.free()} {write(self)}')})* {self.free()}"
        self._opened = opening
        behind = write(self)
        self._opened = ""
        return self.calls_in_text(opening, behind)

    def _trial(self, write: Callable[[Rules], str], opened: str) -> list[str]:
        """What becomes of calls after a text that is there already."""
        trial = Rules(self.tools, self._tokens, many=False)
        trial._opened = opened
        return [write(trial), *trial._rules]

    def json(self, schema: dict[str, Any]) -> str:
        """A JSON value that obeys the schema."""
        name = f"s{len(self._schemas)}"
        self._schemas[name] = schema
        return f"@{name}"

    def value(self, tool: OfferedTool, schema: Any, marker: str) -> str:
        """An argument written as text, up to `marker`: as it is where it may be text, else as JSON."""
        types = schema_types(schema, tool.schema)
        if types and "string" not in types:
            return f"{self.property(tool, schema)} {self.text(marker)}"
        says_more = isinstance(schema, dict) and not schema.keys() <= {"type"} | ANNOTATIONS
        return self.until(marker, by_itself(schema, tool.schema) if says_more else None)

    def quoted(self, tool: OfferedTool, schema: Any, quote: str) -> str:
        """An argument of a family that has quotes of its own around texts: a text between them, or else JSON."""
        types, choices = schema_types(schema, tool.schema), choices_of(schema) if isinstance(schema, dict) else []
        if (types and "string" not in types) or (choices and not any(isinstance(choice, str) for choice in choices)):
            return self.property(tool, schema)
        others = sorted(types - {"string"})
        if not others:
            return f"{self.text(quote)} {self.value(tool, schema, quote)}"
        text = f"{self.text(quote)} {self.value(tool, {'allOf': [schema, {'type': 'string'}]}, quote)}"
        return f"{text} | {self.property(tool, {'allOf': [schema, {'type': others}]})}"

    def property(self, tool: OfferedTool, schema: Any) -> str:
        """One argument as JSON; it may refer to other parts of the whole."""
        try:
            key = (id(tool.schema), json.dumps(schema, sort_keys=True, default=str))
        except RecursionError:  # refused where it is compiled
            return self.json(by_itself(schema, tool.schema))
        if key not in self._properties:
            self._properties[key] = self.json(by_itself(schema, tool.schema))
        return self._properties[key]

    def each(self, one: Callable[[OfferedTool], str]) -> str:
        """Any of the tools."""
        return self.rule(" | ".join(self.rule(one(tool)) for tool in self.tools))

    def each_way(self, one: Callable[[OfferedTool], str]) -> str:
        """The same for families that write each argument by itself: any of the ways to call any of the tools."""
        ways = [tool._replace(properties=way) for tool in self.tools for way in ways_of(tool.schema)]
        return self.rule(" | ".join(self.rule(one(way)) for way in ways))

    def repeated(self, call: str, between: str = "\n") -> str:
        """`call`, once or more often. A line break between them may be left out."""
        if not self._many or self._left_out:
            return call  # where each call has an opening of its own, what follows it is text again
        call = self.rule(call)
        return f"{call} ({self.text(between)}{'?' if between == _BREAK else ''} {call})*"

    def separated(self, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """Items in order with a separator between them; those that are not required may be missing."""
        begun = unbegun = '""'
        for expression, required in reversed(items):
            item = self.rule(expression)
            later = self.rule(f"{self.text(separator)} {item} {begun}" + ("" if required else f" | {begun}"))
            unbegun = self.rule(f"{item} {begun}" + ("" if required else f" | {unbegun}"))
            begun = later
        return unbegun

    def _parts(self, literal: str) -> list[str]:
        parts, end = [], 0
        for match in self._marks.finditer(literal):
            parts += [literal[end : match.start()], match.group()]
            end = match.end()
        return [part for part in (*parts, literal[end:]) if part] or [""]

    def _token(self, part: str) -> str:
        return f"<[{self._tokens[part]}]>" if part in self._tokens else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def json_call(
    rules: Rules, tool: OfferedTool, name_key: str = "name", arguments_key: str = "arguments", closing: str = "}"
) -> str:
    """`{"name": "f", "arguments": {…}}`"""
    head = f'{{"{name_key}": {json.dumps(tool.name, ensure_ascii=False)}, "{arguments_key}": '
    return f"{rules.text(head)} {rules.json(tool.schema)} {rules.text(closing)}"


def bare_call(rules: Rules, arguments_key: str = "arguments") -> str:
    """One call as JSON that nothing marks."""
    return rules.each(lambda tool: json_call(rules, tool, arguments_key=arguments_key))
