"""A *Jinja chat template* is the small program that a model's authors ship to turn messages into a prompt.

It is foreign code: it runs in Jinja's sandbox, on immutable data, and within bounds of time and size. Names and
filters are those that Hugging Face's templates are written against (`strftime_now`, `raise_exception`, `tojson`,
`generation` blocks, loop controls, trimmed blocks). Owner of everything that touches the `jinja2` package.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.sandbox
import jinja2.utils
from jinja2.parser import Parser

from omlx.prompting.errors import MAX_CPU_S, MOST_SOURCE, TemplateError, TemplateRefused, TemplateTooSlow

MAX_TEXT = 1 << 26
"""Characters, of the prompt and of anything a template builds on the way to it."""
MAX_COUNT = 1 << 20
"""Largest number a template may pass to a function or filter: `center`, `indent` and the like allocate by it."""


_NEVER_NEEDED = ("lipsum", "cycler", "joiner", "pprint", "random", "urlize", "wordwrap", "xmlattr")
"""Functions and filters for web pages, which take long."""


class JinjaTemplate:
    """A compiled template. Raises TemplateError when `source` is no template."""

    def __init__(self, source: str, *, cpu_s: float = MAX_CPU_S) -> None:
        self.source = source
        if len(source) > MOST_SOURCE:
            raise TemplateError(f"the model's chat template is longer than {MOST_SOURCE:,} characters")
        try:
            self._template = _Environment(cpu_s).from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise TemplateError(f"the model's chat template cannot be read: {_reason(error)}") from error

    def render(self, variables: dict[str, Any]) -> str:
        """The prompt text. Raises TemplateError, with the template's own words where it refuses the conversation."""
        environment = self._template.environment
        assert isinstance(environment, _Environment)
        environment.start_clock()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part)
                size += len(part)
                environment.check(size)
        except _TemplateRefused as error:
            raise TemplateRefused(f"the model's chat template refuses this conversation: {error}") from error
        except TemplateError:
            raise
        except MemoryError:
            raise TemplateTooSlow("the model's chat template takes more memory than it may") from None
        except Exception as error:  # whatever foreign code can raise: TypeError, KeyError, ZeroDivisionError, ...
            raise TemplateError(f"the model's chat template fails on this conversation: {_reason(error)}") from error
        return "".join(parts)


class _TemplateRefused(Exception):
    """The template called `raise_exception`."""


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    line = getattr(error, "lineno", None)
    return f"{text} (line {line})" if line else text


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what training learns from; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a clock and with ceilings on what an expression may build."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, cpu_s: float) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
        self._cpu_s = cpu_s
        # Several threads may render one template: each has a clock of its own.
        self._clock = threading.local()
        self.filters["tojson"] = _tojson
        self.filters = {name: self._guarded(function) for name, function in self.filters.items()}
        self.filters["omlx_join"] = self._join
        for name in _NEVER_NEEDED:
            self.filters.pop(name, None)
            self.globals.pop(name, None)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace
        self.globals["omlx_tick"] = self._tick

    def start_clock(self) -> None:
        self._clock.deadline = time.thread_time() + self._cpu_s

    def check(self, size: int) -> None:
        _check_size(size)
        self._tick()

    def _tick(self) -> None:
        if time.thread_time() > getattr(self._clock, "deadline", math.inf):
            raise TemplateTooSlow(f"the model's chat template takes longer than {self._cpu_s:g} seconds")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _bound(template)
        template.set_environment(self)
        return template

    def _join(self, parts: list[Any]) -> str:
        texts = [str(part) for part in parts]
        self.check(sum(map(len, texts)))
        return "".join(texts)

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, refusing huge counts. Jinja's markers (pass_environment …) are attributes: they are kept."""
        is_format = getattr(function, "__name__", "") == "do_format"

        def call(*args: Any, **kwargs: Any) -> Any:
            _check_counts((*args, *kwargs.values()))
            if is_format and isinstance(args[0], str):
                _check_widths(args[0])
            self._tick()
            return function(*args, **kwargs)

        call.__dict__.update(getattr(function, "__dict__", {}))
        return call

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_counts((*args, *kwargs.values()))
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str) and getattr(obj, "__name__", "").startswith("format"):
            _check_widths(owner)
        self._tick()
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str):
            self.check(len(result))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _bound(template: nodes.Template) -> None:
    """Let every turn of a loop and every macro look at the clock, and every `~` at the size of what it joins."""
    repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [*template.find_all(nodes.For)]
    repeated += [*template.find_all(nodes.Macro), *template.find_all(nodes.CallBlock)]
    for block in repeated:
        tick = nodes.Call(nodes.Name("omlx_tick", "load"), [], [], None, None)
        block.body.insert(0, nodes.ExprStmt(tick).set_lineno(block.lineno, override=True))
    _replace_joins(template)


def _replace_joins(node: nodes.Node) -> None:
    for field, value in node.iter_fields():
        if isinstance(value, list):
            setattr(node, field, [_replaced(item) for item in value])
        elif isinstance(value, nodes.Node):
            setattr(node, field, _replaced(value))


def _replaced(item: Any) -> Any:
    if not isinstance(item, nodes.Node):
        return item
    _replace_joins(item)
    if not isinstance(item, nodes.Concat):
        return item
    joined = nodes.Filter(nodes.List(item.nodes), "omlx_join", [], [], None, None)
    return joined.set_lineno(item.lineno, override=True)


def _check_counts(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int | float) and not -MAX_COUNT <= value <= MAX_COUNT:
            raise TemplateError(f"the model's chat template uses a number over {MAX_COUNT}")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "**":
        _check_counts((left, right))
        if isinstance(right, int) and right > 64:
            raise TemplateError("the model's chat template raises to a power over 64")
    elif operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list | tuple) and isinstance(other, int):
                _check_size(len(one) * other)
    elif operator == "%" and isinstance(left, str):
        _check_widths(left)
    elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
        _check_size(len(left) + len(right))


def _check_size(size: int) -> None:
    if size > MAX_TEXT:
        raise TemplateError("the model's chat template makes a text that is too large")


def _check_widths(form: str) -> None:
    """Refuse "%1000000000d" and its like: formatting allocates what the width says."""
    if re.search(r"\d{7}", form):
        raise TemplateError("the model's chat template makes a text that is too large")


def _raise_exception(message: object) -> None:
    raise _TemplateRefused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # templates mean the user's own date


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: no HTML escapes (Jinja's own filter makes them), non-ASCII as it is."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """What Jinja's `map` and `select` give is a generator: JSON has lists."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without attributes that begin with an underscore (they would reach Python's internals)."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")
        super().__setitem__(name, value)
