"""Go's text/template language, as far as Ollama's templates use it: what a Modelfile's TEMPLATE is written in.

Written for this project because the one implementation on PyPI (gotpl 0.1.0) is 27,000 lines of planning-stage code
with html/template, Sprig and Helm, while a chat template needs a page of semantics and hard bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omlx.prompting.errors import MAX_CPU_S, MOST_SOURCE, TemplateError
from omlx.prompting.gotemplate import nodes
from omlx.prompting.gotemplate.evaluate import execute
from omlx.prompting.gotemplate.functions import FUNCTIONS
from omlx.prompting.gotemplate.nodes import Block
from omlx.prompting.gotemplate.parser import parse

__all__ = ["GoTemplate"]

_MOST_ACTIONS = 10_000


class GoTemplate:
    """A parsed template. Raises TemplateError with Go's message when `source` is none."""

    def __init__(self, source: str) -> None:
        self.source = source
        if len(source) > MOST_SOURCE or source.count("{{") > _MOST_ACTIONS:
            limits = f"{MOST_SOURCE:,} characters and {_MOST_ACTIONS:,} actions"
            raise TemplateError(f"template: :1: the template is too long: at most {limits} are taken")
        try:
            self._templates = parse(source, FUNCTIONS)
        except RecursionError as error:
            raise TemplateError("template: :1: template nests too deeply") from error

    def execute(self, data: Any, *, cpu_s: float = MAX_CPU_S) -> str:
        """The text for `data`. Raises TemplateError."""
        return execute(self._templates, data, cpu_s=cpu_s)

    def fields(self) -> set[str]:
        """Every field and variable name in the template, as written."""
        return {name for block in self._templates.values() for name in _names(block)}

    def with_block(self, block: Block) -> GoTemplate:
        """This template with another body."""
        changed = GoTemplate.__new__(GoTemplate)
        changed.source = self.source
        changed._templates = {**self._templates, "": block}
        return changed

    @property
    def body(self) -> Block:
        return self._templates[""]


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, nodes.Field):
        yield from node.names
    elif isinstance(node, nodes.Variable):
        yield from (node.name, *node.fields)
    elif isinstance(node, nodes.FieldChain):
        yield from node.names
        yield from _names(node.of)
    elif isinstance(node, tuple):
        for part in node:
            yield from _names(part)
