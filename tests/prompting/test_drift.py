"""Outputs that drift from their family's grammar, as seen in the field: the call that was meant is read, or all is
text.
"""

# ruff: noqa: E501  (what models write is kept on one line where it is one)
from __future__ import annotations

from typing import Any

import pytest

from omlx.prompting.output import detect_output
from omlx.prompting.segments import Segment
from tests.prompting.test_tools import SIZES, calls, parse, text


def tool(name: str, /, **properties: str) -> dict[str, Any]:
    schemas = {key: {"type": kind} for key, kind in properties.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": schemas}}}


TOOLS = [
    tool("put", path="string", body="string", mode="integer", extra="object"),
    tool("find", pattern="string"),
    tool("run", command="string"),
    tool("make-pdf", name="string", content="string"),
]
LS = ("run", {"command": "ls"})
PUT = ("put", {"path": "a.py", "body": "print(1)"})
QWEN = "<tool_call>\n<function="
THINKING_QWEN = QWEN + "<think></think>"
GEMMA = "<|tool_call> <|channel> <channel|>"
GLM = "<tool_call><arg_key>"
HARMONY = "<|channel|><|message|>"
THINKS = "<think></think>"


def thought(written: str) -> list[Segment]:
    return [Segment("thinking", written)]


# template, what the model writes, what it means
CASES: dict[str, tuple[str, str, list[Segment]]] = {
    # Qwen3-Coder and its kin
    "no > behind a parameter": (QWEN, "<tool_call>\n<function=put>\n<parameter=path\na.py\n</parameter>\n<parameter=body>\nprint(1)\n</parameter>\n</function>\n</tool_call>", calls(PUT)),
    "no > behind the function": (QWEN, "<tool_call>\n<function=run\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", calls(LS)),
    "a parameter not closed in front of the next": (QWEN, "<tool_call>\n<function=put>\n<parameter=path>\na.py\n<parameter=body>\nprint(1)\n</parameter>\n</function>\n</tool_call>", calls(PUT)),
    "the last parameter not closed": (QWEN, "<tool_call>\n<function=put>\n<parameter=path>\na.py\n</parameter>\n<parameter=body>\nprint(1)\n</function>\n</tool_call>", calls(PUT)),
    "the function not closed": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</tool_call>", calls(LS)),
    "nothing closed in front of the next call": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n<tool_call>\n<function=find>\n<parameter=pattern>\n*\n</parameter>\n</function>\n</tool_call>", calls(LS, ("find", {"pattern": "*"}))),
    "no opener, a closer": (QWEN, "I look.\n\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", [*text("I look."), *calls(LS)]),
    "a closer of another family between": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</function_invocation>\n</tool_call>", calls(LS)),
    "arguments as JSON": (QWEN, '<tool_call>\n<function=find>\n{"pattern": "**"}\n</function>\n</tool_call>', calls(("find", {"pattern": "**"}))),
    "an object as Python writes it": (QWEN, "<tool_call>\n<function=put>\n<parameter=extra>\n{'a': True, 'b': [None, 'x']}\n</parameter>\n</function>\n</tool_call>", calls(("put", {"extra": {"a": True, "b": [None, "x"]}}))),
    "an opener twice": (QWEN, "<tool_call>\n<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", calls(LS)),
    "a value that speaks of tags": (QWEN, "<tool_call>\n<function=put>\n<parameter=path>\na.md\n</parameter>\n<parameter=body>\nWrite <parameter=x> and </function> so.\n</parameter>\n</function>\n</tool_call>", calls(("put", {"path": "a.md", "body": "Write <parameter=x> and </function> so."}))),
    "Seed-OSS writes values right between the tags": (QWEN, "<seed:tool_call>\n<function=put>\n<parameter=body>print(1)\n</parameter>\n</function>\n</seed:tool_call>", calls(("put", {"body": "print(1)\n"}))),
    "text behind a function whose outer tag stays open": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\nDone.", [*calls(LS), *text("Done.")]),
    "no < in front of the function": (QWEN, "<tool_call>\nfunction=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", calls(LS)),
    "two closers that have changed places": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n</function>\n</parameter>\n</tool_call>", calls(LS)),
    "quotes around the names": (QWEN, '<tool_call>\n<function="run">\n<parameter="command">\nls\n</parameter>\n</function>\n</tool_call>', calls(LS)),
    "names as attributes": (QWEN, '<tool_call>\n<function name="run">\n<parameter name="command">\nls\n</parameter>\n</function>\n</tool_call>', calls(LS)),
    "the function's closer of another family": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</invoke>\n</tool_call>", calls(LS)),
    "a value that holds its closer": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\necho </parameter> done\n</parameter>\n</function>\n</tool_call>", calls(("run", {"command": "echo </parameter> done"}))),
    "spaces in tags": (QWEN, "<tool_call>\n<function = run>\n<parameter = command >\nls\n</parameter >\n</function >\n</tool_call >", calls(LS)),
    "spaces in tags, no outer ones": (QWEN, "I look.\n<function = run>\n<parameter = command>\nls\n</parameter>\n</function>", [*text("I look."), *calls(LS)]),
    "spaces around attributes": (QWEN, '<tool_call>\n<function name = "run">\n<parameter name = "command">\nls\n</parameter>\n</function>\n</tool_call>', calls(LS)),
    "a closer in front of all": (QWEN, "</tool_call>\n<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", calls(LS)),
    # Gemma 4
    "Gemma: a name with namespaces": (GEMMA, "<|tool_call>call:google:mcp:make-pdf{name:'o.pdf',content:'one, two {three}'}<tool_call|>", calls(("make-pdf", {"name": "o.pdf", "content": "one, two {three}"}))),
    "Gemma: = for :": (GEMMA, "<|tool_call>call:make-pdf{name:<|\"|>r.pdf<|\"|>,content='hello, you'}<tool_call|>", calls(("make-pdf", {"name": "r.pdf", "content": "hello, you"}))),
    "Gemma: a quote too many": (GEMMA, "<|tool_call>call:find{pattern:':\\s*\\w+'<|\"|>}<tool_call|>", calls(("find", {"pattern": ":\\s*\\w+"}))),
    "Gemma: parentheses": (GEMMA, '<|tool_call>call:make-pdf(name=<|"|>r.pdf<|"|>,content=<|"|>hello<|"|>)<tool_call|>', calls(("make-pdf", {"name": "r.pdf", "content": "hello"}))),
    "Gemma: no brace at the end": (GEMMA, '<|tool_call>call:run{command:<|"|>ls<|"|><tool_call|>', calls(LS)),
    "Gemma: no quote at the end": (GEMMA, '<|tool_call>call:run{command:<|"|>ls}<tool_call|>', calls(LS)),
    "Gemma: two closers": (GEMMA, '<|tool_call>call:run{command:<|"|>ls<|"|>}<tool_call|><tool_call|>', calls(LS)),
    "Gemma: two calls in a block": (GEMMA, '<|tool_call>call:run{command:<|"|>ls<|"|>}call:run{command:<|"|>ls<|"|>}<tool_call|>', calls(LS, LS)),
    "Gemma: an empty thought behind the answer": (GEMMA, "<|channel>thought\n<channel|>Hi<|channel>thought\n<channel|>", text("Hi")),
    "Gemma: a thought behind the answer": (GEMMA, "Hi\n<|channel>thought\nhm<channel|>there", [*text("Hi"), *thought("hm"), *text("there")]),
    # GLM
    "GLM: arguments as JSON": (GLM, '<tool_call>find\n{"pattern": "a"}</tool_call>', calls(("find", {"pattern": "a"}))),
    "GLM: no opener of the value": (GLM, "<tool_call>find<arg_key>pattern</arg_key>a b</arg_value></tool_call>", calls(("find", {"pattern": "a b"}))),
    "GLM: a value not closed": (GLM, "<tool_call>put<arg_key>path</arg_key><arg_value>a.py<arg_key>body</arg_key><arg_value>print(1)</arg_value></tool_call>", calls(PUT)),
    "GLM: spaces in closers": (GLM, "<tool_call>find<arg_key>pattern</arg_key ><arg_value>a b</arg_value ></tool_call >", calls(("find", {"pattern": "a b"}))),
    "GLM: the last value not closed": (GLM, "<tool_call>find<arg_key>pattern</arg_key><arg_value>a b</tool_call>", calls(("find", {"pattern": "a b"}))),
    "GLM: the call not closed": (GLM, "<tool_call>find<arg_key>pattern</arg_key><arg_value>a</arg_value>\n<tool_call>run<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>", calls(("find", {"pattern": "a"}), LS)),
    "LongCat: JSON": ("<longcat_tool_call>", '<longcat_tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</longcat_tool_call>', calls(LS)),
    "Hunyuan 3 without suffix": ("<tool_calls><tool_sep><arg_key>", "<tool_calls><tool_call>run<tool_sep><arg_key>command</arg_key><arg_value>ls</arg_value></tool_call></tool_calls>", calls(LS)),
    "Hunyuan of another release": ("<tool_calls:v4>", "<tool_calls:v4><tool_call:v4>run<tool_sep:v4><arg_key:v4>command</arg_key:v4><arg_value:v4>ls</arg_value:v4></tool_call:v4></tool_calls:v4>", calls(LS)),
    # invoke
    "DeepSeek: a call that closes itself": ("｜DSML｜" + THINKS, '<｜DSML｜function_calls><｜DSML｜invoke name="run"/></｜DSML｜function_calls>', calls(("run", {}))),
    "DeepSeek: arguments as JSON": ("｜DSML｜", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="run">\n{"command": "ls"}\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', calls(LS)),
    "DeepSeek: a parameter that closes itself": ("｜DSML｜", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="put">\n<｜DSML｜parameter name="path" string="true" value="a.py"/>\n<｜DSML｜parameter name="body" string="true">print(1)</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', calls(PUT)),
    "MiniMax: no wrapper": ("<minimax:tool_call>", '<invoke name="run">\n<parameter name="command">ls</parameter>\n</invoke>\n</minimax:tool_call>', calls(LS)),
    "MiniMax: a parameter not closed": ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="put">\n<parameter name="path">a.py\n<parameter name="body">print(1)</parameter>\n</invoke>\n</minimax:tool_call>', calls(PUT)),
    "MiniMax M3: an object": ("]<]minimax[>[", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="put">]<]minimax[>[<extra>]<]minimax[>[<a>1]<]minimax[>[</a>]<]minimax[>[<b>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</b>]<]minimax[>[</extra>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>', calls(("put", {"extra": {"a": 1, "b": ["x", 2]}}))),
    "Step 3": ("<｜tool_calls_begin｜>", '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="run">\n<steptml:parameter name="command">ls</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>', calls(LS)),
    # JSON in tags
    "a brace too few, text behind": ("<tool_call>", '<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>\n<tool_call>\n{"name": "run", "arguments": {"command": "ls"}\n</tool_call>\nText behind.', [*calls(LS, LS), *text("Text behind.")]),
    "a string that never ends, text behind": ("<tool_call>", '<tool_call>{"name": "run", "arguments": {"command": "ls"}}</tool_call>\n<tool_call>{"name": "run", "arguments": {"command": "l}}\n</tool_call>\nText behind.', [*calls(LS), *text('<tool_call>{"name": "run", "arguments": {"command": "l}}\n</tool_call>\nText behind.')]),
    "JSON without the opener": ("<tool_call>", '{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>', calls(LS)),
    "JSON as Python writes it": ("<tool_call>", "<tool_call>{'name': 'run', 'arguments': {'command': 'ls', 'dry': True}}</tool_call>", calls(("run", {"command": "ls", "dry": True}))),
    "a comma too many": ("<tool_call>", '<tool_call>{"name": "run", "arguments": {"command": "ls",}}</tool_call>', calls(LS)),
    "Granite 20B": ("<function_call>", '<function_call> {"name": "run", "arguments": {"command": "ls"}}<function_call> {"name": "run", "arguments": {"command": "ls"}}', calls(LS, LS)),
    "Nemotron Mini": ("<toolcall>", '<toolcall> {"type": "function", "arguments": {"command": "ls"}, "name": "run"} </toolcall>', calls(LS)),
    "xLAM": ("", '{"thought": "Look first.", "tool_calls": [{"name": "run", "arguments": {"command": "ls"}}]}', [*thought("Look first."), *calls(LS)]),
    "xLAM 2": ("", '[{"name": "run", "arguments": {"command": "ls"}}, {"name": "run", "arguments": {"command": "ls"}}]', calls(LS, LS)),
    "GigaChat 3": ("`function call`", 'Hi<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "run", "arguments": {"command": "ls"}}', [*text("Hi"), *calls(LS)]),
    "Functionary: a call": (">>>${recipient}", 'run\n{"command": "ls"}', calls(LS)),
    "Functionary: text and calls": (">>>${recipient}", 'all\nI look.\n>>>run\n{"command": "ls"}>>>other\n{}', [*text("I look."), *calls(LS, ("other", {}))]),
    "Functionary: text only": (">>>${recipient}", "all\nHello\n>>> print(1)", text("Hello\n>>> print(1)")),
    # one wrapper for several calls, cut off in a later one
    "DeepSeek, cut": ("<｜tool▁calls▁begin｜>", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>{"command":"ls"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>{"com', calls(LS)),
    "Kimi, cut": ("<|tool_call_begin|>", '<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{"command": "ls"}<|tool_call_end|><|tool_call_begin|>functions.run:1<|tool_call_argument_begin|>{"comm', calls(LS)),
    "MiniMax, cut": ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="run">\n<parameter name="command">ls</parameter>\n</invoke>\n<invoke name="run">\n<parameter name="comm', calls(LS)),
    "Mistral's list, cut": ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "run", "arguments": {"command": "ls"}}, {"name": "run", "argu', calls(LS)),
    "Qwen3-Coder, cut": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n<function=run>\n<parameter=comm", calls(LS)),
    "LFM2, cut": ("<|tool_call_start|>", '<|tool_call_start|>[run(command="ls"), run(comm', calls(LS)),
    "OLMo 3, cut": ("<function_calls>", '<function_calls>\nrun(command="ls")\nrun(co', calls(LS)),
    "Cohere, cut": ("<|START_ACTION|>", '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "run", "parameters": {"command": "ls"}},\n{"tool_call_id": "1", "tool_n', calls(LS)),
    "a bare list, cut": ("<tool_call>", '[{"name": "run", "arguments": {"command": "ls"}}, {"na', calls(LS)),
    # wrappers that are never closed
    "Kimi, not closed": ("<|tool_call_begin|>", '<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{"command": "ls"}', calls(LS)),
    "OLMo 3, not closed": ("<function_calls>", '<function_calls>\nrun(command="ls")\n', calls(LS)),
    "MiniMax, not closed": ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="run">\n<parameter name="command">ls</parameter>\n</invoke>', calls(LS)),
    # thinking
    "an answer in tags": (THINKS + "<response>", "<think>t</think>\n<response>\nHi\n</response>", [*thought("t"), *text("Hi")]),
    "an answer in tags that speaks of them": (THINKS + "<answer>", "<think>t</think><answer>a </answer> b</answer>", [*thought("t"), *text("a </answer> b")]),
    "an answer in tags, and a call": (THINKS + "<response>", '<response>Hi</response>\n<tool_call>{"name": "run", "arguments": {"command": "ls"}}</tool_call>', [*text("Hi"), *calls(LS)]),
    "no such tags in the template": (THINKS, "<think>t</think><answer>a</answer>", [*thought("t"), *text("<answer>a</answer>")]),
    "a call quoted in thinking": (THINKS + "<|tool_call_start|>", '<think>maybe <|tool_call_start|>[run(command="ls")]<|tool_call_end|> no</think>Hi', [*thought('maybe <|tool_call_start|>[run(command="ls")]<|tool_call_end|> no'), *text("Hi")]),
    "thinking opened twice": (THINKS, "<think>\n<think>t</think>Hi", [*thought("t"), *text("Hi")]),
    # gpt-oss
    "gpt-oss: a brace too many": (HARMONY, '<|channel|>commentary to=functions.run <|constrain|>json<|message|>{"command":"ls"}}<|call|>', calls(LS)),
    "gpt-oss: a message without its token": (HARMONY, "<|channel|>analysis hm<|end|><|start|>assistant<|channel|>final<|message|>Hello", [*thought("hm"), *text("Hello")]),
    "gpt-oss: tokens twice": (HARMONY, "<|channel|><|channel|>analysis<|message|><|message|>hm<|end|><|end|><|start|><|start|>assistant<|channel|>final<|message|>Hello", [*thought("hm"), *text("Hello")]),
    "gpt-oss: a header without its first token": (HARMONY, "<|channel|>analysis<|message|>hm<|end|>assistant<|channel|>final<|message|>Hello", [*thought("hm"), *text("Hello")]),
    "gpt-oss: no token at all in front": (HARMONY, "analysis<|message|>hm<|end|><|start|>assistantfinal<|message|>Hello", [*thought("hm"), *text("Hello")]),
    "gpt-oss: an answer that begins like a header": (HARMONY, "final words", text("final words")),
    "gpt-oss: a built-in tool": (HARMONY, '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>', calls(("browser.search", {"query": "x"}))),
    # Muse Glimmer
    "Muse: thinking and answer": ("<atem:function_calls><|eom|>", " to=self<|message|>t<|eom|><|start|>assistant to=user<|message|>Hi<|eot|>", [*thought("t"), *text("Hi")]),
    "Muse: a call": ("<atem:function_calls><|eom|>", ' to=self<|message|>t<|eom|><|start|>assistant to=run<|message|><atem:function_calls>\n<atem:invoke name="run">\n<atem:parameter name="command">ls</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>', [*thought("t"), *calls(LS)]),
    "Muse: a call among the thinking": ("<atem:function_calls><|eom|>", ' to=self<|message|>t\n<atem:function_calls><atem:invoke name="run"><atem:parameter name="command">ls</atem:parameter></atem:invoke></atem:function_calls><|eom|>', [*thought("t\n"), *calls(LS)]),
    # Families whose marker another one's call stands behind
    "Gemma: a call as JSON": (GEMMA, '<|tool_call>{"name": "run", "arguments": {"command": "ls"}}<tool_call|>', calls(LS)),
    "Gemma: a call as Python": (GEMMA, '<|tool_call>call:run(command="ls")<tool_call|>', calls(LS)),
    "GLM: a call as Python": (GLM, '<tool_call>run(command="ls")</tool_call>', calls(LS)),
    "GLM: a value on its own line without its tags": (GLM, "<tool_call>run\n<arg_key>command</arg_key>\nls\n</tool_call>", calls(LS)),
    "GLM: no closing tag where all that the tool takes is there": (GLM, "<tool_call>run\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n", calls(LS)),
    "Hermes: a name and JSON": ("<tool_call>", '<tool_call>\nrun\n{"command": "ls"}\n</tool_call>', calls(LS)),
    "Hermes: elements": ("<tool_call>", "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", calls(LS)),
    "no family: Mistral's token": ("", '[TOOL_CALLS][{"name": "run", "arguments": {"command": "ls"}}]', calls(LS)),
    "Granite 20B: a closing tag": ("<function_call>", '<function_call> {"name": "run", "arguments": {"command": "ls"}}</function_call>', calls(LS)),
    "Solar: the token behind all calls": ("<|tool_call:begin|>", '<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>run<|tool_call:args|>{"command": "ls"}<|tool_call:end|><|calls|>', calls(LS)),
    "dots: elements": ("<dots_function_call>", 'Hi.<dots_function_call>\n<invoke name="put">\n<parameter name="path">\n  a.py\n</parameter>\n<parameter name="mode">\n3\n</parameter>\n</invoke>\n<invoke name="run"><parameter name="command">ls</parameter></invoke></dots_function_call>', [*text("Hi."), *calls(("put", {"path": "  a.py", "mode": 3}), LS)]),
    "dots: JSON": ("<dots_function_call>", '<dots_function_call>{"name": "run", "arguments": {"command": "ls"}}</dots_function_call>', calls(LS)),
    "dots: a closing tag that nothing opened": ("<dots_function_call>", '<dots_function_call><invoke name="run"><parameter name="command">ls</parameter></invoke></dots_function_call></dots_function_call>', calls(LS)),
    "Doubao: a list between tokens": ("<|FunctionCallBegin|>", '<|FunctionCallBegin|>[{"name": "run", "parameters": {"command": "ls"}}]<|FunctionCallEnd|>', calls(LS)),
    "Hunyuan 3: a suffix from a variable": ("{% set K = ':v9' %}{{ '<think{}>'.format(K) }}{{ '<tool_calls{}>'.format(K) }}", "<think:v9>t</think:v9><tool_calls:v9>\n<tool_call:v9>run<tool_sep:v9>\n<arg_key:v9>command</arg_key:v9>\n<arg_value:v9>ls</arg_value:v9>\n</tool_call:v9>\n</tool_calls:v9>", [*thought("t"), *calls(LS)]),
    "Hunyuan 3: without the outer tag": ("<tool_calls:v9>", "<tool_call:v9>run<tool_sep:v9><arg_key:v9>command</arg_key:v9><arg_value:v9>ls</arg_value:v9></tool_call:v9>", calls(LS)),
    # JSON behind text
    "JSON on a line of its own ends the output": ("", 'I look.\n\n{"name": "run", "arguments": {"command": "ls"}}', [*text("I look."), *calls(LS)]),
    "so does JSON in a fence": ("", 'I look.\n```json\n{"name": "run", "arguments": {"command": "ls"}}\n```\n', [*text("I look."), *calls(LS)]),
    "and a list": ("<tool_call>", 'I look.\n[{"name": "run", "arguments": {"command": "ls"}}]\n</tool_call>', [*text("I look."), *calls(LS)]),
    "an example is text": ("", 'Thus:\n{"name": "run", "arguments": {"command": "ls"}}\nis a call.', text('Thus:\n{"name": "run", "arguments": {"command": "ls"}}\nis a call.')),
    "so is JSON that names no tool": ("", 'Thus:\n{"name": "Bob", "arguments": {}}', text('Thus:\n{"name": "Bob", "arguments": {}}')),
    "and JSON within a line": ("", 'Thus: {"name": "run", "arguments": {"command": "ls"}}', text('Thus: {"name": "run", "arguments": {"command": "ls"}}')),
    "Muse: a continued answer": ("<atem:function_calls><|eom|>", "upon a time", text("upon a time")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_was_meant_is_read(name: str) -> None:
    source, written, expected = CASES[name]
    spoken = detect_output(source, [], "")
    for size in SIZES:
        assert parse(spoken, written, size, tools=TOOLS) == expected, size


OPENED: dict[str, tuple[str, str, list[Segment]]] = {
    "closed behind a call": (THINKING_QWEN, "Look first.\n<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>\n</think>\n\nDone.", [*thought("Look first.\n"), *calls(LS), *text("Done.")]),
    "a call as an example": (THINKING_QWEN, "It would be <tool_call>\n<function=run>\n<parameter=command>\nrm -rf x\n</parameter>\n</function>\n</tool_call> but I must not.\n</think>\n\nI will not.", [*thought("It would be <tool_call>\n<function=run>\n<parameter=command>\nrm -rf x\n</parameter>\n</function>\n</tool_call> but I must not.\n"), *text("I will not.")]),
    "opened again": (THINKING_QWEN, "<think>\nt</think>Hi", [*thought("t"), *text("Hi")]),
    "never closed": (THINKING_QWEN, "t\n<function=run>\n<parameter=command>\nls\n</parameter>\n</function>\n", [*thought("t\n"), *calls(LS)]),
    "a call that closes itself": ("｜DSML｜" + THINKS, '</think><｜DSML｜function_calls><｜DSML｜invoke name="run"/></｜DSML｜function_calls>', calls(("run", {}))),
    "long talk behind a call": (THINKING_QWEN, "<function=run>\n</function>" + "Well. " * 100, thought("<function=run>\n</function>" + "Well. " * 100)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPENED)
def test_what_was_meant_is_read_where_the_prompt_opens_thinking(name: str) -> None:
    source, written, expected = OPENED[name]
    spoken = detect_output(source, [], "")
    for size in SIZES:
        assert parse(spoken, written, size, tools=TOOLS, opens_thinking=True) == expected, size


def test_a_value_becomes_what_the_schema_says() -> None:
    written = "<tool_call>\n<function=put>\n<parameter=path>\nv\n<parameter=mode>\n3.0\n</parameter>\n</function>\n</tool_call>"
    assert parse(detect_output(QWEN, [], ""), written, tools=TOOLS) == calls(("put", {"path": "v", "mode": 3}))


def test_headers_of_functionary_are_no_text_without_tools_either() -> None:
    assert parse(detect_output(">>>${recipient}", [], ""), "all\nHello", 1, tools=[]) == text("Hello")


def test_tokens_of_the_family_are_no_text_without_tools_either() -> None:
    for source in ("`function call`", "<|function_call|>"):
        assert parse(detect_output(source, [], ""), "Hello<|message_sep|>", 1, tools=[]) == text("Hello")


def test_the_marker_at_the_end_of_phis_turns_is_not_solars() -> None:
    phi = detect_output("<|user|>{{ m }}<|end|><|assistant|>", ["<|user|>", "<|end|>", "<|assistant|>"], "phi3")
    assert phi.think is None
    assert "<|end|>" in phi.end_tokens


NS = "]<]minimax[>["
# template, what the model writes before it ends its turn, the calls in it: not what stands there if a limit ends it
ENDED: dict[str, tuple[str, str, list[Segment]]] = {
    "Qwen3-Coder: all closers": (QWEN, "<tool_call>\n<function=run>\n<parameter=command>\nls -l", calls(("run", {"command": "ls -l"}))),
    "Qwen3-Coder: all but one closer": (QWEN, "<tool_call>\n<function=put>\n<parameter=path>\na.py\n</parameter>\n", calls(("put", {"path": "a.py"}))),
    "Qwen3-Coder: half a closer": (QWEN, "<tool_call>\n<function=put>\n<parameter=path>\na.py\n</para", calls(("put", {"path": "a.py"}))),
    "Hermes: a brace": ("<tool_call>", '<tool_call>\n{"name": "put", "arguments": {"path": "a.py"}', calls(("put", {"path": "a.py"}))),
    "Hermes: two braces": ("<tool_call>", '<tool_call>\n{"name": "put", "arguments": {"path": "a.py", "mode": 3', calls(("put", {"path": "a.py", "mode": 3}))),
    "bare JSON: a brace": ("", '{"name": "put", "arguments": {"path": "a.py"}', calls(("put", {"path": "a.py"}))),
    "Mistral: a brace": ("[TOOL_CALLS]", '[TOOL_CALLS]put[ARGS]{"path": "a.py"', calls(("put", {"path": "a.py"}))),
    "DeepSeek: a brace": ("<｜tool▁calls▁begin｜>", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>put<｜tool▁sep｜>{"path": "a.py"', calls(("put", {"path": "a.py"}))),
    "Kimi K3: all closers": ("<|open|><|end_of_msg|>", '<|open|>tools<|sep|><|open|>call tool="put" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>a.py', calls(("put", {"path": "a.py"}))),
    "Kimi K3: the last two closers": ("<|open|><|end_of_msg|>", '<|open|>tools<|sep|><|open|>call tool="put" index="1"<|sep|><|open|>argument key="path" type="string"<|sep|>a.py<|close|>argument<|sep|>', calls(("put", {"path": "a.py"}))),
    "GLM: all closers": (GLM, "<tool_call>put<arg_key>path</arg_key><arg_value>a.py", calls(("put", {"path": "a.py"}))),
    "GLM: the last closer": (GLM, "<tool_call>put<arg_key>path</arg_key><arg_value>a.py</arg_value>\n", calls(("put", {"path": "a.py"}))),
    "MiniMax: all closers": ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="put">\n<parameter name="path">a.py', calls(("put", {"path": "a.py"}))),
    "MiniMax: the last two closers": ("<minimax:tool_call>", '<minimax:tool_call>\n<invoke name="put">\n<parameter name="path">a.py</parameter>\n', calls(("put", {"path": "a.py"}))),
    "MiniMax M3: all closers": (NS, f'{NS}<tool_call>{NS}<invoke name="put">{NS}<path>a.py', calls(("put", {"path": "a.py"}))),
    "MiniMax M3: the last two closers": (NS, f'{NS}<tool_call>{NS}<invoke name="put">{NS}<path>a.py{NS}</path>', calls(("put", {"path": "a.py"}))),
    "Gemma: all closers": (GEMMA, '<|tool_call>call:put{path:<|"|>a.py', calls(("put", {"path": "a.py"}))),
    "Gemma: a brace": (GEMMA, '<|tool_call>call:put{path:<|"|>a.py<|"|>,mode:3', calls(("put", {"path": "a.py", "mode": 3}))),
    "LFM2: all closers": ("<|tool_call_start|>", '<|tool_call_start|>[put(path="a.py"', calls(("put", {"path": "a.py"}))),
    "OLMo 3: a parenthesis": ("<function_calls>", '<function_calls>\nput(path="a.py", mode=3', calls(("put", {"path": "a.py", "mode": 3}))),
    "Cohere: all closers": ("<|START_ACTION|>", '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "put", "parameters": {"path": "a.py"', calls(("put", {"path": "a.py"}))),
    "Solar: a brace": ("<|tool_call:begin|>", '<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>put<|tool_call:args|>{"path": "a.py"', calls(("put", {"path": "a.py"}))),
    "DSML: all closers": ("｜DSML｜", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="put">\n<｜DSML｜parameter name="path" string="true">a.py', calls(("put", {"path": "a.py"}))),
    "Step 3: all closers": ("<｜tool_calls_begin｜>", '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="put">\n<steptml:parameter name="path">a.py', calls(("put", {"path": "a.py"}))),
    "gpt-oss: a brace": (HARMONY, '<|channel|>commentary to=functions.put <|constrain|>json<|message|>{"path": "a.py"', calls(("put", {"path": "a.py"}))),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_closing_marks_that_the_model_left_out_at_its_end_are_added(name: str) -> None:
    source, written, expected = ENDED[name]
    spoken = detect_output(source, [], "")
    for size in SIZES:
        assert parse(spoken, written, size, tools=TOOLS, ended=True) == expected, size
        cut = parse(spoken, written, size, tools=TOOLS, ended=False)
        assert not any(segment.call for segment in cut), "a limit may have cut arguments off"
        assert ("ls -l" if "ls -l" in written else "a.py") in "".join(segment.text for segment in cut)


def test_what_is_no_call_at_the_end_stays_text() -> None:
    for written in (
        '<tool_call>\n{"name": "put", "arguments": {"path": "a.p',
        '<tool_call>\n{"name": "put", "arguments":',
        "<tool_call>\n<function=put>\n<parameter=pa",
    ):
        for ended in (True, False):
            assert parse(detect_output(QWEN, [], ""), written, tools=TOOLS, ended=ended) == text(written)
