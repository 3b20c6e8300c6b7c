"""Modelfile templates see Ollama's data: whole conversations, turns, tools, thinking, fill-in-the-middle."""

from __future__ import annotations

from typing import Any

import pytest

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.prompting.template import PromptTemplate, TemplateError

CHATML = """{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
<|im_start|>{{ .Role }}
{{ .Content }}{{ if not (and $last (eq .Role "assistant")) }}<|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}"""

LEGACY = """{{ if .System }}<sys>{{ .System }}</sys>
{{ end }}{{ if .Prompt }}<user>{{ .Prompt }}</user>
{{ end }}<bot>{{ .Response }}</bot>
"""

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <now>",
        "strict": True,
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["city"],
            "properties": {
                "unit": {"type": ["string", "null"], "enum": ["C", "F"], "default": "C"},
                "city": {"type": ["string"], "description": "Where"},
                "days": {"anyOf": [{"type": "integer"}, {"type": "array"}]},
            },
        },
    },
}
TOOL_JSON = (
    '{"name":"weather","description":"Weather \\u003cnow\\u003e","parameters":{"type":"object","required":["city"],'
    '"properties":{"city":{"type":"string","description":"Where"},"days":{"anyOf":[{"type":"integer"},{"type":"array"}]},'
    '"unit":{"type":["string","null"],"enum":["C","F"]}}}}'
)


def render(source: str, *messages: Message, **request: Any) -> str:
    return PromptTemplate.from_go(source).render(GenerateRequest(id=1, messages=list(messages), **request)).text


def user(text: str) -> Message:
    return Message("user", text)


def bot(text: str) -> Message:
    return Message("assistant", text)


def test_a_conversation_is_rendered_at_once() -> None:
    assert render(CHATML, Message("system", "S"), user("a"), bot("b"), user("c")) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_unfinished_answer_is_continued() -> None:
    assert render(CHATML, user("a"), bot("Once")) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nOnce"
    assert render(LEGACY, user("a"), bot("Once")) == "<user>a</user>\n<bot>Once"


def test_neighbours_of_one_role_are_joined() -> None:
    assert "user\na\n\nb<|im_end|>" in render(CHATML, user("a"), user("b"))


def test_an_old_style_template_runs_once_a_turn_and_ends_at_the_response() -> None:
    assert render(LEGACY, Message("system", "S"), user("a"), bot("b"), user("c")) == (
        "<sys>S</sys>\n<user>a</user>\n<bot>b</bot>\n<user>c</user>\n<bot>"
    )


def test_a_response_within_a_branch_ends_the_last_turn_there() -> None:
    source = "{{ if .Prompt }}[{{ .Prompt }}]{{ if .System }}s{{ end }}({{ .Response }}){{ end }}tail"
    assert render(source, user("a"), bot("b"), user("c")) == "[a](b)tail[c]("


def test_a_template_without_messages_or_response_gets_a_response() -> None:
    assert render("{{ .Prompt }}", user("a"), bot("b"), user("c")) == "abc"


def test_system_messages_are_joined_and_stay_in_messages() -> None:
    source = "{{ .System }}|{{ range .Messages }}{{ .Role }},{{ end }}"
    assert render(source, Message("system", "A"), user("x"), Message("system", "B")) == "A\n\nB|system,user,system,"


def test_tools_print_as_ollama_prints_them() -> None:
    source = "{{ range .Tools }}{{ .Function }}\n{{ .Function.Parameters.Properties.city }}\n{{ .Type }}{{ end }}"
    text = render(source + "{{ range .Messages }}{{ end }}", user("x"), tools=[TOOL])
    function, city, kind = text.split("\n")
    assert function == TOOL_JSON
    assert city == "{[] string <nil> Where [] map[] []}" or city.startswith("{[] string <nil> Where []")
    assert kind == "function"
    assert render("{{ .Tools }}{{ .Messages | len }}", user("x"), tools=[TOOL]) == (
        '[{"type":"function","function":' + TOOL_JSON + "}]1"
    )


def test_typescript_types_of_properties() -> None:
    source = """{{ range .Tools }}{{ range $name, $prop := .Function.Parameters.Properties }}{{ $name }}: {{
    toTypeScriptType $prop }} {{ $prop.ToTypeScriptType }}; {{ end }}{{ end }}{{ if .Messages }}{{ end }}"""
    assert render(source, user("x"), tools=[TOOL]) == (
        "city: string string; days: number | any[] number | any[]; unit: string | null string | null; "
    )


def test_calls_and_results_reach_the_template() -> None:
    source = """{{ range .Messages }}{{ .Role }}{{ range .ToolCalls }}[{{ .Function.Index }} {{ .Function.Name }} {{
    .Function.Arguments }}{{ range $k, $v := .Function.Arguments }} {{ $k }}={{ $v }}{{ end }}]{{ end }}
    {{- if .ToolName }}({{ .ToolName }}){{ end }};{{ end }}"""
    called = Message("assistant", tool_calls=[ToolCall("f", {"z": 1.0, "a": "<é>"}), ToolCall("g", {})])
    assert render(source, user("x"), called, Message("tool", "r")) == (
        'user;assistant[0 f {"a":"\\u003cé\\u003e","z":1} a=<é> z=1][1 g {}];tool(f);'
    )


@pytest.mark.parametrize(
    ("think", "expected"),
    [(None, "true medium true"), (True, "true medium true"), (False, "false  true"), ("high", "true high true")],
)
def test_think_reaches_the_template(think: bool | str | None, expected: str) -> None:
    source = "{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }}{{ range .Messages }}{{ .Thinking }}{{ end }}"
    assert render(source, user("x"), think=think) == expected


def test_old_thinking_left_in_the_text_is_not_shown_again() -> None:
    source = "{{ range .Messages }}{{ .Content }}|{{ end }}{{ if .Think }}<think></think>{{ end }}"
    text = render(source, user("a"), bot("<think>\nhm\n</think>\n\nb"), user("c"), bot("<think>x"), think=False)
    assert text == "a|b|c|<think>x|"


def test_fill_in_the_middle() -> None:
    source = "{{ if .Suffix }}<PRE>{{ .Prompt }}<SUF>{{ .Suffix }}<MID>{{ else }}{{ .Prompt }}{{ end }}"
    assert render(source, user("def f("), suffix="return 1") == "<PRE>def f(<SUF>return 1<MID>"
    assert render(source, user("hi")) == "hi"


def test_a_request_may_bring_its_own_template() -> None:
    template = PromptTemplate.from_jinja("jinja")
    request = GenerateRequest(id=1, messages=[user("hi")], template="[{{ .Prompt }}]")
    assert template.render(request).text == "[hi]"
    bad = GenerateRequest(id=1, messages=[user("hi")], template="{{ .Prompt")
    with pytest.raises(TemplateError, match=r"^template: :1: unclosed action$"):
        template.render(bad)


def test_malformed_tools_do_not_break_a_template() -> None:
    tools: list[dict[str, Any]] = [{}, {"function": {"parameters": {"properties": {"a": 3, "b": {"type": 5}}}}}]
    assert render("{{ .Tools }}{{ len .Messages }}", user("x"), tools=tools).endswith("]1")


def test_calls_a_template_does_not_show_are_written_out() -> None:
    called = Message("assistant", tool_calls=[ToolCall("f", {"a": 1})])
    text = render(CHATML, user("x"), called, Message("tool", "R"))
    assert '<|im_start|>assistant\n{"name": "f", "arguments": {"a": 1}}<|im_end|>\n<|im_start|>tool\nR' in text


def test_a_developer_message_is_a_system_message() -> None:
    source = (
        "{{ if .System }}[{{ .System }}]{{ end }}"
        '{{ range .Messages }}{{ if eq .Role "user" }}{{ .Content }}{{ end }}{{ end }}'
    )
    request = GenerateRequest(id=1, messages=[Message("developer", "D"), Message("user", "x")])
    assert PromptTemplate.from_go(source).render(request).text == "[D]x"


def test_a_tool_without_a_description_has_an_empty_one() -> None:
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
    request = GenerateRequest(id=1, messages=[Message("user", "x")], tools=[tool])
    text = PromptTemplate.from_go("{{ .Tools }}{{ range .Messages }}{{ .Content }}{{ end }}").render(request).text
    assert text == (
        '[{"type":"function","function":{"name":"f","description":"","parameters":'
        '{"type":"object","properties":{"a":{"type":"string"}}}}}]x'
    )


def test_references_of_a_tools_parameters_are_told_where_a_property_has_no_place_for_them() -> None:
    parameters = {
        "type": "object",
        "$defs": {
            "unit": {"type": "string", "enum": ["c", "f"]},
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}},
        },
        "properties": {
            "u": {"$ref": "#/$defs/unit", "description": "The unit."},
            "n": {"$ref": "#/$defs/node"},
            "list": {"type": "array", "items": {"$ref": "#/$defs/unit"}},
            "lost": {"$ref": "#/$defs/nowhere"},
        },
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    template = PromptTemplate.from_go(
        "{{ range .Tools }}{{ json .Function.Parameters.Properties }}{{ end }}{{ .Messages }}"
    )
    text = template.render(GenerateRequest(id=1, messages=[Message("user", "x")], tools=tools)).text
    assert '"u":{"type":"string","description":"The unit.","enum":["c","f"]}' in text
    assert '"list":{"type":"array","items":{"enum":["c","f"],"type":"string"}}' in text
    assert '"lost":{}' in text and 1 < text.count('"next":') < 8
