"""*Switches* are the template variables that turn a family's thinking on and off, or set how much of it there is.

There is no common name: a table says what each variable is given. A template ignores those that it does not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omlx.prompting.thinking import reads, thinks_by_default

_ON_OFF: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning": (True, False),
    "thinking_mode": ("enabled", "disabled"),
}
"""Qwen, GLM, Gemma, Apertus and most others; Granite, DeepSeek V3.1, Kimi K2.5; Command A Reasoning; MiniMax M3."""

_ALWAYS = frozenset({"enable_thinking", "thinking"})
"""Given whether or not they are seen in the template: a few build the name, or hand their variables to a macro."""

_OFF_EFFORTS = ("none", "no_think", "minimal")
"""Values of `reasoning_effort` that mean no thinking: Mistral and most others; Hunyuan 3; Solar."""

_EFFORTS = ("reasoning_effort", "reasoning_strength", "thinking_effort")
"""Names of the variable for the effort: nearly all; Muse Glimmer; Kimi K3."""
_LEVELS = ("low", "medium", "high")
_HIGHEST_EFFORTS = ("max", "xhigh")
_ASKED_ONLY = frozenset({"thinking_mode"})
"""Left out unless the request says something: the family decides for itself then."""


class Switches:
    """The switches of one template."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._on_by_default = thinks_by_default(source)
        self._names = [name for name in _ON_OFF if name in _ALWAYS or reads(source, name)]
        self._effort = next((name for name in _EFFORTS if reads(source, name)), "")
        self._budget = reads(source, "thinking_budget")
        self._always_thinks = "<|channel|>" in source or self._effort == "reasoning_strength"
        """gpt-oss and Muse Glimmer can think less, but not nothing."""
        self._needs_effort: bool | None = None

    @property
    def any(self) -> bool:
        """The template can switch thinking off."""
        has_off = bool(self._effort) and self._off_effort() is not None
        return has_off or self._budget or any(reads(self._source, name) for name in self._names)

    def variables(self, think: bool | str | None, render: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
        """What the template is given. `think` None: the family's default; a level counts as on.

        `render` gives the prompt of a short conversation with some variables: it shows once whether a template that
        knows an effort without any thinking does not think until it is told an effort.
        """
        on = self._on_by_default if think is None else think is not False
        variables: dict[str, Any] = {
            name: _ON_OFF[name][0 if on else 1] for name in self._names if think is not None or name not in _ASKED_ONLY
        }
        effort = self._effort or _EFFORTS[0]
        if isinstance(think, str):
            variables[effort] = self._level(think)
        elif self._effort and on and self._quiet_without_effort(render):
            variables[effort] = "high"
        elif self._effort and not on and self._off_effort() is not None:
            variables[effort] = self._off_effort()
        elif think is False and self._always_thinks:
            variables[effort] = "low"
        if think is False and self._budget:
            # Seed-OSS
            variables["thinking_budget"] = 0
        return variables

    def _level(self, level: str) -> str:
        if level == "max":
            return next((name for name in _HIGHEST_EFFORTS if self._says(name)), "high")
        known = [name for name in _LEVELS if self._says(name)]
        # A template that lists its levels may refuse others: Hunyuan 3 has no medium.
        return level if level in known or len(known) < 2 else known[-1]

    def _off_effort(self) -> str | None:
        return next((name for name in _OFF_EFFORTS if self._says(name)), None)

    def _says(self, word: str) -> bool:
        return f"'{word}'" in self._source or f'"{word}"' in self._source

    def _quiet_without_effort(self, render: Callable[[dict[str, Any]], str]) -> bool:
        if self._needs_effort is None:
            off = self._off_effort()
            self._needs_effort = off is not None and render({}) == render({self._effort: off})
        return self._needs_effort
