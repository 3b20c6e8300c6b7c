"""The *evaluator* runs a parsed Go template over data and writes text, within bounds of time, size and depth."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from omlx.prompting.errors import MAX_CPU_S, TemplateError, TemplateTooSlow
from omlx.prompting.gotemplate import nodes
from omlx.prompting.gotemplate.functions import FUNCTIONS, LAZY
from omlx.prompting.gotemplate.nodes import Block, Expression, Pipe, Statement
from omlx.prompting.gotemplate.values import MAX_TEXT, Struct, is_true, sorted_items, to_text, type_name

_MAX_ARGUMENTS = 1 << 24
"""Characters of all arguments of one call: what a function makes of them may be several times as long."""
_FEW_VARIABLES = 100
"""Looking for one among more takes as long as a statement."""
MAX_CALLS = 40
"""Templates within templates. Go allows 100,000; Python's stack is the limit here."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def execute(templates: Mapping[str, Block], data: Any, *, cpu_s: float = MAX_CPU_S) -> str:
    """The output of the template named "". Raises TemplateError."""
    return _Run(templates, time.thread_time() + cpu_s).whole(data)


class _Run:
    def __init__(self, templates: Mapping[str, Block], deadline: float) -> None:
        self._templates = templates
        self._deadline = deadline
        self._out: list[str] = []
        self._size = 0
        self._built = 0
        """Characters and entries of lists that functions returned: no more are held at any time."""
        self._variables: list[tuple[str, Any]] = []
        self._calls = 0
        self._name = ""

    def whole(self, data: Any) -> str:
        self._variables = [("$", data)]
        try:
            self._block(self._templates[""], data)
        except RecursionError as error:
            raise TemplateError("template: the template nests too deeply") from error
        return "".join(self._out)

    def _fail(self, line: int, message: str) -> TemplateError:
        return TemplateError(self._where(line) + message)

    def _where(self, line: int) -> str:
        return f'template: :{line}: executing "{self._name}": '

    def _check_time(self, line: int) -> None:
        if time.thread_time() > self._deadline:
            raise TemplateTooSlow(self._where(line) + "the template takes too long")

    def _write(self, text: str, line: int) -> None:
        self._size += len(text)
        if self._size > MAX_TEXT:
            raise self._fail(line, "the output is too large")
        self._out.append(text)

    # ------------------------------------------------------------ statements
    def _block(self, block: Block, dot: Any) -> None:
        for statement in block:
            self._check_time(statement.line)
            self._statement(statement, dot)

    def _statement(self, statement: Statement, dot: Any) -> None:
        match statement:
            case nodes.Text(line, text):
                self._write(text, line)
            case nodes.Action(line, pipe):
                value = self._pipe(pipe, dot)
                if not pipe.variables:
                    self._write(to_text(value), line)
            case nodes.If() | nodes.With():
                self._choose(statement, dot)
            case nodes.Range():
                self._range(statement, dot)
            case nodes.Call(line, name, argument):
                self._call(line, name, None if argument is None else self._pipe(argument, dot))
            case nodes.Break():
                raise _Break
            case nodes.Continue():
                raise _Continue

    def _choose(self, statement: nodes.If | nodes.With, dot: Any) -> None:
        kept = len(self._variables)
        value = self._pipe(statement.pipe, dot)
        if is_true(value):
            self._block(statement.body, value if isinstance(statement, nodes.With) else dot)
        else:
            self._block(statement.otherwise, dot)
        del self._variables[kept:]

    def _range(self, statement: nodes.Range, dot: Any) -> None:
        kept = len(self._variables)
        value = self._pipe(statement.pipe, dot, declare=False)
        names = statement.pipe.variables
        entries = self._entries(value, statement.line)
        if len(names) == 2 and isinstance(value, int):
            raise self._fail(statement.line, f"can't use {value} to iterate over more than one variable")
        empty = True
        try:
            for key, item in entries:
                empty = False
                self._check_time(statement.line)
                pairs = list(zip(names, (key, item) if len(names) == 2 else (item,), strict=False))
                mark = len(self._variables)
                for name, bound in pairs:
                    self._bind(name, bound, statement.pipe)
                with contextlib.suppress(_Continue):
                    self._block(statement.body, item)
                del self._variables[mark:]
        except _Break:
            pass
        del self._variables[kept:]
        if empty:
            for name in names:
                self._bind(name, None, statement.pipe)
            self._block(statement.otherwise, dot)
            del self._variables[kept:]

    def _entries(self, value: Any, line: int) -> Any:
        match value:
            case None:
                return ()
            case bool() | str():
                pass
            case int():
                return ((number, number) for number in range(value))
            case Mapping():
                return sorted_items(value)
            case Sequence():
                return enumerate(value)
        raise self._fail(line, f"range can't iterate over {to_text(value, top=False)}")

    def _call(self, line: int, name: str, dot: Any) -> None:
        if name not in self._templates:
            raise self._fail(line, f'template "{name}" not defined')
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise self._fail(line, f"exceeded maximum template depth ({MAX_CALLS})")
        outer = self._variables, self._name
        self._variables, self._name = [("$", dot)], name
        self._block(self._templates[name], dot)
        self._variables, self._name = outer
        self._calls -= 1

    # ------------------------------------------------------------ expressions
    def _bind(self, name: str, value: Any, pipe: Pipe) -> None:
        if not pipe.assigns:
            self._variables.append((name, value))
            return
        for place in range(len(self._variables) - 1, -1, -1):
            if self._variables[place][0] == name:
                self._variables[place] = (name, value)
                return
        raise self._fail(pipe.line, f"undefined variable: {name}")

    def _pipe(self, pipe: Pipe, dot: Any, *, declare: bool = True) -> Any:
        value: Any = None
        for index, command in enumerate(pipe.commands):
            value = self._command(command, dot, (value,) if index else ())
        if declare:
            for name in pipe.variables:
                self._bind(name, value, pipe)
        return value

    def _command(self, command: nodes.Command, dot: Any, piped: tuple[Any, ...]) -> Any:
        first, *arguments = command.arguments
        if isinstance(first, nodes.Function):
            return self._function(first, arguments, dot, piped)
        if isinstance(first, nodes.Nil):
            raise self._fail(first.line, "nil is not a command")
        value = self._value(first, dot)
        if arguments or piped:
            what = "can't give argument to non-function"
            raise self._fail(first.line, what)
        return value

    def _function(self, function: nodes.Function, arguments: list[Expression], dot: Any, piped: tuple[Any, ...]) -> Any:
        if function.name in LAZY:
            return self._lazy(function, arguments, dot, piped)
        self._check_time(function.line)
        values = [self._value(argument, dot) for argument in arguments]
        if sum(len(value) for value in (*values, *piped) if isinstance(value, str)) > _MAX_ARGUMENTS:
            raise self._fail(function.line, f"the arguments of {function.name} are too large")
        try:
            result = FUNCTIONS[function.name](*values, *piped)
        except TemplateError as error:
            raise self._fail(function.line, f"error calling {function.name}: {error}") from None
        except TypeError:
            count = len(values) + len(piped)
            raise self._fail(function.line, f"wrong number of args for {function.name}: got {count}") from None
        except (OverflowError, ValueError, MemoryError) as error:
            raise self._fail(function.line, f"error calling {function.name}: {error}") from None
        if isinstance(result, str | list):
            self._built += len(result)
            if self._built > MAX_TEXT:
                raise self._fail(function.line, "the texts that the template makes are too large")
        return result

    def _lazy(self, function: nodes.Function, arguments: list[Expression], dot: Any, piped: tuple[Any, ...]) -> Any:
        """`and` and `or` stop at the first value that decides."""
        if not arguments and not piped:
            raise self._fail(function.line, f"wrong number of args for {function.name}: want at least 1 got 0")
        value: Any = None
        for argument in arguments:
            value = self._value(argument, dot)
            if is_true(value) == (function.name == "or"):
                return value
        return piped[0] if piped else value

    def _value(self, node: Expression, dot: Any) -> Any:
        match node:
            case nodes.Dot():
                return dot
            case nodes.Nil():
                return None
            case nodes.Constant(line, value, _):
                if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                    raise self._fail(line, f"{value} overflows int")
                return value
            case nodes.Field(line, names):
                return self._fields(dot, names, line)
            case nodes.Variable(line, name, names):
                return self._fields(self._lookup(name, line), names, line)
            case nodes.FieldChain(line, inner, names):
                return self._fields(self._value(inner, dot), names, line)
            case nodes.Function():
                return self._function(node, [], dot, ())
            case nodes.Pipe():
                return self._pipe(node, dot)

    def _lookup(self, name: str, line: int) -> Any:
        if len(self._variables) > _FEW_VARIABLES:
            self._check_time(line)
        for known, value in reversed(self._variables):
            if known == name:
                return value
        raise self._fail(line, f"undefined variable: {name}")

    def _fields(self, value: Any, names: tuple[str, ...], line: int) -> Any:
        for name in names:
            match value:
                case Struct():
                    if name not in value.fields and name not in value.methods:
                        raise self._fail(line, f"can't evaluate field {name} in type {value.kind}")
                    value = value.fields.get(name, value.methods.get(name))
                case Mapping():
                    # missingkey=zero: nil, which prints as "<no value>".
                    value = value.get(name)
                case None:
                    raise self._fail(line, f"nil pointer evaluating interface {{}}.{name}")
                case _:
                    raise self._fail(line, f"can't evaluate field {name} in type {type_name(value)}")
        return value
