"""Rendering Jinja templates where they can be stopped: in a *renderer*, a helper process that does nothing else.

A template is foreign code, and one call into C (a replacement, a comparison, a JSON text) can take minutes or
gigabytes with no place to interrupt it. A renderer has a limit of CPU time for each rendering and a limit of memory.
It also keeps renderings off Python's lock in the runner.

An order is a pickle of (source, variables), None for the variables to read the template only; an answer is an outcome,
CPU seconds and a text. Nothing that comes back is unpickled.
"""

from __future__ import annotations

import pickle
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from omlx.helper_process import AskLimits, HelperDied, HelperPool, HelperSlow, OrderLimits, serve
from omlx.prompting.errors import MAX_CPU_S, TemplateError, TemplateRefused, TemplateTooSlow
from omlx.prompting.jinja import JinjaTemplate

_ANSWERED = struct.Struct(">cd")
_GOOD, _FAILED, _REFUSED, _TOO_SLOW = b"g", b"f", b"r", b"s"
_ERRORS = {_FAILED: TemplateError, _REFUSED: TemplateRefused, _TOO_SLOW: TemplateTooSlow}
_PROCESSES = 2
"""Renderers of one model: one slow template does not keep all requests waiting."""
_SPARE_CPU_S = 1
"""A template ends at MAX_CPU_S by itself, but for what cannot be interrupted."""
REQUEST_CPU_S = 3 * MAX_CPU_S
"""For all renderings of one request: a long conversation is rendered again for each shortening that is tried."""
MEMORY_BYTES = 1 << 30
"""Beyond what the process has at its start."""
WATCHED_BYTES = MEMORY_BYTES + (1 << 28)
"""In memory, what it has at its start among them."""
_MOST_WALL_S = 120.0
_KEPT = 8
"""Compiled templates."""
_STOPPED = "the model's chat template takes more time or memory than it may"


class Renderers:
    """The renderers of one model. The first is started at once, so that it is ready when the model is."""

    def __init__(self) -> None:
        self._pool = HelperPool("omlx.runner.rendering", most=_PROCESSES)
        self._pool.warm()
        self._spent = threading.local()

    def new_request(self) -> None:
        """What this thread renders from now on is for another request."""
        self._spent.seconds = 0.0

    def render(self, source: str, variables: dict[str, Any] | None) -> str:
        """The text; without `variables`, "" where the template can be read. Raises TemplateError."""
        spent = getattr(self._spent, "seconds", 0.0)
        if spent > REQUEST_CPU_S:
            raise TemplateTooSlow(f"the model's chat template takes longer than {REQUEST_CPU_S:g} seconds")
        outcome, seconds, text = self._ask(source, variables)
        self._spent.seconds = spent + seconds
        if outcome == _GOOD:
            return text
        raise _ERRORS.get(outcome, TemplateError)(text)

    def _ask(self, source: str, variables: dict[str, Any] | None) -> tuple[bytes, float, str]:
        try:
            order = pickle.dumps((source, variables), protocol=pickle.HIGHEST_PROTOCOL)
        except RecursionError:
            raise TemplateError("the messages or the tools are nested too deeply for the model's template") from None
        try:
            with self._pool.process() as renderer:
                answer = renderer.ask([order], AskLimits(_MOST_WALL_S, WATCHED_BYTES))
        except (HelperSlow, HelperDied):
            return _TOO_SLOW, MAX_CPU_S, _STOPPED
        outcome, seconds = _ANSWERED.unpack_from(answer)
        return outcome, seconds, answer[_ANSWERED.size :].decode("utf-8", "surrogatepass")

    def close(self) -> None:
        self._pool.close()


class IsolatedTemplate:
    """As JinjaTemplate, rendered by a renderer. Raises TemplateError when `source` is no template."""

    def __init__(self, source: str, renderers: Renderers) -> None:
        self.source = source
        self._renderers = renderers
        renderers.render(source, None)

    def render(self, variables: dict[str, Any]) -> str:
        """The prompt text. Raises TemplateError."""
        return self._renderers.render(self.source, variables)


# ---------------------------------------------------------------- the process
_templates: dict[str, JinjaTemplate] = {}


def _answers(order: bytearray) -> Iterator[tuple[bytes, bytes]]:
    begun = time.process_time()
    try:
        source, variables = pickle.loads(order)  # noqa: S301 (from the process that started this one)
        outcome, text = _GOOD, _rendered(source, variables, _templates)
    except TemplateTooSlow as error:
        outcome, text = _TOO_SLOW, str(error)
    except TemplateRefused as error:
        outcome, text = _REFUSED, str(error)
    except TemplateError as error:
        outcome, text = _FAILED, str(error)
    except MemoryError:
        outcome, text = _TOO_SLOW, _STOPPED
    yield _ANSWERED.pack(outcome, time.process_time() - begun), text.encode("utf-8", "surrogatepass")


def _rendered(source: str, variables: dict[str, Any] | None, templates: dict[str, JinjaTemplate]) -> str:
    template = templates.get(source)
    if template is None:
        if len(templates) >= _KEPT:
            templates.clear()
        template = templates[source] = JinjaTemplate(source)
    return "" if variables is None else template.render(variables)


if __name__ == "__main__":
    serve(_answers, limits=lambda size: OrderLimits(MAX_CPU_S + _SPARE_CPU_S, MEMORY_BYTES))
