"""Calls as JSON between two markers: Hermes and Qwen, Granite, Phi-4, Nemotron, Hunyuan, InternLM and their like."""

from __future__ import annotations

from omlx.dialect.tools.cursor import Cursor, NotACall
from omlx.dialect.tools.format import Reader, ToolFormat
from omlx.dialect.tools.toolbox import Toolbox, calls_from_json
from omlx.request import ToolCall


def tagged(opening: str, closing: str) -> Reader:
    """`opening` JSON `closing`; the closing marker may be missing. Several JSON values may follow each other."""

    def read(cursor: Cursor, toolbox: Toolbox) -> list[ToolCall]:
        cursor.literal(opening)
        cursor.blank()
        calls = calls_from_json(cursor.json(), toolbox)
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
                calls += calls_from_json(cursor.json(), toolbox)
            except NotACall:
                cursor.position = end
                break
        return calls

    return read


def _format(name: str, opening: str, closing: str) -> ToolFormat:
    return ToolFormat(name, tagged(opening, closing), (opening,), (opening,), closings=(closing,) if closing else ())


HERMES = _format("hermes", "<tool_call>", "</tool_call>")
FORMATS = (
    HERMES,
    _format("granite", "<|tool_call|>", "<|/tool_call|>"),
    _format("phi", "functools", ""),
    _format("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    _format("hunyuan", "<tool_calls>", "</tool_calls>"),
    _format("internlm", "<|action_start|><|plugin|>", "<|action_end|>"),
    _format("apertus", "<|tools_prefix|>", "<|tools_suffix|>"),
    _format("gigachat", "<|function_call|>", "<|message_sep|>"),
    _format("gigachat3", "function call<|role_sep|>", "<|message_sep|>")._replace(marks=("`function call`",)),
)
"""Granite 3 writes no closing marker, Phi-4-mini writes Granite's with one."""
