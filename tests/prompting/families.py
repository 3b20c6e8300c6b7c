"""Chat templates of our own that imitate each family's dialect: its roles, tools, calls, results and thinking.

Each is put together from parts, since families differ in a few places only. They are no copies: what matters is the
markup a family uses, and which of the awkward habits (arguments as text, refused roles, nine-letter ids …) it has.
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """`call` is the template text for one call `c` (`c.name`, `c.arguments`), whose id is `id`."""

    name: str
    call: str
    before: str = ""
    """In front of a message's calls."""
    between: str = ""
    behind: str = ""
    user: tuple[str, str] = ("<|im_start|>user\n", "<|im_end|>\n")
    system: tuple[str, str] = ("<|im_start|>system\n", "<|im_end|>\n")
    result: tuple[str, str] = ("<|im_start|>tool\n", "<|im_end|>\n")
    answer: tuple[str, str] = ("<|im_start|>assistant\n", "<|im_end|>\n")
    opens: str = ""
    """Thinking that the prompt opens when thinking is on."""
    skips: str = ""
    """What the prompt says when thinking is off."""
    checks: str = ""
    """Refusals, per message `m`."""
    tools: str = "{{ tools | tojson }}"
    one_call: bool = False

    def template(self) -> str:
        many = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
        return (
            "{% if tools %}" + _say(self.system[0]) + "Tools: " + self.tools + _say(self.system[1]) + "{% endif %}"
            "{% for m in messages %}" + self.checks
            + "{% if m.role == 'system' %}" + _around(self.system, "m.content")
            + "{% elif m.role == 'user' %}" + _around(self.user, "m.content")
            + "{% elif m.role == 'tool' %}" + _around(self.result, "m.content")
            + "{% elif m.role == 'assistant' %}" + _say(self.answer[0])
            + "{% if m.content %}{{ m.content.split('</think>')[-1] }}{% endif %}"
            + "{% if m.tool_calls %}" + (many if self.one_call else "") + _say(self.before)
            + "{% for c in m.tool_calls %}{% set id = c.id %}{% set c = c.function %}"
            + "{% if not loop.first %}" + _say(self.between) + "{% endif %}" + self.call
            + "{% endfor %}" + _say(self.behind) + "{% endif %}" + _say(self.answer[1])
            + "{% endif %}{% endfor %}"
            + "{% if add_generation_prompt %}" + _say(self.answer[0])
            + "{% if enable_thinking is defined and enable_thinking %}" + _say(self.opens)
            + "{% else %}" + _say(self.skips) + "{% endif %}{% endif %}"
        )  # fmt: skip


def _say(text: str) -> str:
    return "{{ " + repr(text) + " }}" if text else ""


def _around(marks: tuple[str, str], expression: str) -> str:
    return _say(marks[0]) + "{{ " + expression + " }}" + _say(marks[1])


_JSON = '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}'
_PYTHON = (
    "{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}={{ v | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %})"
)
_ALTERNATE = """{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"""

FAMILIES = [
    Family("qwen2.5", "<tool_call>\n" + _JSON + "\n</tool_call>", between="\n"),
    Family(
        "qwen3",
        "<tool_call>\n" + _JSON + "\n</tool_call>",
        between="\n",
        skips="<think>\n\n</think>\n\n",
    ),
    Family("qwq", "<tool_call>\n" + _JSON + "\n</tool_call>", between="\n", opens="<think>\n"),
    Family(
        "qwen3-coder",
        "<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}<parameter={{ k }}>\n"
        "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
        between="\n",
    ),
    Family(
        "llama3",
        '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}',
        user=("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"),
        answer=("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
        result=("<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"),
        one_call=True,
    ),
    Family("llama4", _PYTHON, before="[", between=", ", behind="]"),
    Family(
        "mistral",
        '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}, "id": "{{ id }}"}',
        before="[TOOL_CALLS] [",
        between=", ",
        behind="]",
        user=("[INST] ", " [/INST]"),
        answer=("", "</s>"),
        checks="{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('ids have nine letters') }}{% endif %}{% endfor %}",
    ),
    Family(
        "mistral-v11",
        "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}",
        user=("[INST]", "[/INST]"),
        answer=("", "</s>"),
    ),
    Family(
        "mistral-v11-ids",
        "[TOOL_CALLS]{{ c.name }}[CALL_ID]{{ id }}[ARGS]{{ c.arguments | tojson }}",
        user=("[INST]", "[/INST]"),
        answer=("", "</s>"),
        checks="{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
        "{{ raise_exception('ids have nine letters') }}{% endif %}{% endfor %}",
    ),
    Family(
        "deepseek-r1",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.name }}\n```json\n{{ '' + c.arguments }}\n```"
        "<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        between="\n",
        behind="<｜tool▁calls▁end｜>",
        user=("<｜User｜>", ""),
        answer=("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        opens="<think>\n",
        skips="<think>\n</think>",
    ),
    Family(
        "deepseek-v3.1",
        "<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments | tojson }}<｜tool▁call▁end｜>",
        before="<｜tool▁calls▁begin｜>",
        behind="<｜tool▁calls▁end｜>",
        skips="</think>",
        opens="<think>",
    ),
    Family("granite", _JSON, before="<|tool_call|>[", between=", ", behind="]"),
    Family("phi4", _JSON, before="<|tool_call|>[", between=", ", behind="]<|/tool_call|>"),
    Family("nemotron", _JSON, before="<TOOLCALL>[", between=", ", behind="]</TOOLCALL>"),
    Family(
        "command-r7b",
        '{"tool_call_id": "0", "tool_name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}',
        before="<|START_ACTION|>[\n    ",
        between=",\n    ",
        behind="\n]<|END_ACTION|>",
    ),
    Family(
        "glm4.5",
        "<tool_call>{{ c.name }}\n{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>",
        user=("<|user|>\n", ""),
        answer=("<|assistant|>\n", ""),
        skips="<think></think>\n",
    ),
    Family(
        "kimi-k2",
        "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        behind="<|tool_calls_section_end|>",
    ),
    Family(
        "minimax-m2",
        '<invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}<parameter name="{{ k }}">'
        "{{ v if v is string else v | tojson }}</parameter>\n{% endfor %}</invoke>\n",
        before="<minimax:tool_call>\n",
        behind="</minimax:tool_call>",
        opens="<think>\n",
    ),
    Family(
        "minimax-m3",
        ']<]minimax[>[<invoke name="{{ c.name }}">{% for k, v in c.arguments.items() %}]<]minimax[>[<{{ k }}>'
        "{{ v if v is string else v | tojson }}]<]minimax[>[</{{ k }}>{% endfor %}]<]minimax[>[</invoke>\n",
        before="]<]minimax[>[<tool_call>\n",
        behind="]<]minimax[>[</tool_call>",
        user=("]~b]user\n", "[e~[\n"),
        answer=("]~b]ai\n", "[e~[\n"),
    ),
    Family(
        "kimi-k3",
        '<|open|>call tool="{{ c.name }}" index="{{ loop.index }}"<|sep|>{% for k, v in c.arguments.items() %}'
        '<|open|>argument key="{{ k }}" type="{{ \'string\' if v is string else \'number\' }}"<|sep|>'
        "{{ v if v is string else v | tojson }}<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>",
        before="<|close|>response<|sep|><|open|>tools<|sep|>",
        behind="<|close|>tools<|sep|>",
        user=('<|open|>message role="user"<|sep|>', "<|close|>message<|sep|><|end_of_msg|>"),
        answer=('<|open|>message role="assistant"<|sep|><|open|>response<|sep|>', "<|end_of_msg|>"),
    ),
    Family(
        "dots",
        '<invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}<parameter name="{{ k }}">\n'
        "{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</invoke>\n",
        before="<dots_function_call>\n",
        behind="</dots_function_call>",
    ),
    Family(
        "hunyuan-3",
        "<tool_call:v3>{{ c.name }}<tool_sep:v3>\n{% for k, v in c.arguments.items() %}"
        "<arg_key:v3>{{ k }}</arg_key:v3>\n<arg_value:v3>"
        "{{ v if v is string else v | tojson }}</arg_value:v3>\n{% endfor %}</tool_call:v3>",
        before="<tool_calls:v3>\n",
        between="\n",
        behind="\n</tool_calls:v3>",
    ),
    Family(
        "solar",
        "<|tool_call:begin|>{{ id }}<|tool_call:name|>{{ c.name }}<|tool_call:args|>{{ c.arguments | tojson }}"
        "<|tool_call:end|>",
        before="<|tool_calls|>",
    ),
    Family(
        "step-3",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{{ c.name }}">\n'
        '{% for k, v in c.arguments.items() %}<steptml:parameter name="{{ k }}">{{ v if v is string else v | tojson }}'
        "</steptml:parameter>\n{% endfor %}"
        "</steptml:invoke>\n<｜tool_call_end｜>",
        before="<｜tool_calls_begin｜>\n",
        between="\n",
        behind="\n<｜tool_calls_end｜>",
    ),
    Family(
        "gemma4",
        "<|tool_call>call:{{ c.name }}{{ '{' }}{% for k, v in c.arguments.items() %}{{ k }}:"
        "{% if v is string %}<|\"|>{{ v }}<|\"|>{% else %}{{ v | tojson }}{% endif %}"
        "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<tool_call|>",
        user=("<|turn>user\n", "<turn|>\n"),
        answer=("<|turn>model\n", "<turn|>\n"),
    ),
    Family(
        "function-gemma",
        "<start_function_call>call:{{ c.name }}{{ '{' }}{% for k, v in c.arguments.items() %}{{ k }}:"
        "{% if v is string %}<escape>{{ v }}<escape>{% else %}{{ v | tojson }}{% endif %}"
        "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<end_function_call>",
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        answer=("<start_of_turn>model\n", "<end_of_turn>\n"),
    ),
    Family("lfm2", _PYTHON, before="<|tool_call_start|>[", between=", ", behind="]<|tool_call_end|>"),
    Family(
        "hermes-null",
        "{% if m.content is none %}<tool_call>\n" + _JSON + "\n</tool_call>{% endif %}",
        between="\n",
    ),
    Family(
        "gemma2",
        "",
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        answer=("<start_of_turn>model\n", "<end_of_turn>\n"),
        checks="{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + _ALTERNATE,
        tools="",
    ),
    Family("zephyr", "", user=("<|user|>\n", "</s>\n"), answer=("<|assistant|>\n", "</s>\n"), tools=""),
]  # fmt: skip
