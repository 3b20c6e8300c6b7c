"""Calls as JSON between two markers: Hermes and Qwen, Granite, Phi-4, Nemotron, Hunyuan, InternLM and their like."""

from __future__ import annotations

import json

from omlx.prompting.tools.cursor import Cursor, NotACall
from omlx.prompting.tools.format import Reader, ToolFormat, Writer
from omlx.prompting.tools.objects import read_calls
from omlx.prompting.tools.offered import OfferedTools
from omlx.prompting.tools.rules import Rules, json_call


def tagged(opening: str, closing: str, *, keyed: bool = False) -> Reader:
    """`opening` JSON `closing`; the closing marker may be missing. Several JSON values may follow each other."""

    closings = (closing,) if closing else ()

    def read(cursor: Cursor, offered_tools: OfferedTools) -> None:
        cursor.literal(opening)
        cursor.blank()
        if closing and cursor.maybe(closing):
            return
        read_calls(cursor, offered_tools, *closings, keyed=keyed)
        while closing:
            end = cursor.position
            cursor.blank()
            # A brace too many is a slip that Qwen's smaller models make.
            while cursor.maybe("}"):
                cursor.blank()
            if cursor.maybe(closing):
                break
            if cursor.at_end:
                cursor.wait()
                break
            try:
                read_calls(cursor, offered_tools, *closings, keyed=keyed)
            except NotACall:
                cursor.position = end
                break

    return read


def write_one_each(rules: Rules) -> str:
    """Hermes: tags around every call."""
    return rules.repeated(f"{rules.text('<tool_call>')} {write_behind_tag(rules)}")


def write_behind_tag(rules: Rules) -> str:
    """The rest of a call of Hermes."""
    inner = rules.each(lambda tool: json_call(rules, tool))
    return " ".join((rules.text("\n"), inner, rules.text("\n</tool_call>")))


def _list_writer(opening: str, closing: str, arguments_key: str = "arguments") -> Writer:
    """Calls as a JSON list between two markers."""

    def write(rules: Rules) -> str:
        call = rules.each(lambda tool: json_call(rules, tool, arguments_key=arguments_key))
        calls = rules.repeated(call, ", ")
        return " ".join((rules.text(opening + "["), calls, rules.text("]" + closing)))

    return write


def _tool_calls_writer(rules: Rules) -> str:
    """Hunyuan's list, with or without line breaks around it (Jamba, Apriel), or a call a line (MiniMax M1)."""
    call = rules.each(lambda tool: json_call(rules, tool))
    calls = rules.rule(f"{rules.text('[')} {rules.repeated(call, ', ')} {rules.text(']')} | {rules.repeated(call)}")
    line = f"{rules.text(_BREAK)}?"
    return " ".join((rules.text("<tool_calls>"), line, calls, line, rules.text("</tool_calls>")))


_BREAK = "\n"


def _granite_writer(rules: Rules) -> str:
    """Phi-4-mini has a closing token."""
    return _list_writer("<|tool_call|>", "<|/tool_call|>" if rules.knows("<|/tool_call|>") else "")(rules)


def _single_writer(opening: str, closing: str, arguments_key: str) -> Writer:
    """One call between two markers."""

    def write(rules: Rules) -> str:
        call = rules.each(lambda tool: json_call(rules, tool, arguments_key=arguments_key))
        return f"{rules.text(opening)} {call}" + (f" {rules.text(closing)}" if closing else "")

    return write


def _apertus_writer(rules: Rules) -> str:
    """The name of the tool is the only key."""
    call = rules.each(
        lambda tool: f"{rules.text(json.dumps({tool.name: 0})[:-2])} {rules.json(tool.schema)} {rules.text('}')}"
    )
    return " ".join((rules.text("<|tools_prefix|>["), rules.repeated(call, ", "), rules.text("]<|tools_suffix|>")))


def _format(name: str, opening: str, closing: str, write: Writer) -> ToolFormat:
    closings = (closing,) if closing else ()
    return ToolFormat(
        name,
        tagged(opening, closing),
        (opening,),
        (opening,),
        closings=closings,
        strays=_tokens(*closings),
        write=write,
    )


def _tokens(*closings: str) -> tuple[str, ...]:
    """Those that cannot be text."""
    return tuple(closing for closing in closings if closing.startswith("<|"))


HERMES = _format("hermes", "<tool_call>", "</tool_call>", write_one_each)
FORMATS = (
    HERMES,
    _format("granite", "<|tool_call|>", "<|/tool_call|>", _granite_writer),
    _format("phi", "functools", "", _list_writer("functools", "")),
    _format("nemotron", "<TOOLCALL>", "</TOOLCALL>", _list_writer("<TOOLCALL>", "</TOOLCALL>")),
    _format("hunyuan", "<tool_calls>", "</tool_calls>", _tool_calls_writer),
    _format(
        "internlm",
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        _single_writer("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"),
    ),
    _format("nemotron-mini", "<toolcall>", "</toolcall>", _single_writer("<toolcall> ", " </toolcall>", "arguments")),
    _format("granite-20b", "<function_call>", "</function_call>", _single_writer("<function_call> ", "", "arguments")),
    _format(
        "doubao",
        "<|FunctionCallBegin|>",
        "<|FunctionCallEnd|>",
        _list_writer("<|FunctionCallBegin|>", "<|FunctionCallEnd|>", "parameters"),
    ),
    _format("apertus", "<|tools_prefix|>", "<|tools_suffix|>", _apertus_writer)._replace(
        read=tagged("<|tools_prefix|>", "<|tools_suffix|>", keyed=True)
    ),
    _format("gigachat", "<|function_call|>", "<|message_sep|>", _single_writer("<|function_call|>", "", "arguments")),
    _format(
        "gigachat3",
        "function call<|role_sep|>",
        "<|message_sep|>",
        _single_writer("function call<|role_sep|>\n", "", "arguments"),
    )._replace(marks=("`function call`",)),
)
"""Granite 3 writes no closing marker, Phi-4-mini writes Granite's with one."""
