"""*Offered tools*: the tools of a request, which a call must name, and the types of their arguments."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from omlx.messages.request import ToolCall
from omlx.prompting.tools import literals
from omlx.prompting.tools.cursor import Cursor, NotACall, load_json
from omlx.prompting.tools.parameters import choices_of, parameters_of, schema_types, types_of_value

_ALPHABET = string.ascii_lowercase + string.digits
_PLAUSIBLE = re.compile(r"[^\W\d][\w.:/-]{0,127}")
"""A name that a tool may have."""
_NUMBERED = re.compile(r":\d+$")


def random_call_id() -> str:
    """ "call_" and eight lower-case letters or digits, as Ollama's."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(8))


class OfferedTools:
    """Made from tools in OpenAI's shape; entries of another shape are passed over."""

    def __init__(self, tools: Iterable[Any]) -> None:
        self._strict = False
        self._required: dict[str, list[str]] = {}
        self._parameters: dict[str, dict[str, Any]] = {}
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                whole = schema if isinstance(schema, Mapping) else {}
                parameters = parameters_of(whole)
                self._schemas[function["name"]] = whole
                self._parameters[function["name"]] = {found.name: found.schema for found in parameters}
                self._required[function["name"]] = [found.name for found in parameters if found.required]

    def strict(self) -> OfferedTools:
        """The same tools, for calls that must name one of them.

        Otherwise a marked call of any name is one, as in Ollama, so that a client can tell the model that it has no
        such tool.
        """
        other = OfferedTools(())
        other.__dict__.update(self.__dict__)
        other._strict = True
        return other

    @property
    def names(self) -> list[str]:
        return list(self._parameters)

    def known(self, name: str) -> str:
        """The tool that `name` means. Raises NotACall if there is none.

        Some models put `functions.` or another namespace in front, some a number behind (Kimi's `functions.f:0`).
        """
        plain = _NUMBERED.sub("", name.strip().removeprefix("functions."))
        for candidate in (name.strip(), name.strip().removeprefix("functions."), plain, re.split(r"[.:/]", plain)[-1]):
            if candidate in self._parameters:
                return candidate
        if self._strict or not _PLAUSIBLE.fullmatch(plain):
            raise NotACall
        return plain

    def properties(self, name: str) -> Mapping[str, Any]:
        """The schemas of a tool's parameters by name; empty for one that was not offered."""
        return self._parameters.get(self.known(name), {})

    def schema(self, name: str) -> Mapping[str, Any]:
        """The schema of all arguments of a tool; empty for one that was not offered."""
        return self._schemas.get(self.known(name), {})

    def complete(self, name: str, arguments: Collection[str]) -> bool:
        """Whether all arguments are there that the tool needs; where it needs none, all that it has."""
        known = self.known(name)
        needed = self._required.get(known) or self._parameters.get(known, {"": None})
        return all(key in arguments for key in needed)

    def call(self, name: str, arguments: Any) -> ToolCall:
        """A call, its id still to be given. Raises NotACall for what is no name or arguments that are no object."""
        if not isinstance(arguments, dict):
            raise NotACall
        return ToolCall(self.known(name), arguments)

    def call_with_texts(self, name: str, arguments: Mapping[str, str]) -> ToolCall:
        """A call whose arguments came as text: each becomes the type that the tool's schema gives it."""
        known = self.known(name)
        schemas, whole = self.properties(known), self._schemas.get(known)
        return self.call(known, {key: typed(text, schemas.get(key), whole) for key, text in arguments.items()})

    def single_parameter(self, name: str) -> str | None:
        """The name of the only parameter of a tool, if it has just one."""
        properties = list(self.properties(name))
        return properties[0] if len(properties) == 1 else None


def typed(text: str, schema: Any, root: Mapping[str, Any] | None = None) -> Any:
    """`text` as the schema wants it; text stays text where it does not fit. `root`: where its references lead."""
    types = schema_types(schema, root)
    if types == {"string"} or (isinstance(schema, Mapping) and text in choices_of(schema)):
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
        value = _from_python(stripped) if types & {"object", "array"} else text
    if isinstance(value, str):
        return text
    if isinstance(value, float) and value.is_integer() and types & {"integer", "number"} == {"integer"}:
        return int(value)
    return value if not types or types_of_value(value) & types else text


def _from_python(text: str) -> Any:
    """A dict or list as Python writes it; other text as it is."""
    cursor = Cursor(text, 0, final=True)
    try:
        value = literals.read_value(cursor)
    except NotACall:
        return text
    return value if cursor.at_end and isinstance(value, dict | list) else text


_NAME_KEYS = ("name", "tool_name", "tool", "function_name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")


def calls_from_json(
    value: Any, offered_tools: OfferedTools, *, strict: bool = False, keyed: bool = False
) -> list[ToolCall]:
    """The calls that a JSON object, or an array of them, stands for. Raises NotACall.

    `strict`: the object must have arguments (used where nothing but the object's shape says that it is a call).
    `keyed`: an object with one key is a call of the tool of that name, even if it was not offered.
    """
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    items = value if isinstance(value, list) else [value]
    calls = [_call_from_json(item, offered_tools, strict, keyed) for item in items]
    if not calls:
        raise NotACall
    return calls


def _call_from_json(item: Any, offered_tools: OfferedTools, strict: bool, keyed: bool) -> ToolCall:
    if not isinstance(item, dict):
        raise NotACall
    if isinstance(item.get("function"), dict):
        item = item["function"]
    name = next((item[key] for key in _NAME_KEYS if isinstance(item.get(key), str)), None)
    if name is None:
        if strict or len(item) != 1:
            raise NotACall
        # Apertus: {"f": {…}}
        name, arguments = next(iter(item.items()))
        if not keyed and name not in offered_tools.names:
            raise NotACall
        return offered_tools.call(name, arguments)
    key = next((key for key in _ARGUMENT_KEYS if key in item), None)
    if key is None:
        if strict:
            raise NotACall
        return offered_tools.call(name, {})
    arguments = item[key]
    if isinstance(arguments, str):
        arguments = load_json(arguments) if arguments.strip() else {}
    return offered_tools.call(name, {} if arguments is None else arguments)
