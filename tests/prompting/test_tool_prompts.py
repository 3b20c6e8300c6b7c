"""Tools, calls and results in the places that families have for them, or in words where they have none.

The templates are our own; what matters is where the family's looks for tools, and on what it fails.
"""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any

import pytest

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.prompting.constraint import constrain
from omlx.prompting.output import OutputParser, detect_output
from omlx.prompting.template import PromptTemplate, TemplateError


def tool(**changes: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "A city."}},
        "required": ["city"],
    }
    function = {"name": "weather", "description": "The weather.", "parameters": parameters, **changes}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


ASK = Message("user", "Rome?")
CALL = Message("assistant", tool_calls=[ToolCall("weather", {"city": "Rome"}, "call_00000001")])
RESULT = Message("tool", "sunny", tool_name="weather", tool_call_id="call_00000001")

PHI4_MINI = (
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
    "{{ '<|system|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|>' + '<|end|>' }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}<|assistant|>"
)
GLM4_9B = (
    "[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined %}<|system|>\nTools:"
    "{% for tool in item['tools'] %}{% if tool['type'] == 'function' %}\n## {{ tool['function']['name'] }}\n"
    "{{ tool['function'] | tojson }}{% endif %}{% endfor %}{% endif %}"
    "{% if item['content'] %}<|{{ item['role'] }}|>{{ item['metadata'] }}\n{{ item['content'] }}{% endif %}{% endfor %}<|assistant|>"
)


def render(
    source: str, *messages: Message, tokens: tuple[str, ...] = (), with_tools: str | None = None, **fields: Any
) -> str:
    template = PromptTemplate.from_jinja(source, tokens=tokens, with_tools=with_tools)
    return template.render(GenerateRequest(id=1, messages=[*messages], **fields)).text


def test_phi_4_mini_takes_tools_as_text_of_the_system_message() -> None:
    listed = (
        '[{"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": '
        '{"city": {"type": "string", "description": "A city."}}, "required": ["city"]}}]'
    )
    assert render(PHI4_MINI, Message("system", "S"), ASK, tools=[tool()]) == (
        f"<|system|>S<|tool|>{listed}<|/tool|><|end|><|user|>Rome?<|end|><|assistant|>"
    )
    assert render(PHI4_MINI, ASK, tools=[tool()]).startswith("<|system|><|tool|>[{")
    assert render(PHI4_MINI, ASK) == "<|user|>Rome?<|end|><|assistant|>"


def test_phi_4_mini_is_told_its_calls_in_its_own_tokens() -> None:
    tokens = ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>", "<|end|>", "<|user|>", "<|system|>")
    text = render(PHI4_MINI, ASK, CALL, RESULT, tools=[tool()], tokens=tokens)
    assert '<|assistant|><|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}]<|/tool_call|><|end|>' in text


def test_glm_4_9b_takes_tools_as_a_list_of_the_system_message() -> None:
    text = render(GLM4_9B, Message("system", "S"), ASK, tools=[tool()])
    assert text.startswith('[gMASK]<sop><|system|>\nTools:## weather\n{"name": "weather", ')
    assert text.endswith("<|system|>\nS<|user|>\nRome?<|assistant|>")
    assert render(GLM4_9B, ASK, tools=[tool()]).endswith("<|user|>\nRome?<|assistant|>")


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize(
    ("token", "written"),
    [
        ("<|tool_call_start|>", "<|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>"),
        ("<|START_ACTION|>", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Rome"}}\n]<|END_ACTION|>'),
        ("<|tool_calls_section_begin|>", '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0'
         '<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_calls_section_end|>'),
        ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]'),
        ("]<]minimax[>[", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Rome'
         "]<]minimax[>[</city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"),
    ],
)  # fmt: skip
def test_past_calls_are_written_in_the_tokens_of_the_vocabulary(token: str, written: str) -> None:
    assert f"assistant\n{written}<|im_end|>" in render(CHATML, ASK, CALL, RESULT, tokens=(token,))
    parser = OutputParser(detect_output(CHATML, (token, "<|tool_call_begin|>"), ""), tools=[tool()])
    (segment,) = parser.feed(written) + parser.finish()
    assert segment.call is not None, "what is written is what is understood"
    assert (segment.call.name, segment.call.arguments) == ("weather", {"city": "Rome"})


COMMAND_A = (
    "{% for m in messages %}{% if m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}{% elif m.tool_calls %}"
    "<|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|><|START_ACTION|>[{% for c in m.tool_calls %}"
    '{"tool_name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}]<|END_ACTION|>'
    "{% elif m.role == 'tool' %}<|START_TOOL_RESULT|>{% for part in m.content %}{{ part.text | tojson }}{% endfor %}<|END_TOOL_RESULT|>"
    "{% endif %}{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
)


def test_results_are_content_parts_where_the_template_wants_them() -> None:
    text = render(COMMAND_A, ASK, CALL, RESULT, tools=[tool()])
    assert '<|START_ACTION|>[{"tool_name": "weather", "parameters": {"city": "Rome"}}]<|END_ACTION|>' in text
    assert '<|START_TOOL_RESULT|>"sunny"<|END_TOOL_RESULT|>' in text
    assert "<tool_call>" not in text


FIREFUNCTION = (
    "{% set suffix = 'Functions:' + functions + '; today is ' + datetime %}{{ suffix }}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)


def test_a_template_of_before_tools_gets_functions_as_text() -> None:
    text = render(FIREFUNCTION, ASK, tools=[tool()])
    assert text.startswith('Functions:[\n    {\n        "name": "weather"') and text.endswith("[user:Rome?]")
    assert render(FIREFUNCTION, ASK).startswith("Functions:[]; today is 2")


DESCRIBED = (
    "{% for t in tools or [] %}{{ t.function.name + ': ' + t.function.description }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
TYPED = (
    "{% macro kind(s) %}{% if s.type == 'string' %}str{% elif s.type is string %}{{ s.type }}{% else %}"
    "{{ raise_exception('no such type') }}{% endif %}{% endmacro %}"
    "{% for t in tools or [] %}{{ t.function.name }}{% for k, v in t.function.parameters.properties.items() %}{{ kind(v) }}{% endfor %}"
    "{% endfor %}{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
LISTED = {"type": "object", "properties": {"city": {"type": ["string", "null"]}}}


@pytest.mark.parametrize(
    ("source", "given"),
    [(DESCRIBED, tool(description=None)), (TYPED, tool(parameters=LISTED))],
    ids=["Command R", "Hermes 2 Pro"],
)
def test_tools_that_the_template_fails_on_are_told_in_words(source: str, given: dict[str, Any]) -> None:
    text = render(source, Message("system", "S"), ASK, tools=[given])
    assert text.startswith("[system:S\n\nYou may call functions") and '"name": "weather"' in text
    assert text.endswith("[user:Rome?]")
    assert "You may call" not in render(source, ASK, tools=[tool()]), "others have their place"


def test_a_template_for_tools_that_fails_gives_way_to_the_plain_one() -> None:
    plain = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    text = render(plain, ASK, tools=[tool(description=None)], with_tools=DESCRIBED)
    assert text.startswith("[system:You may call functions") and text.endswith("[user:Rome?]")
    assert render(plain, ASK, tools=[tool()], with_tools=DESCRIBED) == "weather: The weather.[user:Rome?]"


def test_what_words_cannot_mend_is_refused_with_the_templates_own() -> None:
    source = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{% if 'cat' in messages[-1].content %}{{ raise_exception('no cats') }}{% endif %}{{ messages[-1].content }}"
    with pytest.raises(TemplateError, match="no cats"):
        render(source, Message("user", "cat"), tools=[tool()])


_TURNS = (
    "{% set ns = namespace(i=0) %}{% for m in messages if m.role != 'system' and m.role != 'tool' and not m.get('tool_calls') %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}"
    "{% set ns.i = ns.i + 1 %}{% endfor %}{{ '<s>' }}"
    "{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{{ m.content }}[/INST]"
    "{% elif m.get('tool_calls') %}CALLS</s>"
    "{% elif m.role == 'assistant' %}{{ m.content + '</s>' }}"
    "{% else %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
)
NEMO = _TURNS.replace(
    "CALLS",
    "[TOOL_CALLS] [{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' }}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]",
)
SMALL = _TURNS.replace(
    "CALLS",
    "{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}{% endfor %}",
)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (NEMO, '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}, "id": "call00000"}'),
        (SMALL, '[TOOL_CALLS]weather[CALL_ID]call00000[ARGS]{"city": "Rome"}'),
    ],
    ids=["Nemo", "Small 3.2"],
)
def test_text_beside_calls_that_a_template_drops_stands_in_front_of_them(source: str, written: str) -> None:
    def beside(text: str, *more: ToolCall) -> Message:
        return Message("assistant", text, tool_calls=[*CALL.tool_calls, *more])

    second = ToolCall("weather", {"city": "Oslo"}, "call_00000002")
    result = Message("tool", "rain", tool_name="weather", tool_call_id="call_00000002")
    talk = [ASK, beside('Look: "first"', second), RESULT, result, beside("Look again."), RESULT]
    talk += [Message("assistant", "Sunny."), Message("user", "And now?"), beside("A third look."), RESULT]
    for length in range(2, len(talk) + 1):
        if talk[length - 1].role == "assistant":
            continue
        text = render(source, *talk[:length], tools=[tool()])
        assert "omlx" not in text
        words = [message.content for message in talk[:length]]
        places = [text.find(word, text.find("[INST]")) for word in words]
        assert -1 not in places and places[1] < places[-1], text
        assert f'[/INST]Look: "first"{written}' in text
    assert "</s>[INST]And now?[/INST]A third look.[TOOL_CALLS]" in text
    assert "Look again.[TOOL_CALLS]" in text


TAUGHT = {
    # a token of the vocabulary, what an example of a call begins with
    "<|tool_call_start|>": "<|tool_call_start|>[",
    "<|START_ACTION|>": "<|START_ACTION|>",
    "]<]minimax[>[": "]<]minimax[>[<tool_call>",
    "<|tool_call_begin|>": "<|tool_calls_section_begin|>",
    "[TOOL_CALLS]": "[TOOL_CALLS]",
    "<|tool_call|>": "<|tool_call|>[",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁begin｜>",
    "<minimax:tool_call>": "<minimax:tool_call>",
    "<TOOLCALL>": "<TOOLCALL>[",
    "<|function_call|>": "<|function_call|>",
    "<|python_tag|>": "<tool_call>",
    "<unknown>": "<tool_call>",
}


@pytest.mark.parametrize("kind", ["Jinja", "Go", "none"])
@pytest.mark.parametrize("token", TAUGHT)
def test_the_words_teach_the_form_that_the_parser_reads_and_the_grammar_asks_for(token: str, kind: str) -> None:
    tokens = (token,)
    go = "{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}"
    template, source = {
        "Jinja": (PromptTemplate.from_jinja(CHATML, tokens=tokens), CHATML),
        "Go": (PromptTemplate.from_go(go, tokens=tokens), go),
        "none": (PromptTemplate.plain(tokens=tokens), ""),
    }[kind]
    request = GenerateRequest(id=1, messages=[ASK], tools=[tool()], emulate_tools=True, must_call=True)
    text = template.render(request).text
    example = text.partition("nothing else:\n")[2].partition("\nCall functions only")[0]
    assert example.startswith(TAUGHT[token])
    dialect = detect_output(source, tokens, "")
    parser = OutputParser(dialect, tools=[tool(name="function_name")])
    (segment,) = parser.feed(example) + parser.finish()
    assert segment.call is not None
    assert (segment.call.name, segment.call.arguments) == ("function_name", {"argument_name": "its value"})
    grammar = constrain(request, dialect, {}, opens_thinking=False)
    assert grammar is not None and isinstance(grammar.source, str)
    assert TAUGHT[token].removesuffix("[") in grammar.source
