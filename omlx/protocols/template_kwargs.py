"""*Template kwargs* are variables that a client hands to the model's Jinja template (`chat_template_kwargs` in vLLM).

They come from anybody: their names, their number and their size are bounded, and none of them can take the place of
what this server gives the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from omlx.protocols.http_error import HTTPError

MOST_NAMES, MOST_BYTES = 64, 1 << 16
"""Of one request; the bytes are those of its JSON."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = frozenset(
    {"messages", "tools", "xml_tools", "add_generation_prompt", "bos_token", "eos_token", "chat_template", "tokenize",
     "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner", "omlx_tick"}
)  # fmt: skip
_ON_OFF = ("enable_thinking", "thinking", "reasoning")
_OFF_EFFORTS = frozenset({"none", "no_think"})
_LEVELS = frozenset({"low", "medium", "high", "max"})


def read_template_kwargs(value: Any) -> dict[str, Any]:
    """The variables of a request. Raises HTTPError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HTTPError(400, "chat_template_kwargs must be an object")
    for name in value:
        if name in _RESERVED:
            raise HTTPError(400, f"chat_template_kwargs must not hold {name!r}: the server sets it")
        if not _NAME.fullmatch(name):
            raise HTTPError(400, "a name in chat_template_kwargs must be a letter and at most 63 letters, digits or _")
    if len(value) > MOST_NAMES or len(msgspec.json.encode(value)) > MOST_BYTES:
        raise HTTPError(400, f"chat_template_kwargs may hold at most {MOST_NAMES} names and {MOST_BYTES} bytes of JSON")
    return value


def think_of(kwargs: Mapping[str, Any]) -> bool | str | None:
    """What the variables say of thinking, as `think` does; None: nothing."""
    for name in _ON_OFF:
        if isinstance(kwargs.get(name), bool):
            return bool(kwargs[name])
    if kwargs.get("thinking_mode") in ("enabled", "disabled"):
        return bool(kwargs["thinking_mode"] == "enabled")
    effort = kwargs.get("reasoning_effort")
    if not isinstance(effort, str):
        return False if kwargs.get("thinking_budget") == 0 else None
    return False if effort in _OFF_EFFORTS else effort if effort in _LEVELS else None
