"""Outputs of every family, written from its grammar: thinking, text and two calls, each with words that occur once.

`CORPUS` are the families; `Output.mutations` are the ways in which models spoil their markers.
"""

# ruff: noqa: E501  (what models write is kept on one line where it is one)
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from omlx.prompting.output import OutputDialect, detect_output

THOUGHT, TEXT, FIRST, SECOND = "Considering weather", "Looking outside", "Paris 42", "Rome, {old}"
"""The words of the thinking, of the text in front of the calls, and of the two calls' arguments."""

Call = tuple[str, dict[str, object]]
CALLS: list[Call] = [("weather", {"city": FIRST, "days": 3}), ("weather", {"city": SECOND})]


class Mutated(NamedTuple):
    kind: str
    """`drop`, `double`, `swap`, `nick` or `cut`."""
    written: str
    spoiled: str = ""
    """What is left of a nicked tag: nobody can tell it from text."""


class Output(NamedTuple):
    """One family's output. `source` is what its template says, as far as the dialect is found from it."""

    name: str
    source: str
    written: str
    tags: str
    """A regular expression of the family's markers."""
    opens: bool = False
    """The prompt has opened thinking."""
    thinks: bool = False
    says: bool = True

    @property
    def dialect(self) -> OutputDialect:
        return detect_output(self.source, [], "")

    @property
    def words(self) -> list[str]:
        said = f"{THOUGHT if self.thinks else ''} {TEXT if self.says else ''} {FIRST} {SECOND}"
        return re.findall(r"\w+", said)

    def mutations(self) -> Iterator[Mutated]:
        """Each tag left out, doubled, swapped with the next, without its first or last character; each cut."""
        places = [match.span() for match in re.finditer(self.tags, self.written)]
        for at, (start, end) in enumerate(places):
            before, tag, behind = self.written[:start], self.written[start:end], self.written[end:]
            yield Mutated("drop", before + behind)
            yield Mutated("double", before + tag + tag + behind)
            yield Mutated("nick", before + tag[:-1] + behind, tag[:-1])
            yield Mutated("nick", before + tag[1:] + behind, tag[1:])
            if at + 1 < len(places):
                start_2, end_2 = places[at + 1]
                between, other = self.written[end:start_2], self.written[start_2:end_2]
                yield Mutated("swap", before + other + between + tag + self.written[end_2:])
        for end in range(1, len(self.written)):
            yield Mutated("cut", self.written[:end])


def _json(call: Call, name: str = "name", arguments: str = "arguments") -> str:
    return json.dumps({name: call[0], arguments: call[1]}, ensure_ascii=False)


def _each(write: Callable[[Call], str], between: str = "\n") -> str:
    return between.join(write(call) for call in CALLS)


def _list(arguments: str = "arguments", name: str = "name") -> str:
    return "[" + _each(lambda call: _json(call, name, arguments), ", ") + "]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _coder(call: Call, tag: str = "tool_call", line: str = "\n") -> str:
    inner = "".join(f"<parameter={key}>{line}{_text(value)}{line}</parameter>\n" for key, value in call[1].items())
    return f"<{tag}>\n<function={call[0]}>\n{inner}</function>\n</{tag}>"


def _glm(call: Call, prefix: str = "", suffix: str = "", line: str = "\n", separator: bool = False) -> str:
    def tag(name: str) -> str:
        return f"{prefix}{name}{suffix}>"

    inner = "".join(
        f"<{tag('arg_key')}{key}</{tag('arg_key')}{line}<{tag('arg_value')}{_text(value)}</{tag('arg_value')}{line}"
        for key, value in call[1].items()
    )
    head = f"<{tag('tool_call')}{call[0]}" + (f"<{tag('tool_sep')}" if separator else "")
    return f"{head}{line}{inner}</{tag('tool_call')}"


def _invoke(call: Call, prefix: str = "", names: tuple[str, str] = ("invoke", "parameter"), typed: bool = False) -> str:
    def parameter(key: str, value: object) -> str:
        kind = f' string="{"true" if isinstance(value, str) else "false"}"' if typed else ""
        return f'<{prefix}{names[1]} name="{key}"{kind}>{_text(value)}</{prefix}{names[1]}>\n'

    inner = "".join(parameter(key, value) for key, value in call[1].items())
    return f'<{prefix}{names[0]} name="{call[0]}">\n{inner}</{prefix}{names[0]}>\n'


def _python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def _gemma(call: Call, quote: str) -> str:
    inner = ",".join(
        f"{key}:{quote + value + quote if isinstance(value, str) else value}" for key, value in call[1].items()
    )
    return f"call:{call[0]}{{{inner}}}"


_NS = "]<]minimax[>["


def _m3(call: Call) -> str:
    inner = "".join(f"{_NS}<{key}>{_text(value)}{_NS}</{key}>" for key, value in call[1].items())
    return f'{_NS}<invoke name="{call[0]}">{inner}{_NS}</invoke>\n'


def _k3(call: Call) -> str:
    inner = "".join(
        f'<|open|>argument key="{key}" type="{"string" if isinstance(value, str) else "number"}"<|sep|>{_text(value)}'
        "<|close|>argument<|sep|>"
        for key, value in call[1].items()
    )
    return f'<|open|>call tool="{call[0]}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


_QWEN = "\n".join(f"<tool_call>\n{_json(call)}\n</tool_call>" for call in CALLS)
_ANGLE = r"</?[\w:]+(?:[= ][^<>\n]*)?>|\]<\]minimax\[>\["
_BARS = r"<[|｜][^<>]*?[|｜]>"
_SQUARE = r"\[/?[A-Z_]+\]"
_THINK = "<think></think>"


def _tokens(*parts: str) -> str:
    return "|".join(parts)


def _after_thought(
    written: str, opening: str = "<think>\n", closing: str = "\n</think>\n\n", opens: bool = False
) -> str:
    return f"{'' if opens else opening}{THOUGHT}{closing}{TEXT}\n\n{written}"


def _said(written: str) -> str:
    return f"{TEXT}\n\n{written}"


_R1 = "<｜tool▁calls▁begin｜>" + _each(
    lambda call: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call[0]}\n```json\n{json.dumps(call[1])}\n```<｜tool▁call▁end｜>"
) + "<｜tool▁calls▁end｜>"  # fmt: skip
_V31 = "<｜tool▁calls▁begin｜>" + _each(
    lambda call: f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{json.dumps(call[1])}<｜tool▁call▁end｜>", ""
) + "<｜tool▁calls▁end｜>"  # fmt: skip


def _dsml(wrapper: str) -> str:
    return f"<｜DSML｜{wrapper}>\n{_each(lambda call: _invoke(call, '｜DSML｜', typed=True), '')}</｜DSML｜{wrapper}>"


_KIMI = "<|tool_calls_section_begin|>" + "".join(
    f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
    for at, (name, arguments) in enumerate(CALLS)
) + "<|tool_calls_section_end|>"  # fmt: skip
_SOLAR = "<|tool_calls|>" + _each(
    lambda call: f"<|tool_call:begin|>call1<|tool_call:name|>{call[0]}<|tool_call:args|>{json.dumps(call[1])}<|tool_call:end|>", ""
)  # fmt: skip
_STEP3 = "<｜tool_calls_begin｜>\n" + _each(
    lambda call: f"<｜tool_call_begin｜>function<｜tool_sep｜>{_invoke(call, 'steptml:').rstrip()}<｜tool_call_end｜>\n", ""
) + "<｜tool_calls_end｜>"  # fmt: skip
_ATEM = f"<atem:function_calls>\n{_each(lambda call: _invoke(call, 'atem:'), '')}</atem:function_calls>"
_COHERE = (
    "<|START_ACTION|>[\n    "
    + ",\n    ".join(
        json.dumps({"tool_call_id": str(at), "tool_name": name, "parameters": arguments})
        for at, (name, arguments) in enumerate(CALLS)
    )
    + "\n]<|END_ACTION|>"
)
_HUNYUAN3 = (
    "<tool_calls{0}>\n"
    + _each(lambda call: _glm(call, suffix="{0}", separator=True)).replace("{old}", "{{old}}")
    + "\n</tool_calls{0}>"
)
_HARMONY = (
    f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>commentary<|message|>{TEXT}<|end|>"
    + "<|end|>".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(arguments)}"
        for name, arguments in CALLS
    )
    + "<|call|>"
)

CORPUS = [
    Output("qwen2.5", "<tool_call>", _said(_QWEN), _ANGLE),
    Output("qwen3", "<tool_call>" + _THINK, _after_thought(_QWEN), _ANGLE, thinks=True),
    Output("qwq", "<tool_call>" + _THINK, _after_thought(_QWEN, opens=True), _ANGLE, thinks=True, opens=True),
    Output("exaone-deep", "<tool_call><thought></thought>", _after_thought(_QWEN, "<thought>\n", "\n</thought>\n\n"), _ANGLE, thinks=True),
    Output("qwen3-coder", "<tool_call>\n<function=", _said(_each(_coder)), _ANGLE),
    Output("qwen3.5", "<function=" + _THINK, _after_thought(_each(_coder), opens=True), _ANGLE, thinks=True, opens=True),
    Output("nemotron-3-nano", "<function=" + _THINK, _after_thought(_each(_coder)), _ANGLE, thinks=True),
    Output("qwen3-coder-one-tag", "<function=", _said("<tool_call>\n" + _each(lambda call: _coder(call)[12:-13]) + "\n</tool_call>"), _ANGLE),
    Output("seed-oss", "<function=<seed:think></seed:think>", _after_thought(_each(lambda call: _coder(call, "seed:tool_call", "")), "<seed:think>", "</seed:think>"), _ANGLE, thinks=True),
    Output("llama3", "<|python_tag|>", _each(lambda call: _json(call, arguments="parameters"), "; "), _BARS, says=False),
    Output("llama3-python-tag", "<|python_tag|>", "<|python_tag|>" + _each(lambda call: _json(call, arguments="parameters"), "; "), _BARS, says=False),
    Output("llama3.1-function", "<function=", _said(_each(lambda call: f"<function={call[0]}>{json.dumps(call[1])}</function>")), _ANGLE),
    Output("llama4", "<|python_start|>", _said(f"<|python_start|>[{_each(_python, ', ')}]<|python_end|>"), _BARS),
    Output("mistral", "[TOOL_CALLS]", _said(f"[TOOL_CALLS] {_list()}"), _SQUARE),
    Output("mistral-v11", "[TOOL_CALLS]", _said(_each(lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{json.dumps(call[1])}", "")), _SQUARE),
    Output("magistral", "[TOOL_CALLS][THINK][/THINK]", _after_thought(_each(lambda call: f"[TOOL_CALLS]{call[0]}[ARGS]{json.dumps(call[1])}", ""), "[THINK]", "[/THINK]"), _SQUARE, thinks=True),
    Output("deepseek-v3", "<｜tool▁calls▁begin｜>", _said(_R1), _BARS),
    Output("deepseek-r1", "<｜tool▁calls▁begin｜>" + _THINK, _after_thought(_R1, opens=True), _tokens(_BARS, _ANGLE), thinks=True, opens=True),
    Output("deepseek-v3.1", "<｜tool▁calls▁begin｜>" + _THINK, _after_thought(_V31), _tokens(_BARS, _ANGLE), thinks=True),
    Output("deepseek-v3.2", "｜DSML｜" + _THINK, _after_thought(_dsml("function_calls"), opens=True), r"</?｜DSML｜[^<>\n]*>|</think>", thinks=True, opens=True),
    Output("deepseek-v4", "｜DSML｜" + _THINK, _after_thought(_dsml("tool_calls")), r"</?｜DSML｜[^<>\n]*>|</?think>", thinks=True),
    Output("granite-3", "<|tool_call|>", _said(f"<|tool_call|>{_list()}"), _BARS),
    Output("granite-3.3", "<tool_call><response>" + _THINK, f"<think>{THOUGHT}</think><response>{TEXT}</response>\n{_QWEN}", _ANGLE, thinks=True),
    Output("granite-20b", "<function_call>", _said(_each(lambda call: f"<function_call> {_json(call)}")), _ANGLE),
    Output("phi-4-mini", "<|tool_call|>", _said(f"<|tool_call|>{_list()}<|/tool_call|>"), r"<\|/?tool_call\|>"),
    Output("phi-functools", "functools", _said(f"functools{_list()}"), "functools"),
    Output("nemotron", "<TOOLCALL>" + _THINK, _after_thought(f"<TOOLCALL>{_list()}</TOOLCALL>"), _ANGLE, thinks=True),
    Output("nemotron-mini", "<toolcall>", _said(_each(lambda call: f"<toolcall> {_json(call)} </toolcall>")), _ANGLE),
    Output("hunyuan-a13b", "<tool_calls><answer>" + _THINK, f"<think>\n{THOUGHT}\n</think>\n<answer>\n{TEXT}\n</answer>\n<tool_calls>\n{_list()}\n</tool_calls>", _ANGLE, thinks=True),
    Output("jamba", "<tool_calls>", _said(f"<tool_calls>{_list()}</tool_calls>"), _ANGLE),
    Output("hunyuan-3", "<tool_calls:opensource><think:opensource></think:opensource>", _after_thought(_HUNYUAN3.format(":opensource"), "<think:opensource>", "</think:opensource>"), _ANGLE, thinks=True),
    Output("hunyuan-3-plain", "<tool_calls><tool_sep><arg_key>" + _THINK, _after_thought(_HUNYUAN3.format("")), _ANGLE, thinks=True),
    Output("ernie-4.5", "<tool_call><response>" + _THINK, f"<think>\n{THOUGHT}\n</think>\n\n<response>\n{TEXT}\n</response>\n\n{_QWEN}", _ANGLE, thinks=True),
    Output("minimax-m2", "<minimax:tool_call>" + _THINK, _after_thought(f"<minimax:tool_call>\n{_each(_invoke, '')}</minimax:tool_call>", opens=True), _ANGLE, thinks=True, opens=True),
    Output("minimax-m3", f"{_NS}<mm:think></mm:think>", _after_thought(f"{_NS}<tool_call>\n{_each(_m3, '')}{_NS}</tool_call>", "<mm:think>", "</mm:think>"), _ANGLE, thinks=True),
    Output("solar", "<|tool_call:begin|><|think|><|begin|>", f"<|think|>{THOUGHT}<|end|><|begin|>assistant<|content|>{TEXT}<|end|><|begin|>assistant{_SOLAR}", _BARS, thinks=True),
    Output("command-a", "<|START_ACTION|><|START_THINKING|><|END_THINKING|>", f"<|START_THINKING|>{THOUGHT}<|END_THINKING|><|START_RESPONSE|>{TEXT}<|END_RESPONSE|>{_COHERE}", _BARS, thinks=True),
    Output("command-r", "Action:", _said("Action: ```json\n" + _list("parameters", "tool_name") + "```"), "Action:|```json|```"),
    Output("glm-4.5", "<arg_key>" + _THINK, _after_thought(_each(_glm)), _ANGLE, thinks=True),
    Output("glm-4.7", "<arg_key>" + _THINK, _after_thought(_each(lambda call: _glm(call, line=""), ""), opens=True), _ANGLE, thinks=True, opens=True),
    Output("glm-4-json", "<arg_key>", _said(_each(lambda call: f"<tool_call>{call[0]}\n{json.dumps(call[1])}</tool_call>")), _ANGLE),
    Output("longcat", "<longcat_tool_call><longcat_think></longcat_think>", _after_thought(_each(lambda call: _glm(call, "longcat_")), "<longcat_think>\n", "\n</longcat_think>\n"), _ANGLE, thinks=True),
    Output("longcat-json", "<longcat_tool_call>", _said(_each(lambda call: f"<longcat_tool_call>\n{_json(call)}\n</longcat_tool_call>")), _ANGLE),
    Output("kimi-k2", "<|tool_call_begin|>", _said(_KIMI), _BARS),
    Output("kimi-k2-thinking", "<|tool_call_begin|>" + _THINK, _after_thought(_KIMI), _tokens(_BARS, _ANGLE), thinks=True),
    Output("kimi-k3", "<|open|><|end_of_msg|>", f"<|open|>think<|sep|>{THOUGHT}<|close|>think<|sep|><|open|>response<|sep|>{TEXT}<|close|>response<|sep|><|open|>tools<|sep|>{_each(_k3, '')}<|close|>tools<|sep|>", r"<\|(?:open|close)\|>[^<>\n]*<\|sep\|>", thinks=True),
    Output("muse-spark", "<atem:function_calls>", _said(_ATEM), _ANGLE),
    Output("muse-glimmer", "<atem:function_calls><|eom|>", f" to=self<|message|>{THOUGHT}<|eom|><|start|>assistant to=user<|message|>{TEXT}<|eom|><|start|>assistant to=weather<|message|>{_ATEM}<|eot|>", _tokens(_BARS, _ANGLE), thinks=True),
    Output("minicpm-5", "<function name=", _said(_each(lambda call: _invoke(call, "", ("function", "param")), "")), _ANGLE),
    Output("function-gemma", "<start_function_call>", _said(_each(lambda call: f"<start_function_call>{_gemma(call, '<escape>')}<end_function_call>", "")), _ANGLE),
    Output("gemma-4", "<|tool_call><|channel><channel|>", f"<|channel>thought\n{THOUGHT}<channel|>{TEXT}\n" + _each(lambda call: "<|tool_call>" + _gemma(call, '<|"|>') + "<tool_call|>", ""), r'<\|channel>thought\n|<channel\|>|<\|tool_call>|<tool_call\|>|<\|"\|>', thinks=True),
    Output("gemma-3", "<start_of_turn>", _said(f"```tool_code\n{_each(_python)}\n```"), "```tool_code|```"),
    Output("lfm2", "<|tool_call_start|>", _said(f"<|tool_call_start|>[{_each(_python, ', ')}]<|tool_call_end|>"), _BARS),
    Output("lfm2.5", "<|tool_call_start|>" + _THINK, _after_thought(f"<|tool_call_start|>[{_each(_python, ', ')}]<|tool_call_end|>"), _tokens(_BARS, _ANGLE), thinks=True),
    Output("olmo-3", "<function_calls>" + _THINK, _after_thought(f"<function_calls>\n{_each(_python)}\n</function_calls>"), _ANGLE, thinks=True),
    Output("apertus", "<|tools_prefix|><|inner_prefix|><|inner_suffix|>", f"<|inner_prefix|>{THOUGHT}<|inner_suffix|>{TEXT}<|tools_prefix|>[{_each(lambda call: json.dumps({call[0]: call[1]}), ', ')}]<|tools_suffix|>", _BARS, thinks=True),
    Output("gigachat", "<|function_call|>", _said(_each(lambda call: f"<|function_call|>{_json(call)}")), _BARS),
    Output("gigachat-3", "`function call`", f"{TEXT}<|message_sep|>\n\n" + _each(lambda call: f"function call<|role_sep|>\n{_json(call)}", "<|message_sep|>\n\n"), r"<\|message_sep\|>|function call<\|role_sep\|>"),
    Output("internlm", "<|action_start|><|plugin|>", _said(_each(lambda call: f"<|action_start|><|plugin|>\n{_json(call, arguments='parameters')}<|action_end|>")), r"<\|action_start\|><\|plugin\|>|<\|action_end\|>"),
    Output("functionary-3.2", ">>>${recipient}", f"all\n{TEXT}\n" + _each(lambda call: f">>>{call[0]}\n{json.dumps(call[1])}", ""), ">>>"),
    Output("xlam", "", _list(), "(?!)", says=False),
    Output("dots", "<dots_function_call>" + _THINK, _after_thought(f"<dots_function_call>\n{_each(_invoke, '')}</dots_function_call>"), _ANGLE, thinks=True),
    Output("doubao", "<|FunctionCallBegin|>", _said(f"<|FunctionCallBegin|>{_list('parameters')}<|FunctionCallEnd|>"), _BARS),
    Output("step-3", "<｜tool_calls_begin｜>" + _THINK, _after_thought(_STEP3), _tokens(_BARS, r"</?steptml:[^<>\n]*>|</?think>"), thinks=True),
    Output("gpt-oss", "<|channel|><|message|>", _HARMONY, _BARS, thinks=True),
]  # fmt: skip
