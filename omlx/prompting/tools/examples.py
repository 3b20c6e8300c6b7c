"""*Examples* are calls as text, as families write them: for prompts that show a model an earlier call, or how to make
one. What stands here is what the family's reader takes and what its grammar allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from omlx.messages.request import ToolCall

Knows = Callable[[str], bool]
"""Whether the vocabulary or the template has a mark."""


def taught_format(names: Collection[str]) -> str:
    """Of the formats that a model speaks, the one in which it is shown calls. Hermes' is every model's."""
    return next((name for name in names if name in _EXAMPLES and name != "hermes"), "hermes")


def write_example(name: str, call: ToolCall, knows: Knows) -> str:
    return _EXAMPLES[name](call, knows)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(call: ToolCall, arguments_key: str = "arguments") -> str:
    return _json({"name": call.name, arguments_key: call.arguments})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _between(opening: str, closing: str, arguments_key: str = "arguments") -> Callable[[ToolCall, Knows], str]:
    return lambda call, knows: f"{opening}{_object(call, arguments_key)}{closing}"


def _hermes(call: ToolCall, knows: Knows) -> str:
    return f"<tool_call>\n{_object(call)}\n</tool_call>"


def _granite(call: ToolCall, knows: Knows) -> str:
    """Phi-4-mini has a closing token."""
    return f"<|tool_call|>[{_object(call)}]{'<|/tool_call|>' if knows('<|/tool_call|>') else ''}"


def _mistral(call: ToolCall, knows: Knows) -> str:
    if knows("[ARGS]"):
        return f"[TOOL_CALLS]{call.name}[ARGS]{_json(call.arguments)}"
    return f"[TOOL_CALLS] [{_object(call)}]"


def _deepseek(call: ToolCall, knows: Knows) -> str:
    inner = f"function<｜tool▁sep｜>{call.name}\n```json\n{_json(call.arguments)}\n```"
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{inner}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def _kimi(call: ToolCall, knows: Knows) -> str:
    identity = call.id if call.id.startswith(f"functions.{call.name}:") else f"functions.{call.name}:0"
    inner = f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>{_json(call.arguments)}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def _cohere(call: ToolCall, knows: Knows) -> str:
    written = _json({"tool_call_id": "0", "tool_name": call.name, "parameters": call.arguments})
    return f"<|START_ACTION|>[\n    {written}\n]<|END_ACTION|>"


def _command_r(call: ToolCall, knows: Knows) -> str:
    return f"Action:```json\n[\n{_json({'tool_name': call.name, 'parameters': call.arguments})}\n]```"


def _python(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def _lfm2(call: ToolCall, knows: Knows) -> str:
    return f"<|tool_call_start|>[{_python(call)}]<|tool_call_end|>"


def _olmo(call: ToolCall, knows: Knows) -> str:
    return f"<function_calls>{_python(call)}</function_calls>"


def _coder(call: ToolCall, knows: Knows) -> str:
    tag = "seed:tool_call" if knows("<seed:tool_call>") else "tool_call"
    inner = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in call.arguments.items())
    return f"<{tag}>\n<function={call.name}>\n{inner}</function>\n</{tag}>"


def _glm(call: ToolCall, knows: Knows) -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in call.arguments.items()
    )
    return f"<tool_call>{call.name}\n{inner}</tool_call>"


def _minimax2(call: ToolCall, knows: Knows) -> str:
    inner = "".join(f'<parameter name="{key}">{_text(value)}</parameter>\n' for key, value in call.arguments.items())
    return f'<minimax:tool_call>\n<invoke name="{call.name}">\n{inner}</invoke>\n</minimax:tool_call>'


_MINIMAX = "]<]minimax[>["


def _minimax3(call: ToolCall, knows: Knows) -> str:
    """Every tag behind its token; objects and lists as elements within."""
    inner = "".join(_element(name, value) for name, value in call.arguments.items())
    tag = _MINIMAX
    return f'{tag}<tool_call>\n{tag}<invoke name="{call.name}">{inner}{tag}</invoke>\n{tag}</tool_call>'


def _element(name: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = "".join(_element(key, item) for key, item in value.items())
    elif isinstance(value, list):
        inner = "".join(_element("item", item) for item in value)
    else:
        inner = _text(value)
    return f"{_MINIMAX}<{name}>{inner}{_MINIMAX}</{name}>"


_EXAMPLES: dict[str, Callable[[ToolCall, Knows], str]] = {
    "lfm2": _lfm2,
    "cohere": _cohere,
    "minimax-m3": _minimax3,
    "kimi-k2": _kimi,
    "mistral": _mistral,
    "granite": _granite,
    "deepseek": _deepseek,
    "command-r": _command_r,
    "olmo3": _olmo,
    "qwen3-coder": _coder,
    "glm": _glm,
    "minimax:tool_call": _minimax2,
    "nemotron": lambda call, knows: f"<TOOLCALL>[{_object(call)}]</TOOLCALL>",
    "internlm": _between("<|action_start|><|plugin|>\n", "<|action_end|>", "parameters"),
    "gigachat": _between("<|function_call|>", ""),
    "hermes": _hermes,
}
