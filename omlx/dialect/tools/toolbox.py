"""The *toolbox* is the set of tools a request offered: what a call must name, and which types its arguments have."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Mapping
from typing import Any

from omlx.dialect.tools.cursor import NotACall, load_json
from omlx.dialect.tools.parameters import parameters_of, schema_types, types_of_value
from omlx.request import ToolCall

_ALPHABET = string.ascii_lowercase + string.digits


def random_call_id() -> str:
    """ "call_" and eight lower-case letters or digits, as Ollama's."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(8))


class Toolbox:
    """Made from tools in OpenAI's shape; entries of another shape are passed over."""

    def __init__(self, tools: Iterable[Any]) -> None:
        self._parameters: dict[str, dict[str, Any]] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                whole = schema if isinstance(schema, Mapping) else {}
                self._schemas[function["name"]] = whole
                self._parameters[function["name"]] = {found.name: found.schema for found in parameters_of(whole)}

    @property
    def names(self) -> list[str]:
        return list(self._parameters)

    def known(self, name: str) -> str:
        """The tool that `name` means. Raises NotACall if there is none.

        Some models put `functions.` in front, some a number behind (Kimi's `functions.f:0`).
        """
        name = name.strip()
        for candidate in (name, name.removeprefix("functions."), name.removeprefix("functions.").rpartition(":")[0]):
            if candidate in self._parameters:
                return candidate
        raise NotACall

    def call(self, name: str, arguments: Any) -> ToolCall:
        """A call, its id still to be given. Raises NotACall for an unknown name or arguments that are no object."""
        if not isinstance(arguments, dict):
            raise NotACall
        return ToolCall(self.known(name), arguments)

    def call_with_texts(self, name: str, arguments: Mapping[str, str]) -> ToolCall:
        """A call whose arguments came as text: each becomes the type that the tool's schema gives it."""
        known = self.known(name)
        schemas, whole = self._parameters[known], self._schemas[known]
        return self.call(known, {key: typed(text, schemas.get(key), whole) for key, text in arguments.items()})

    def single_parameter(self, name: str) -> str | None:
        """The name of the only parameter of a tool, if it has just one."""
        properties = list(self._parameters[self.known(name)])
        return properties[0] if len(properties) == 1 else None


def typed(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """`text` as the schema wants it; text stays text where it does not fit. `root`: where its references lead."""
    types = schema_types(schema, root)
    if types == {"string"}:
        return text
    stripped = text.strip()
    lowered = stripped.lower()
    if lowered in {"true", "false"} and (not types or "boolean" in types):
        return lowered == "true"
    if lowered in {"null", "none"} and (not types or "null" in types):
        return None
    try:
        # An array around it lets plain numbers through the same checks.
        (value,) = load_json(f"[{stripped}]")
    except (NotACall, ValueError):
        return text
    if isinstance(value, str):
        return text
    return value if not types or types_of_value(value) & types else text


_NAME_KEYS = ("name", "tool_name", "tool", "function_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")


def calls_from_json(value: Any, toolbox: Toolbox, *, strict: bool = False) -> list[ToolCall]:
    """The calls that a JSON object, or an array of them, stands for. Raises NotACall.

    `strict`: the object must have arguments (used where nothing but the object's shape says that it is a call).
    """
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    items = value if isinstance(value, list) else [value]
    calls = [_call_from_json(item, toolbox, strict) for item in items]
    if not calls:
        raise NotACall
    return calls


def _call_from_json(item: Any, toolbox: Toolbox, strict: bool) -> ToolCall:
    if not isinstance(item, dict):
        raise NotACall
    if isinstance(item.get("function"), dict):
        item = item["function"]
    name = next((item[key] for key in _NAME_KEYS if isinstance(item.get(key), str)), None)
    if name is None:
        if strict or len(item) != 1:
            raise NotACall
        # Apertus: {"f": {…}}
        return toolbox.call(*next(iter(item.items())))
    key = next((key for key in _ARGUMENT_KEYS if key in item), None)
    if key is None:
        if strict:
            raise NotACall
        return toolbox.call(name, {})
    arguments = item[key]
    if isinstance(arguments, str):
        arguments = load_json(arguments) if arguments.strip() else {}
    return toolbox.call(name, {} if arguments is None else arguments)
