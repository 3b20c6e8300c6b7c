"""*Chat templates* of a model: the Jinja sources among its files, wherever its makers put them.

`show` and the runner both take them from here, so that the template that is shown is the one that is used. Pure but for
the reading of small files, which the caller does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

_WHOLE = "chat_template.jinja"
_ADDITIONAL = "additional_chat_templates/tool_use.jinja"
_CONFIGURATIONS = ("tokenizer_config.json", "chat_template.json", "processor_config.json")
"""In this order. Processors of models that see keep theirs in the later two, also where the model runs as text only."""


class ChatTemplates(NamedTuple):
    """`tool_use` is for conversations with tools, where the model has another one for them."""

    default: str | None = None
    tool_use: str | None = None

    @property
    def text(self) -> str:
        """Both: what tells which markers the model was trained with."""
        return "\n".join(source for source in self if source)


CheckChat = Callable[[ChatTemplates, Mapping[str, str]], object]
"""Raises ValueError with a sentence where Jinja chat templates cannot be used; the mapping has the special tokens that
they may use, such as `bos_token`."""


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that a template may use, by their names."""
    names = {"bos_token": "", "eos_token": ""}
    for name, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            names[name] = text
    return names


def chat_templates(read: Callable[[str], str | None]) -> ChatTemplates:
    """The templates of a model. `read`: a file of the model by its name; None where there is none.

    Raises ValueError where a configuration is no JSON object.
    """
    whole = read(_WHOLE)
    if whole:
        return ChatTemplates(whole, read(_ADDITIONAL) or None)
    for name in _CONFIGURATIONS:
        text = read(name)
        templates = _of(_object(name, text).get("chat_template")) if text is not None else ChatTemplates()
        if templates.default is not None:
            return templates
    return ChatTemplates()


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{name} is no JSON object: {error}") from error


def _of(entry: object) -> ChatTemplates:
    """Of one text, or several by name: `[{"name", "template"}]` or `{name: template}`."""
    if isinstance(entry, str):
        return ChatTemplates(entry or None)
    named: Mapping[str, Any] = {}
    if isinstance(entry, list):
        named = {str(item.get("name")): item.get("template") for item in entry if isinstance(item, Mapping)}
    elif isinstance(entry, Mapping):
        named = entry
    texts = {name: text for name, text in named.items() if isinstance(text, str) and text}
    return ChatTemplates(texts.get("default") or next(iter(texts.values()), None), texts.get("tool_use"))
