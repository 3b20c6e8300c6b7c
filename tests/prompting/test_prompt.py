"""Messages become the prompt that the model's template asks for, whatever shape the template insists on."""

# ruff: noqa: E501
from __future__ import annotations

import time
from typing import Any

import pytest

from omlx.messages.request import GenerateRequest, Message, ToolCall, Video
from omlx.prompting.errors import MAX_CPU_S
from omlx.prompting.template import Markers, PromptTemplate, TemplateError

CHATML = """{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

STRICT = """{{ bos_token }}{% for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
[{{ m.role }}] {{ m.content }}
{%- endfor %}"""

TOOLS = """{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}CALL {{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}
{%- if m.role == 'tool' %} FROM {{ m.name }} {{ m.tool_call_id }}{% endif %}{% endfor %}"""


def render(source: str, *messages: Message, **request: Any) -> str:
    template = PromptTemplate.from_jinja(source, bos_token="<s>")
    return template.render(GenerateRequest(id=1, messages=list(messages), **request)).text


def user(text: str) -> Message:
    return Message("user", text)


def test_messages_render_with_a_generation_prompt() -> None:
    assert render(CHATML, Message("system", "S"), user("hi")) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_unfinished_answer_is_continued() -> None:
    text = render(CHATML, user("hi"), Message("assistant", "Once "))
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce "


def test_an_empty_last_answer_is_no_turn() -> None:
    assert render(CHATML, user("hi"), Message("assistant", "")) == render(CHATML, user("hi"))


def test_a_system_message_reaches_a_template_that_refuses_it() -> None:
    assert render(STRICT, Message("system", "S"), user("hi")) == "<s>[user] S\n\nhi"


def test_a_system_message_reaches_a_template_that_ignores_it() -> None:
    source = "{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}"
    assert render(source, Message("system", "S"), user("hi")) == "[S\n\nhi]"


def test_turns_that_do_not_alternate_are_brought_to() -> None:
    messages = [user("a"), user("b"), Message("assistant", "c"), Message("assistant", "d"), user("e")]
    assert render(STRICT, *messages) == "<s>[user] a\n\nb[assistant] c\n\nd[user] e"
    assert render(STRICT, Message("assistant", "hello"), user("a")) == "<s>[user] [assistant] hello[user] a"


SYSTEMS = {
    "all shown": "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}",
    "only the first": """{% if messages[0].role == 'system' %}[system:{{ messages[0].content }}]{% endif %}
{%- for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}""",
    "only the last": """{% set ns = namespace(s='') %}{% for m in messages if m.role == 'system' %}{% set ns.s = m.content %}
{%- endfor %}[system:{{ ns.s }}]{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}""",
    "refused but for the first": """{% for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('first!') }}{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}""",
    "all at the front": """{% for m in messages if m.role == 'system' %}[system:{{ m.content }}]{% endfor %}
{%- for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}""",
    "in the last user message": """{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}
{%- set ns.s = m.content %}{% elif m.role == 'user' and loop.last %}[user:{% if ns.s %}{{ ns.s }}|{% endif %}{{ m.content }}]
{%- else %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}]{% endif %}{% endfor %}""",
    "none": """{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}""",
}


@pytest.mark.parametrize("kind", SYSTEMS)
def test_every_system_message_reaches_the_model_in_order_and_later_prompts_begin_with_earlier_ones(kind: str) -> None:
    def system(text: str) -> Message:
        return Message("system", text)

    conversation = [
        system("1."), Message("developer", "2."), user("3."), Message("assistant", "4."), system("5."), user("6."),
        Message("assistant", "7."), user("8."), system("9."), Message("assistant", "10."), user("11."),
    ]  # fmt: skip
    earlier = ""
    for count in (3, 6, 9, 11):
        text = render(SYSTEMS[kind], *conversation[:count])
        places = [text.index(message.content) for message in conversation[:count]]
        assert places == sorted(places), text
        assert text.startswith(earlier), (text, earlier)
        earlier = text.removesuffix("]")


def test_a_system_message_in_the_middle_stays_there_as_the_users_where_the_template_refuses_it() -> None:
    messages = [Message("system", "A"), user("x"), Message("system", "B"), user("y")]
    assert render(SYSTEMS["refused but for the first"], *messages) == "[system:A][user:x][user:B\n\ny]"


STRICT_CALLS = """{% set ns = namespace(at=0) %}{% for m in messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{%- if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('alternate!') }}{% endif %}{% set ns.at = ns.at + 1 %}{% endif %}
{%- if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}
[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}]
{%- endfor %}"""


def test_a_system_message_in_a_tool_loop_joins_the_result_in_front_of_it() -> None:
    """As in Mistral's templates, which take no user there."""
    calls = [Message("assistant", tool_calls=[ToolCall("f", {"a": at}, f"call{at:05d}")]) for at in (1, 2)]
    messages = [user("x"), calls[0], Message("tool", "R1"), Message("system", "S"), calls[1], Message("tool", "R2")]
    text = render(STRICT_CALLS, *messages)
    assert text.index("R1") < text.index("<system-reminder>\nS\n</system-reminder>") < text.index("R2")


ALTERNATES = """{% set ns = namespace(at=0) %}{% for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}
{%- if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}
{%- if m.role == 'assistant' and not m.content %}{{ raise_exception('an answer needs text') }}{% endif %}
{%- set ns.at = ns.at + 1 %}{% endif %}{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"""


def test_a_user_message_may_follow_a_result_where_turns_must_alternate() -> None:
    call = ToolCall("f", {"a": 1}, "call_00000001")
    result = Message("tool", "Result", tool_call_id=call.id)
    loop = [user("Ask"), Message("assistant", tool_calls=[call]), result, user("Stop")]
    text = render(ALTERNATES, *loop)
    assert text.endswith("<tool>Result<assistant> <user>Stop")
    assert render(ALTERNATES, *loop, Message("assistant", "Yes"), user("Go on")).startswith(text)


def test_the_result_of_a_call_that_is_not_there_is_told_in_words_where_the_template_refuses_it() -> None:
    refuses = """{% for m in messages %}{% if m.role == 'tool' and not (loop.previtem.tool_calls or loop.previtem.role == 'tool') %}
{{- raise_exception('a result needs a call') }}{% endif %}<{{ m.role }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"""
    lone = Message("tool", "42", tool_name="f", tool_call_id="call_00000009")
    assert render(refuses, user("Ask"), lone) == "<user>Ask<user>Result of f:\n42"
    call = ToolCall("f", {}, "call_00000001")
    kept = [user("Ask"), Message("assistant", tool_calls=[call]), Message("tool", "1", tool_call_id=call.id)]
    assert "<tool>1" in render(refuses, *kept, lone)


HARMONY = """{# <|channel|>analysis<|message|> #}{% for m in messages %}{% set ns = namespace(later=false) %}
{%- for n in messages[loop.index:] %}{% if n.role == 'assistant' and not n.tool_calls %}{% set ns.later = true %}{% endif %}{% endfor %}
{%- if m.role == 'assistant' and m.tool_calls %}{% if not ns.later %}<analysis>{{ m.thinking }}{{ m.content }}{% endif %}
{%- for c in m.tool_calls %}<call>{{ c.function | tojson }}{% endfor %}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"""


def test_what_gpt_oss_wrote_beside_calls_stays_when_the_answer_is_there() -> None:
    call = ToolCall("f", {}, "call_00000001")
    turn = [user("Ask"), Message("assistant", "I look.", tool_calls=[call]), Message("tool", "1", tool_call_id=call.id)]
    assert "<analysis>I look.<call>" in render(HARMONY, *turn)
    assert "<assistant>I look.<call>" in render(HARMONY, *turn, Message("assistant", "Done."), user("Thanks"))


def test_text_that_came_with_calls_is_not_lost() -> None:
    source = """{% for m in messages %}[{{ m.role }}:{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}
{{- c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}]{% endfor %}"""
    called = Message("assistant", "I look.", tool_calls=[ToolCall("f", {"a": 1})])
    text = render(source, user("x"), called, Message("tool", "R"))
    assert text == '[user:x][assistant:I look.][assistant:f{"a": 1}][tool:R]'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{# developer #}{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('no such role') }}"
         "{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}", "[system:D][user:x]"),
        ("{% if messages[0].role == 'system' %}{% set developer_preamble = messages[0].content %}"
         "{{ developer_preamble }};{% endif %}{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
         "D;x"),
        ("{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}", "[system:D][user:x]"),
        ("{% for m in messages %}[{{ m.role if m.role in ['developer', 'user'] }}:{{ m.content }}]{% endfor %}",
         "[developer:D][user:x]"),
        ("{% for m in messages if m.role == 'user' %}[{{ m.content }}]{% endfor %}", "[D\n\nx]"),
    ],
)  # fmt: skip
def test_a_developer_message_reaches_the_model(source: str, expected: str) -> None:
    assert render(source, Message("developer", "D"), user("x")) == expected


def test_a_conversation_no_change_helps_is_refused_with_the_templates_words() -> None:
    with pytest.raises(TemplateError, match="no cats"):
        render("{% if 'cat' in messages[0].content %}{{ raise_exception('no cats') }}{% endif %}", user("cat"))


def test_tools_and_results_are_in_openais_shape() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    called = Message("assistant", tool_calls=[ToolCall("f", {"é": 1}), ToolCall("g", {})])
    text = render(TOOLS, user("x"), called, Message("tool", "1"), Message("tool", "2", tool_name="g"), tools=[tool])
    assert text == (
        '{"type": "function", "function": {"name": "f", "parameters": {}}}<user>x<assistant>'
        'CALL call_00000000 f {"é": 1}CALL call_00000001 g {}'
        "<tool>1 FROM f call_00000000<tool>2 FROM g call_00000001"
    )


def test_a_result_known_by_id_gets_its_name() -> None:
    called = Message("assistant", tool_calls=[ToolCall("f", {}, "id_b"), ToolCall("g", {}, "id_a")])
    text = render(TOOLS, user("x"), called, Message("tool", "2", tool_call_id="id_a"))
    assert text.endswith("<tool>2 FROM g id_a")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{{ c.function.name + c.function.arguments }}", 'f{"a": "b"}'),
        ("{% for k, v in c.function.arguments.items() %}{{ c.function.name }} {{ k }}={{ v }}{% endfor %}", "f a=b"),
        ("{% if m.content is none %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endif %}",
         'f{"a": "b"}'),
        ("{% if c.id | length != 9 %}{{ raise_exception('9!') }}{% endif %}{{ c.id }}{{ c.function | tojson }}",
         'call00000{"name": "f", "arguments": {"a": "b"}}'),
    ],
)  # fmt: skip
def test_calls_are_written_as_the_template_wants_them(line: str, expected: str) -> None:
    source = (
        "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }};{% endif %}"
        "{% for c in m.tool_calls or [] %}" + line + "{% endfor %}{% endfor %}"
    )
    called = Message("assistant", tool_calls=[ToolCall("f", {"a": "b"}, "call_abcdefgh")])
    assert render(source, user("x"), called, Message("tool", "R", tool_name="f")) == f"x;{expected}R;"


def test_a_template_without_tools_gets_calls_and_results_as_text() -> None:
    called = Message("assistant", tool_calls=[ToolCall("f", {"a": 1})])
    text = render(STRICT, user("x"), called, Message("tool", "R", tool_name="f"))
    assert text == (
        '<s>[user] x[assistant] <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>[user] Result of f:\nR'
    )


@pytest.mark.parametrize(
    ("think", "expected"),
    [(None, "True True "), (True, "True True "), (False, "False False "), ("high", "True True high"),
     ("max", "True True high")],
)  # fmt: skip
def test_think_sets_the_names_templates_read(think: bool | str | None, expected: str) -> None:
    assert render("{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}", user("x"), think=think) == expected


def test_earlier_thinking_is_handed_to_the_template() -> None:
    names = ("reasoning_content", "thinking", "reasoning")
    source = (
        "{% for m in messages %}" + "".join(f"{{{{ m.{name} }}}}" for name in names) + "{{ m.content }};{% endfor %}"
    )
    assert render(source, user("x"), Message("assistant", "y", thinking="T"), user("z")) == "x;TTTy;z;"


def test_thinking_ahead_of_calls_is_coheres_plan() -> None:
    source = (
        "{% for m in messages %}{{ m.tool_plan }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"
    )
    called = Message("assistant", thinking="T", tool_calls=[ToolCall("f", {"a": 1})])
    assert render(source, user("x"), called) == 'x;T{"a": 1};'
    assert render(source, user("x"), Message("assistant", "y", thinking="T"), user("z")) == "x;y;z;"


@pytest.mark.parametrize(
    ("ending", "opens"), [("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False), ("[THINK]", True)]
)
def test_a_prompt_that_ends_inside_thinking_says_so(ending: str, opens: bool) -> None:
    template = PromptTemplate.from_jinja("{{ messages[0].content }}" + ending + "{{ '' }}")
    assert template.render(GenerateRequest(id=1, messages=[user("x")])).opens_thinking is opens


PARTS = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}
{%- if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"""


def test_images_are_parts_in_the_order_of_the_prompt() -> None:
    template = PromptTemplate.from_jinja(PARTS)
    messages = [Message("user", "a [img] b", images=[b"1", b"2"]), Message("user", "c", images=[b"3"])]
    rendered = template.render(GenerateRequest(id=1, messages=messages))
    assert rendered.text == "<image>a <image> b<image>c"
    assert rendered.images == (b"1", b"2", b"3")


def test_a_template_that_wants_parts_gets_them() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"
    assert render(source, Message("system", "S"), user("hi")) == "S;hi;"


def test_images_for_a_template_without_them_need_a_marker() -> None:
    template = PromptTemplate.from_jinja(CHATML)
    request = GenerateRequest(id=1, messages=[Message("user", "what?", images=[b"1"])])
    assert "<image>what?" in template.render(request, markers=Markers(image="<image>")).text
    with pytest.raises(TemplateError, match="does not support image input"):
        template.render(request)


def test_videos_for_a_template_without_them_need_a_marker() -> None:
    """SmolVLM2's knows images only."""
    video = Video([b"1"])
    request = GenerateRequest(id=1, messages=[Message("user", "what?", images=[b"1"], videos=[video])])
    for template, marks in (
        (PromptTemplate.from_jinja(PARTS), "<image><video>"),
        (PromptTemplate.plain(), "<video><image>"),
    ):
        rendered = template.render(request, markers=Markers("<image>", "<video>"))
        assert f"{marks}what?" in rendered.text
        assert (rendered.images, rendered.videos) == ((b"1",), (video,))
        with pytest.raises(TemplateError, match="does not support video input"):
            template.render(request, markers=Markers("<image>"))


def test_a_raw_prompt_is_taken_verbatim() -> None:
    rendered = PromptTemplate.from_jinja(CHATML).render(GenerateRequest(id=1, raw_prompt="{{ x }}"))
    assert (rendered.text, rendered.add_special) == ("{{ x }}", True)


def test_without_a_template_texts_are_joined() -> None:
    plain = PromptTemplate.plain()
    assert plain.render(GenerateRequest(id=1, messages=[user("Once upon")])).text == "Once upon"
    messages = [Message("system", "S"), user("a"), Message("assistant", "b")]
    assert plain.render(GenerateRequest(id=1, messages=messages)).text == "S\n\na\n\nb"


HYBRID = "{{ messages[-1].content }}|{% if enable_thinking is false %}<think></think>{% endif %}"


@pytest.mark.parametrize(
    ("source", "think", "ending", "opens"),
    [
        (HYBRID, None, "|", False),
        (HYBRID, False, "|<think></think>", False),
        ("{{ messages[-1].content.split('</think>')[-1] }}|", None, "|", False),
        ("{{ messages[-1].content }}|<think>\n{{ '' }}", None, "|<think>\n", True),
        ("{{ messages[-1].content }}|", None, "|", False),
    ],
)
def test_a_constraint_leaves_the_prompt_as_it_is(source: str, think: bool | None, ending: str, opens: bool) -> None:
    template = PromptTemplate.from_jinja(source)
    rendered = template.render(GenerateRequest(id=1, messages=[user("x")], think=think, format="json"))
    assert (rendered.text, rendered.opens_thinking) == ("x" + ending, opens)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>"),
        (["<fim_prefix>", "<fim_middle>", "<fim_suffix>"], "<fim_prefix>def f(<fim_suffix>): pass<fim_middle>"),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
         "<｜fim▁begin｜>def f(<｜fim▁hole｜>): pass<｜fim▁end｜>"),
        (["▁<PRE>", "▁<SUF>", "▁<MID>"], "▁<PRE>def f(▁<SUF>): pass▁<MID>"),
        (["[PREFIX]", "[SUFFIX]", "[MIDDLE]"], "[SUFFIX]): pass[PREFIX]def f("),
    ],
)  # fmt: skip
def test_a_suffix_is_filled_in_as_the_vocabulary_has_it(tokens: list[str], expected: str) -> None:
    request = GenerateRequest(id=1, messages=[user("def f(")], suffix="): pass")
    for template in (PromptTemplate.from_jinja(CHATML, tokens=tokens), PromptTemplate.plain(tokens=tokens)):
        rendered = template.render(request)
        assert (rendered.text, rendered.add_special) == (expected, True)


def test_a_suffix_for_a_model_that_cannot_is_refused() -> None:
    request = GenerateRequest(id=1, messages=[user("def f(")], suffix="): pass")
    with pytest.raises(TemplateError, match="cannot fill in the middle"):
        PromptTemplate.from_jinja(CHATML).render(request)


SINGLE = """{% for m in messages %}[{{ m.role }}:{{ m.content }}{% if m.tool_calls | length > 1 %}
{{- raise_exception('single calls only') }}{% endif %}{% for c in m.tool_calls or [] %}{{ c.function.name }}
{{- c.function.arguments | tojson }}{% endfor %}]{% endfor %}"""


def test_calls_are_told_one_by_one_where_a_message_may_hold_only_one() -> None:
    called = Message("assistant", "I look.", tool_calls=[ToolCall("f", {"a": 1}), ToolCall("g", {})])
    text = render(SINGLE, user("x"), called, Message("tool", "F"), Message("tool", "G"), user("y"))
    assert text == '[user:x][assistant:I look.f{"a": 1}][tool:F][assistant:g{}][tool:G][user:y]'


@pytest.mark.parametrize(
    ("marker", "written"),
    [
        ("<|tool_call_start|>", "<|tool_call_start|>[f(a='b', c=1)]<|tool_call_end|>"),
        ("<|tool_call|>", '<|tool_call|>[{"name": "f", "arguments": {"a": "b", "c": 1}}]'),
        ("", '<tool_call>\n{"name": "f", "arguments": {"a": "b", "c": 1}}\n</tool_call>'),
    ],
)
def test_calls_a_template_does_not_show_are_written_as_the_model_writes_them(marker: str, written: str) -> None:
    source = "{# " + marker + " #}{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    called = Message("assistant", tool_calls=[ToolCall("f", {"a": "b", "c": 1})])
    text = render(source, user("x"), called, Message("tool", "R"))
    assert text == f"[user:x][assistant:{written}][tool:R]"


def test_tools_a_template_does_not_show_are_described() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    for messages in ([user("x")], [Message("system", "S"), user("x")]):
        text = render(CHATML, *messages, tools=[tool])
        assert '{"type": "function", "function": {"name": "weather", "parameters": {}}}' in text
        assert text.count("<|im_start|>system") == 1
    assert "weather" in render(STRICT, user("x"), tools=[tool])


def test_a_template_written_for_tools_only_works_without() -> None:
    source = "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[-1].content }}"
    assert render(source, user("x")) == "x"


def test_an_effort_the_template_does_not_know_is_left_out() -> None:
    source = """{% if reasoning_effort is defined and reasoning_effort != 'low' %}{{ raise_exception('low only') }}
{%- endif %}{{ messages[-1].content }}{{ reasoning_effort }}"""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    assert render(source, user("x"), think="high") == "x"
    assert render(source, user("x"), think="high", tools=[tool]).endswith("x")
    assert render(source, user("x"), think="low") == "xlow"


def test_a_template_for_tools_is_used_where_there_are_tools() -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    plain, with_tools = "plain {{ messages[-1].content }}", "{{ tools[0].function.name }} {{ messages[-1].content }}"
    template = PromptTemplate.from_jinja(plain, with_tools=with_tools)
    assert template.render(GenerateRequest(id=1, messages=[user("x")])).text == "plain x"
    assert template.render(GenerateRequest(id=1, messages=[user("x")], tools=[tool])).text == "weather x"


LOOP = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("go", [False, True])
def test_a_template_that_never_ends_is_given_up_once(go: bool) -> None:
    """It is not tried again with other messages, nor with all the probes of what it can do."""
    endless = '{{ define "a" }}{{ range .Messages }}{{ range $.Messages }}{{ range $.Messages }}x{{ end }}{{ end }}{{ end }}{{ end }}'
    source = endless + '{{ template "a" . }}' if go else LOOP
    template = PromptTemplate.from_go(source) if go else PromptTemplate.from_jinja(source)
    begun = time.process_time()
    with pytest.raises(TemplateError, match=r"too long|longer than"):
        template.render(GenerateRequest(id=1, messages=[user("x"), Message("assistant", "b")] * 400))
    assert time.process_time() - begun < 3 * MAX_CPU_S
