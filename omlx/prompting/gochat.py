"""A *Go chat template* is a Modelfile's TEMPLATE: Go's template language over Ollama's data (`.Messages`, `.System` …).

Two styles exist. One that mentions `.Messages` sees the whole conversation at once; an older one, with `.Prompt` and
`.Response`, is run once per turn, and for the last turn only up to `.Response`, where the model goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.prompting import conversation
from omlx.prompting.conversation import write_call_as_json
from omlx.prompting.errors import TemplateError
from omlx.prompting.gotemplate import GoTemplate, nodes
from omlx.prompting.gotemplate.functions import typescript_type
from omlx.prompting.gotemplate.nodes import Block
from omlx.prompting.gotemplate.values import JsonList, JsonMap, Struct, TypeNames
from omlx.prompting.thinking import ThinkMarkers, find_markers
from omlx.prompting.tools.parameters import resolved


class GoChat:
    """A Go template that renders requests. Raises TemplateError where `source` is no template."""

    def __init__(self, source: str, write_call: Callable[[ToolCall], str] = write_call_as_json) -> None:
        """`write_call`: how a call looks that the template has no place for, where tools are told in words."""
        self._write_call = write_call
        template = GoTemplate(source)
        names = {name.lower() for name in template.fields()}
        if not names & {"messages", "response"}:
            # Ollama appends it, so that the model has a place to answer.
            response = nodes.Action(1, _field_pipe("Response"))
            template = template.with_block((*template.body, response))
        self._template = template
        self._whole = "messages" in names
        self._shows_calls = "toolcalls" in names
        self._thinks = any(name.startswith("think") or name == "isthinkset" for name in names)
        self._markers = find_markers(source, ())

    def render(self, request: GenerateRequest, messages: Sequence[Message]) -> str:
        """The prompt. `messages` are the request's, their images already turned into text."""
        turns = conversation.merge_repeats(conversation.link_tool_results(map(_as_system, messages)))
        if self._markers is not None:
            turns = _without_old_thinking(turns, self._markers)
        if request.suffix:
            prompt = turns[-1].content if turns else ""
            return self._template.execute({"Prompt": prompt, "Suffix": request.suffix, "Response": ""})
        write_call = self._write_call if request.emulate_tools else write_call_as_json
        think = _think_data(request.think, self._thinks)
        if self._whole and not self._shows_calls:
            turns = conversation.spell_out_tools(turns, write=write_call, results=False)
        if self._whole:
            return self._template.execute(
                {
                    "System": "\n\n".join(turn.content for turn in turns if turn.role == "system"),
                    "Messages": [_message(turn) for turn in turns],
                    "Tools": JsonList(_tool(tool) for tool in request.tools),
                    "Response": "",
                    **think,
                }
            )
        return self._turn_by_turn(conversation.spell_out_tools(turns, write=write_call), think)

    def _turn_by_turn(self, turns: Sequence[Message], think: dict[str, Any]) -> str:
        out: list[str] = []
        waiting = {"System": "", "Prompt": "", "Response": ""}

        def run(template: GoTemplate) -> None:
            out.append(template.execute({**waiting, **think}))
            waiting.update(System="", Prompt="", Response="")

        for turn in turns:
            if turn.role == "system":
                if waiting["Prompt"] or waiting["Response"]:
                    run(self._template)
                waiting["System"] = turn.content
            elif turn.role == "assistant":
                waiting["Response"] = turn.content
            else:
                if waiting["Response"]:
                    run(self._template)
                waiting["Prompt"] = turn.content
        run(self._template.with_block(_up_to_response(self._template.body)[0]))
        return "".join(out)


def _as_system(message: Message) -> Message:
    """Go templates know no developer."""
    return msgspec.structs.replace(message, role="system") if message.role == "developer" else message


def _field_pipe(name: str) -> nodes.Pipe:
    return nodes.Pipe(1, (), False, (nodes.Command(1, (nodes.Field(1, (name,)),)),))


def _up_to_response(block: Block) -> tuple[Block, bool]:
    """The statements up to the first that mentions `.Response`, and whether there was one."""
    kept: list[nodes.Statement] = []
    for statement in block:
        match statement:
            case nodes.If() | nodes.With() | nodes.Range():
                if _mentions(statement.pipe, "Response"):
                    return tuple(kept), True
                body, is_found = _up_to_response(statement.body)
                otherwise, also = ((), True) if is_found else _up_to_response(statement.otherwise)
                kept.append(statement._replace(body=body, otherwise=otherwise))
                if is_found or also:
                    return tuple(kept), True
            case nodes.Action(_, pipe):
                kept.append(statement)
                if _mentions(pipe, "Response"):
                    return tuple(kept), True
            case _:
                kept.append(statement)
    return tuple(kept), False


def _mentions(node: Any, name: str) -> bool:
    if isinstance(node, nodes.Field):
        return name in node.names
    if isinstance(node, nodes.Variable):
        return name in node.fields
    return isinstance(node, tuple) and any(_mentions(part, name) for part in node)


def _without_old_thinking(turns: Sequence[Message], markers: ThinkMarkers) -> list[Message]:
    """Answers ahead of the last user message without the thinking that clients left in their text."""
    last_user = max((index for index, turn in enumerate(turns) if turn.role == "user"), default=-1)
    cleaned = []
    for index, turn in enumerate(turns):
        text = turn.content.lstrip()
        if turn.role == "assistant" and index < last_user and text.startswith(markers.opening):
            _, closed, answer = text.partition(markers.closing)
            if closed:
                turn = Message(turn.role, answer.lstrip(), turn.thinking, turn.images, turn.tool_calls)
        cleaned.append(turn)
    return cleaned


def _think_data(think: bool | str | None, thinks: bool) -> dict[str, Any]:
    """Not asked counts as on where the template can think, as in Ollama."""
    chosen = thinks if think is None else think
    level = chosen if isinstance(chosen, str) else "medium" if chosen else ""
    return {"Think": bool(chosen), "ThinkLevel": level, "IsThinkSet": think is not None or thinks}


def tool_tag(source: str) -> str:
    """What a Go template writes in front of the JSON of each call: the text that begins its `.ToolCalls` range.

    "" where that is nothing, or where `source` is no Go template.
    """
    if ".ToolCalls" not in source:
        return ""
    try:
        text = _first_text_of_calls(GoTemplate(source).body)
    except TemplateError:
        return ""
    return (text or "").partition("{")[0].strip().rstrip("[").rstrip()


def _first_text_of_calls(block: Block) -> str | None:
    for statement in block:
        if not isinstance(statement, nodes.If | nodes.With | nodes.Range):
            continue
        if isinstance(statement, nodes.Range) and _mentions(statement.pipe, "ToolCalls"):
            return next(
                (part.text for part in statement.body if isinstance(part, nodes.Text) and part.text.strip()), ""
            )
        for inner in (statement.body, statement.otherwise):
            text = _first_text_of_calls(inner)
            if text is not None:
                return text
    return None


# ---------------------------------------------------------------- Ollama's types as Go sees them
def _message(message: Message) -> Struct:
    return Struct(
        "*template.templateMessage",
        {
            "Role": message.role,
            "Content": message.content,
            "Thinking": message.thinking,
            "Images": [""] * len(message.images),
            "ToolCalls": [_call(call, index) for index, call in enumerate(message.tool_calls)],
            "ToolName": message.tool_name,
            "ToolCallID": message.tool_call_id,
        },
        {"Role": "role", "Content": "content", "Thinking": "thinking", "Images": "images", "ToolCalls": "tool_calls",
         "ToolName": "tool_name", "ToolCallID": "tool_call_id"},
        omit_empty=frozenset({"Thinking", "Images", "ToolCalls", "ToolName", "ToolCallID"}),
    )  # fmt: skip


def _call(call: ToolCall, index: int) -> Struct:
    function = Struct(
        "template.templateToolCallFunction",
        {"Index": index, "Name": call.name, "Arguments": JsonMap(call.arguments)},
        {"Index": "index", "Name": "name", "Arguments": "arguments"},
    )
    return Struct(
        "template.templateToolCall",
        {"ID": call.id, "Function": function},
        {"ID": "id", "Function": "function"},
        omit_empty=frozenset({"ID"}),
    )


def _tool(tool: Mapping[str, Any]) -> Struct:
    function = _mapping(tool.get("function"))
    return Struct(
        "template.templateTool",
        {
            "Type": _text(tool.get("type")) or "function",
            "Items": tool.get("items"),
            "Function": Struct(
                "template.templateToolFunction",
                {
                    "Name": _text(function.get("name")),
                    "Description": _text(function.get("description")),
                    "Parameters": _parameters(_mapping(function.get("parameters"))),
                },
                {"Name": "name", "Description": "description", "Parameters": "parameters"},
                prints_json=True,
            ),
        },
        {"Type": "type", "Items": "items", "Function": "function"},
        omit_empty=frozenset({"Items"}),
        prints_json=True,
    )


def _parameters(schema: Mapping[str, Any]) -> Struct:
    return Struct(
        "template.templateToolFunctionParameters",
        {
            "Type": _text(schema.get("type")),
            "Defs": schema.get("$defs"),
            "Items": schema.get("items"),
            "Required": _names(schema.get("required")),
            "Properties": _properties(schema, schema, _REFERENCES),
        },
        {"Type": "type", "Defs": "$defs", "Items": "items", "Required": "required", "Properties": "properties"},
        omit_empty=frozenset({"Defs", "Items", "Required"}),
        prints_json=True,
    )


_REFERENCES = 4
"""Levels of properties in which references are followed: a schema may contain itself."""


def _properties(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> JsonMap:
    properties = _mapping(schema.get("properties")).items()
    return JsonMap((name, _property(value, root, depth)) for name, value in properties)


def _property(schema: Any, root: Mapping[str, Any], depth: int) -> Struct:
    """`root`: the whole schema of the tool. Ollama's type has no place for a reference: what it leads to is told."""
    fields = _mapping(schema)
    schema = {**_mapping(resolved(fields, root)), **fields} if depth else fields
    items = schema.get("items")
    kind = schema.get("type")
    names = TypeNames([kind] if isinstance(kind, str) else _names(kind))
    made = Struct(
        "template.templateToolProperty",
        {
            "AnyOf": [_property(choice, root, max(depth - 1, 0)) for choice in _list(schema.get("anyOf"))],
            "Type": names,
            "Items": resolved(items, root) if depth and isinstance(items, Mapping) else items,
            "Description": _text(schema.get("description")),
            "Enum": _list(schema.get("enum")),
            "Properties": _properties(schema, root, max(depth - 1, 0)),
            "Required": _names(schema.get("required")),
        },
        {"AnyOf": "anyOf", "Type": "type", "Items": "items", "Description": "description", "Enum": "enum",
         "Properties": "properties", "Required": "required"},
        omit_empty=frozenset({"AnyOf", "Type", "Items", "Description", "Enum", "Properties", "Required"}),
    )  # fmt: skip
    # Ollama's own templates call this method of a property.
    made.methods["ToTypeScriptType"] = typescript_type(made)
    return made


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _names(value: Any) -> list[str]:
    return [name for name in _list(value) if isinstance(name, str)]
