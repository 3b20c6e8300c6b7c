"""*Nodes*: a parsed Go template as plain data. Statements write output or steer; expressions have a value."""

from __future__ import annotations

from typing import NamedTuple


class Dot(NamedTuple):
    line: int


class Nil(NamedTuple):
    line: int


class Constant(NamedTuple):
    """A string, boolean or number literal."""

    line: int
    value: str | bool | int | float | complex
    text: str
    """As it is written."""


class Field(NamedTuple):
    """`.A.B`"""

    line: int
    names: tuple[str, ...]


class Variable(NamedTuple):
    """`$x.A`: the name includes the dollar sign."""

    line: int
    name: str
    fields: tuple[str, ...]


class FieldChain(NamedTuple):
    """Fields of a parenthesised value: `(…).A.B`"""

    line: int
    of: Expression
    names: tuple[str, ...]


class Function(NamedTuple):
    line: int
    name: str


class Command(NamedTuple):
    """An operand, or a function and its arguments."""

    line: int
    arguments: tuple[Expression, ...]


class Pipe(NamedTuple):
    """`$a, $b := command | command`; each command's value is the last argument of the next."""

    line: int
    variables: tuple[str, ...]
    assigns: bool
    """`=` instead of `:=`"""
    commands: tuple[Command, ...]


Expression = Dot | Nil | Constant | Field | Variable | FieldChain | Function | Pipe


class Text(NamedTuple):
    line: int
    text: str


class Action(NamedTuple):
    line: int
    pipe: Pipe


class If(NamedTuple):
    line: int
    pipe: Pipe
    body: Block
    otherwise: Block


class With(NamedTuple):
    line: int
    pipe: Pipe
    body: Block
    otherwise: Block


class Range(NamedTuple):
    line: int
    pipe: Pipe
    body: Block
    otherwise: Block


class Call(NamedTuple):
    """`{{ template "name" pipe }}`"""

    line: int
    name: str
    pipe: Pipe | None


class Break(NamedTuple):
    line: int


class Continue(NamedTuple):
    line: int


Statement = Text | Action | If | With | Range | Call | Break | Continue
Block = tuple[Statement, ...]
