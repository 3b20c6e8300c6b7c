"""Tool calls in every family's format are found, wherever the stream is cut, and nothing that is no call is lost."""

# ruff: noqa: E501  (what models write is kept on one line where it is one)
from __future__ import annotations

import itertools
import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.messages.request import ToolCall
from omlx.prompting.output import PLAIN, OutputDialect, OutputParser, Segment, detect_output
from omlx.prompting.segments import joined
from omlx.prompting.thinking import ThinkMarkers
from omlx.prompting.tools import FORMATS

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "fine": {"type": "boolean"},
                    "where": {"type": "object"},
                    "tags": {"type": ["array", "null"]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "ns.run-it", "parameters": {"properties": {"code": {"type": "string"}}}}},
]
THINK = ThinkMarkers("<think>", "</think>")


def dialect(*formats: str, think: ThinkMarkers | None = THINK, **fields: Any) -> OutputDialect:
    return OutputDialect(think=think, tools=formats, **fields)


def parse(
    spoken: OutputDialect,
    text: str,
    size: int = 0,
    tools: list[dict[str, Any]] | None = None,
    ended: bool = False,
    **options: Any,
) -> list[Segment]:
    """All segments, neighbours joined; ids count up. `ended`: see `finish`."""
    ids = itertools.count(1)
    parser = OutputParser(spoken, tools=TOOLS if tools is None else tools, new_id=lambda: str(next(ids)), **options)
    chunks = [text[at : at + size] for at in range(0, len(text), size)] if size else [text]
    return joined([*(segment for chunk in chunks for segment in parser.feed(chunk)), *parser.finish(ended=ended)])


def calls(*expected: tuple[str, dict[str, Any]]) -> list[Segment]:
    return [Segment("tool_call", call=ToolCall(name, args, str(at))) for at, (name, args) in enumerate(expected, 1)]


def text(content: str) -> list[Segment]:
    return [Segment("content", content)] if content else []


PARIS = ("weather", {"city": "Paris"})
NOW: tuple[str, dict[str, Any]] = ("now", {})
FULL = ("weather", {"city": "São <b>\n{", "days": 3, "fine": True, "where": {"x": [1, {"y": None}]}})
FULL_JSON = json.dumps(FULL[1], ensure_ascii=False)

# format, what the model writes, the calls in it
SPOKEN: list[tuple[str, str, list[tuple[str, dict[str, Any]]]]] = [
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', [PARIS]),
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {FULL_JSON}}}</tool_call>\n'
     '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', [FULL, NOW]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', [PARIS]),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "a</tool_call>b"}}</tool_call>',
     [("weather", {"city": "a</tool_call>b"})]),
    ("hermes", '<tool_call>{"name": "now"}', [NOW]),
    ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}}\n</tool_call>', [PARIS]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}\n{"name": "now", "arguments": null}</tool_call>', [NOW, NOW]),
    ("qwen3-coder", "<tool_call>\n<function=weather>\n<parameter=city>\nSão <b>\n{\n</parameter>\n<parameter=days>\n3\n"
     '</parameter>\n<parameter=fine>True</parameter>\n<parameter=where>\n{"x": [1, {"y": null}]}\n</parameter>\n'
     "</function>\n</tool_call>", [FULL]),
    ("qwen3-coder", "<function=now>\n</function>", [NOW]),
    ("qwen3-coder", "<tool_call><function=now></function></tool_call>\n<tool_call>\n<function=ns.run-it>\n"
     "<parameter=code>\nif a < b:\n    f()\n\n</parameter>\n</function>\n</tool_call>",
     [NOW, ("ns.run-it", {"code": "if a < b:\n    f()\n"})]),
    ("qwen3-coder", "<seed:tool_call><function=weather><parameter=city>42</parameter></function></seed:tool_call>",
     [("weather", {"city": "42"})]),
    ("llama", '{"name": "weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama", '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "now", "parameters": {}}', [PARIS, NOW]),
    ("llama", '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}', [NOW]),
    ("llama", '<|python_tag|>weather.call(city="Paris")', [PARIS]),
    ("llama-function", '<function=weather>{"city": "Paris"}</function>', [PARIS]),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
     [PARIS, NOW]),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]abcDEF123[ARGS]{}', [PARIS, NOW]),
    ("mistral", '[TOOL_CALLS]weather{"city": "Paris"}', [PARIS]),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
     '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", [PARIS, NOW]),
    ("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
     "<｜tool▁calls▁end｜>", [PARIS]),
    ("｜DSML｜function_calls", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
     '<｜DSML｜parameter name="city" string="true">42</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
     [("weather", {"city": "42", "days": 3})]),
    ("granite", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]', [PARIS]),
    ("granite", '<tool_call>[{"name": "now", "arguments": {}}]', [NOW]),
    ("granite", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', [NOW]),
    ("phi", 'functools[{"name": "weather", "arguments": {"city": "Paris"}}]', [PARIS]),
    ("nemotron", '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}]</TOOLCALL>', [PARIS]),
    ("apertus", '<|tools_prefix|>[{"weather": {"city": "Paris"}}, {"now": {}}]<|tools_suffix|>', [PARIS, NOW]),
    ("gigachat", '<|function_call|>{"name": "weather", "arguments": {"city": "Paris"}}', [PARIS]),
    ("hunyuan", '<tool_calls>[{"name": "now", "arguments": {}, "id": "x"}]</tool_calls>', [NOW]),
    ("hunyuan3:opensource", "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city"
     "</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n</tool_call:opensource>\n"
     "<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", [PARIS, NOW]),
    ("minimax-m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Paris]<]minimax[>['
     '</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="now">]<]minimax[>['
     "</invoke>\n]<]minimax[>[</tool_call>", [("weather", {"city": "Paris", "days": 3}), NOW]),
    ("solar", '<|tool_calls|><|tool_call:begin|>call_1<|tool_call:name|>weather<|tool_call:args|>{"city": "Paris"}'
     "<|tool_call:end|><|tool_call:begin|>call_2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>", [PARIS, NOW]),
    ("cohere", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}}\n]'
     "<|END_ACTION|>", [PARIS]),
    ("command-r", 'Action: ```json\n[\n    {\n        "tool_name": "weather",\n        "parameters": {"city": "Paris"}\n'
     "    }\n]```", [PARIS]),
    ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call><tool_call>now</tool_call>",
     [("weather", {"city": "Paris", "days": 3}), NOW]),
    ("glm4", 'weather\n{"city": "Paris"}', [PARIS]),
    ("longcat", "<longcat_tool_call>weather<longcat_arg_key>city</longcat_arg_key>"
     "<longcat_arg_value>Paris</longcat_arg_value></longcat_tool_call>", [PARIS]),
    ("kimi-k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>'
     '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
     "<|tool_calls_section_end|>", [PARIS, NOW]),
    ("kimi-k3", '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city" type="string"'
     '<|sep|>Paris<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="now"<|sep|><|open|>json type="object"<|sep|>'
     "{}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>", [PARIS, NOW]),
    ("minimax:tool_call", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Paris</parameter>\n'
     '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
     [("weather", {"city": "Paris", "days": 3}), NOW]),
    ("function", '<function name="weather"><param name="city"><![CDATA[a < b]]></param></function>',
     [("weather", {"city": "a < b"})]),
    ("function-gemma", "<start_function_call>call:weather{city:<escape>Pa, {ris<escape>,days:3,fine:true}"
     "<end_function_call>", [("weather", {"city": "Pa, {ris", "days": 3, "fine": True})]),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Paris<|"|>,where:{x:[1,{y:null}]}}<tool_call|>',
     [("weather", {"city": "Paris", "where": {"x": [1, {"y": None}]}})]),
    ("tool-code", '```tool_code\nprint(weather(city="Paris", days=3))\n```', [("weather", {"city": "Paris", "days": 3})]),
    ("tool-code", "```tool_code\nnow()\nweather(city='Paris')\n```", [NOW, PARIS]),
    ("lfm2", '<|tool_call_start|>[weather(city="Paris"), now()]<|tool_call_end|>', [PARIS, NOW]),
    ("lfm2", '<|tool_call_start|>[{"name": "now", "arguments": {}}]<|tool_call_end|>', [NOW]),
    ("pythonic", """[weather(city='São <b>\\n{', days=3, fine=True, where={"x": [1, {'y': None}]})]""", [FULL]),
    ("pythonic", "[now()]", [NOW]),
    ("llama4", '<|python_start|>[weather(city="Paris")]<|python_end|>', [PARIS]),
    ("olmo3", "<function_calls>\nweather(city=\"Paris\")\nnow()\n</function_calls>", [PARIS, NOW]),
    ("json", '{"name": "weather", "arguments": {"city": "Paris"}}', [PARIS]),
    ("json", '[{"type": "function", "function": {"name": "now", "arguments": "{}"}}]', [NOW]),
    ("json", '{"tool_calls": [{"name": "now", "arguments": {}}]}', [NOW]),
    ("fenced", '```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```', [PARIS]),
]  # fmt: skip

SIZES = [1, 2, 3, 5, 11, 0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("spoken", "written", "expected"), SPOKEN)
def test_calls_are_found(spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]], size: int) -> None:
    assert parse(dialect(spoken), written, size) == calls(*expected)


_MARKED = [case for case in SPOKEN if not FORMATS[case[0]].bare and case[0] != "llama"]


@pytest.mark.parametrize("size", [1, 4, 0])
@pytest.mark.parametrize(("spoken", "written", "expected"), _MARKED)
def test_text_and_thinking_around_calls_are_kept_apart(
    spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]], size: int
) -> None:
    segments = parse(dialect(spoken), f"<think>\nhm\n</think>\n\nLet me see.\n\n{written}\n", size)
    assert segments == [Segment("thinking", "hm\n"), *text("Let me see."), *calls(*expected)]


@pytest.mark.parametrize(("spoken", "written", "expected"), _MARKED)
def test_a_call_before_thinking_is_closed_counts(
    spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    for size in (1, 0):
        segments = parse(dialect(spoken), f"hm.{written}", size, opens_thinking=True)
        assert segments == [Segment("thinking", "hm."), *calls(*expected)]


@pytest.mark.parametrize(("spoken", "written", "expected"), SPOKEN)
def test_a_call_that_is_cut_off_is_released_as_text_or_whole(
    spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    for end in range(1, len(written)):
        cut = written[:end]
        segments = parse(dialect(spoken), cut, 7)
        assert segments == parse(dialect(spoken), cut)
        found = [segment.call for segment in segments if segment.call]
        assert [(call.name, call.arguments) for call in found] == expected[: len(found)] or spoken in {
            "hermes",
            "kimi-k3",
        }
        if not found:
            assert "".join(segment.text for segment in segments) == cut


@pytest.mark.parametrize(
    ("spoken", "written", "expected"), [case for case in SPOKEN if case[0] not in {"glm4", "pythonic", "fenced"}]
)
def test_a_further_call_that_is_cut_off_is_no_text(
    spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    marked = (spoken, written, expected) in _MARKED
    for end in range(1, len(written)):
        output = f"Let me see.{written}" if marked else written
        cut = f"{output}\n{written[:end]}"
        segments = parse(dialect(spoken), cut, 7)
        assert segments == parse(dialect(spoken), cut)
        told = "".join(segment.text for segment in segments)
        assert told == ("Let me see." if marked else ""), (end, written[:end])


@pytest.mark.parametrize(("spoken", "written", "expected"), SPOKEN)
def test_without_tools_nothing_is_a_call(spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]]) -> None:
    assert parse(dialect(spoken), written, 3, tools=[]) == text(written)


@pytest.mark.parametrize(("spoken", "written", "expected"), SPOKEN)
def test_a_marked_call_of_a_tool_that_was_not_offered_is_a_call(
    spoken: str, written: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    other = [{"type": "function", "function": {"name": "other"}}]
    segments = parse(dialect(spoken), written, 3, tools=other)
    if spoken in {"tool-code", "glm4"} or (spoken, written, expected) not in _MARKED + [
        case for case in SPOKEN if case[1].startswith("<|python_tag|>")
    ]:
        # What only looks like a call must name a tool that was offered.
        assert segments == text(written)
    else:
        names = [segment.call.name for segment in segments if segment.call]
        assert names == [name for name, _ in expected]
        assert not any(segment.text for segment in segments)


@pytest.mark.parametrize(
    "answer",
    [
        '{"answer": 42, "name": "weather"}',
        '{"name": "Paris", "country": "France"}',
        '{"name": "weather"}',
        "[1, 2, 3]",
        "[link](https://example.org) and more",
        "```python\nprint(1)\n```",
        '```json\n{"a": 1}\n```',
        "Use <tool_call> tags, or <function=f>, or [TOOL_CALLS].",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": NaN}}</tool_call>',
        "<tool_call>not json</tool_call>",
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}',
        "  leading white space\n and trailing  \n",
        "weather",
        "a < b <",
        "",
    ],
)
def test_what_is_no_call_stays_as_it_was(answer: str) -> None:
    for size in SIZES:
        assert parse(dialect(*FORMATS), answer, size) == text(answer)


def test_text_behind_a_call_is_content() -> None:
    written = '<tool_call>{"name": "now", "arguments": {}}</tool_call>\nDone.\n'
    for size in SIZES:
        assert parse(dialect("hermes"), written, size) == [*calls(NOW), *text("Done.\n")]


def test_a_json_answer_is_not_held_back_once_it_cannot_be_a_call() -> None:
    parser = OutputParser(dialect("hermes"), tools=TOOLS)
    assert parser.feed('{"answer": [1, 2') == text('{"answer": [1, 2')


def test_content_ahead_of_a_call_is_passed_on_at_once() -> None:
    parser = OutputParser(dialect("hermes"), tools=TOOLS)
    assert parser.feed("Let me ") == text("Let me")
    assert parser.feed("see <tool") == text(" see")


def test_a_call_is_passed_on_as_soon_as_it_is_whole() -> None:
    parser = OutputParser(dialect("hermes"), tools=TOOLS)
    segments = parser.feed('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert [segment.call.name for segment in segments if segment.call] == ["now"]


def test_ids_look_like_ollamas() -> None:
    parser = OutputParser(dialect("hermes"), tools=TOOLS)
    found = [*parser.feed('{"name": "now", "arguments": {}}'), *parser.finish()]
    assert found[0].call is not None
    assert re.fullmatch(r"call_[a-z0-9]{8}", found[0].call.id)


def test_thinking_that_speaks_of_calls_stays_thinking() -> None:
    written = '<think>I write <tool_call>{"name": </think>Hello'
    for size in SIZES:
        assert parse(dialect("hermes"), written, size) == [
            Segment("thinking", 'I write <tool_call>{"name": '), *text("Hello")
        ]  # fmt: skip


def test_wrappers_of_the_answer_are_no_content() -> None:
    cohere = detect_output("<|START_THINKING|><|END_THINKING|><|START_ACTION|>", [], "cohere2")
    written = "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>"
    for tools in ([], TOOLS):
        for size in SIZES:
            assert parse(cohere, written, size, tools=tools) == [Segment("thinking", "hm"), *text("Hello")]


def test_code_for_an_interpreter_is_a_call() -> None:
    tools = [{"type": "function", "function": {"name": "python", "parameters": {"properties": {"script": {}}}}}]
    written = "<|python_tag|>import os\nprint({1: 2})"
    assert parse(dialect("llama"), written, 3, tools=tools) == calls(("python", {"script": "import os\nprint({1: 2})"}))


def test_a_plain_dialect_marks_nothing() -> None:
    written = '<think>x</think><tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert parse(PLAIN, written, 1) == text(written)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 12345678901234567890123}', {"a": 1.2345678901234568e22}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "line\nbreak"}', {"a": "line\nbreak"}),
    ],
)
def test_arguments_always_fit_a_frame(arguments: str, expected: dict[str, Any]) -> None:
    (segment,) = parse(dialect("hermes"), f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>')
    assert segment.call is not None
    assert segment.call.arguments == expected
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(segment.call), type=ToolCall) == segment.call


def test_a_long_call_does_not_cost_more_than_its_length() -> None:
    code = "x = {'a': [1, 2]}\n" * 6_000
    written = f"<tool_call>{json.dumps({'name': 'ns.run-it', 'arguments': {'code': code}})}</tool_call>"
    assert parse(dialect("hermes"), written, 4) == calls(("ns.run-it", {"code": code}))


# ---------------------------------------------------------------- gpt-oss
HARMONY = OutputDialect(channels=True)
HARMONY_CASES = [
    ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
     [Segment("thinking", "hm"), *text("Hello")]),
    ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
     '<|constrain|>json<|message|>{"city": "Paris"}<|call|>', [Segment("thinking", "hm"), *calls(PARIS)]),
    ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json"
     '<|message|>{"city": "Paris"}', [*text("I look."), *calls(PARIS)]),
    (" to=functions.now<|channel|>commentary<|message|>", []),
    (" to=functions.now<|channel|>commentary<|message|>{}", calls(NOW)),
    ("<|channel|>commentary to=functions.now<|message|>{}<|end|><|start|>assistant<|channel|>commentary"
     " to=functions.now<|message|>{}<|call|>", calls(NOW, NOW)),
    ("<|channel|>commentary to=functions.now<|message|>{}<|end|><|start|>assistant<|channel|>commentary"
     ' to=functions.weather<|message|>{"city": "Pa', calls(NOW)),
    ("<|channel|>commentary to=functions.nope<|message|>{}<|call|>", calls(("nope", {}))),
    ('<|channel|>commentary to=functions.now<|message|>{"a": <|call|>', text('{"a": ')),
    ("<|channel|>final<|message|>a < b <|", text("a < b <|")),
    ("<|channel|>final<|message|>a<|end|>", text("a")),
    ("continued answer", text("continued answer")),
    ("<|channel|>analysis<|message|>never closed", [Segment("thinking", "never closed")]),
    ("<|channel|>analysis", []),
    ("", []),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("written", "expected"), HARMONY_CASES)
def test_harmony_channels(written: str, expected: list[Segment], size: int) -> None:
    if written.endswith("commentary<|message|>"):
        expected = calls(NOW)
    assert parse(HARMONY, written, size) == expected


# ---------------------------------------------------------------- Go templates, detection
@pytest.mark.parametrize(
    ("source", "written"),
    [
        ('{{ range .Messages }}{{ range .ToolCalls }}<call>{"name": "{{ .Function.Name }}"}{{ end }}{{ end }}',
         'Well. <call>{"name": "now", "parameters": {}}'),
        ('{{ range .Messages }}{{ range .ToolCalls }}{"name": "{{ .Function.Name }}"}{{ end }}{{ end }}',
         '{"name": "now", "parameters": {}}'),
    ],
)  # fmt: skip
def test_the_tag_of_a_go_template_marks_calls(source: str, written: str) -> None:
    spoken = detect_output(source, [], "llama")
    for size in SIZES:
        assert parse(spoken, written, size) == [*text("Well." if written.startswith("Well") else ""), *calls(NOW)]


@pytest.mark.parametrize(
    ("source", "tokens", "model_type", "expected"),
    [
        ("<tool_call> <think> </think>", [], "qwen3", {"hermes"}),
        ("<tool_call>\n<function=", [], "qwen3_moe", {"hermes", "qwen3-coder"}),
        ("[TOOL_CALLS]", ["[TOOL_CALLS]"], "mistral", {"mistral"}),
        ("", ["<|python_tag|>"], "llama", {"llama"}),
        ("<｜tool▁calls▁begin｜>", [], "deepseek_v3", {"deepseek"}),
        ("<tool_call><arg_key>", ["<|observation|>"], "glm4_moe", {"glm"}),
        ("<|tool_call_begin|>", [], "kimi_k2", {"kimi-k2"}),
        ("<minimax:tool_call>", [], "minimax_m2", {"minimax:tool_call"}),
        ("<|tool_call>", [], "gemma4", {"gemma4"}),
        ("<|tool_call_start|>", [], "lfm2", {"lfm2"}),
        ("<|START_ACTION|>", [], "cohere2", {"cohere"}),
    ],
)
def test_formats_are_found_in_template_and_vocabulary(
    source: str, tokens: list[str], model_type: str, expected: set[str]
) -> None:
    assert expected <= set(detect_output(source, tokens, model_type).tools)


def test_gpt_oss_speaks_in_channels() -> None:
    spoken = detect_output("<|channel|><|message|>", ["<|call|>", "<|return|>"], "gpt_oss")
    assert spoken.channels
    assert spoken.end_tokens == ("<|return|>", "<|call|>")


# ---------------------------------------------------------------- properties
_WORDS = sorted(
    {
        segment
        for case in SPOKEN
        for segment in re.findall(r"<[^<>\s]{1,30}>|\[[A-Z_]+\]|```\w*|\w+|[^\w\s]|\s+", case[1])
    }
    | {
        "<think>",
        "</think>",
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "analysis",
        "final",
        " to=functions.now",
    }
)
_TEXTS = st.lists(
    st.sampled_from(_WORDS) | st.sampled_from([case[1] for case in SPOKEN]) | st.text(max_size=4), max_size=30
)


@settings(max_examples=300, deadline=None)
@given(
    _TEXTS.map("".join), st.lists(st.integers(1, 40), min_size=1, max_size=20), st.booleans(), st.sampled_from([0, 1])
)
def test_pieces_never_depend_on_the_chunks(written: str, sizes: list[int], opens: bool, channels: int) -> None:
    spoken = HARMONY if channels else dialect(*FORMATS)
    ids = itertools.count(1)
    parser = OutputParser(spoken, tools=TOOLS, opens_thinking=opens, new_id=lambda: str(next(ids)))
    segments: list[Segment] = []
    position = 0
    for size in itertools.cycle(sizes):
        if position >= len(written):
            break
        segments += parser.feed(written[position : position + size])
        position += size
    assert joined([*segments, *parser.finish()]) == parse(spoken, written, opens_thinking=opens)


@settings(max_examples=200, deadline=None)
@given(_TEXTS.map("".join))
def test_without_tools_and_thinking_no_character_is_lost(written: str) -> None:
    assert parse(dialect(*FORMATS, think=None), written, 5, tools=[]) == text(written)
