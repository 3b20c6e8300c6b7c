"""Every family's template is rendered and its output understood: what the template writes as a call is read as one."""

from __future__ import annotations

import os
from typing import Any

import pytest

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.prompting.output import OutputParser, detect_output
from omlx.prompting.template import PromptTemplate
from tests.prompting.families import FAMILIES, Family

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
PARIS = ToolCall("weather", {"city": "Paris <é>", "days": 3}, "call_abcd1234")
NOW = ToolCall("now", {}, "call_abcd1235")
ASK, SYSTEM = Message("user", "Question-1"), Message("system", "System-1")


def prompt(family: Family, *messages: Message, **request: Any) -> str:
    template = PromptTemplate.from_jinja(family.template(), bos_token="<s>")
    return template.render(GenerateRequest(id=1, messages=list(messages), **request)).text


def results(*calls: ToolCall) -> list[Message]:
    return [Message("tool", f"Result-{call.name}", tool_call_id=call.id) for call in calls]


@pytest.fixture(params=FAMILIES, ids=lambda family: family.name)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


def test_what_the_template_writes_as_calls_is_read_as_calls(family: Family) -> None:
    for think in (True, False):
        asked = prompt(family, ASK, tools=TOOLS, think=think)
        for calls in ([PARIS], [NOW], [PARIS, NOW]):
            told = prompt(
                family, ASK, Message("assistant", tool_calls=calls), *results(*calls), tools=TOOLS, think=think
            )
            # What the model would have written: from where the prompt ended to where its turn ends.
            start = len(os.path.commonprefix([asked, told]))  # noqa: RUF071
            start = start if start == len(asked) else max(told.rfind(family.answer[0], 0, start), 0)
            written = told[start:].removeprefix(family.answer[0]).split("Result-")[0]
            parser = OutputParser(detect_output(family.template(), [], ""), tools=TOOLS, opens_thinking=False)
            segments = [*parser.feed(written), *parser.finish()]
            found = [(segment.call.name, segment.call.arguments) for segment in segments if segment.call]
            expected = [(call.name, call.arguments) for call in calls]
            # Where a template takes one call a message, the second follows the first one's result.
            assert found == (expected[:1] if family.one_call else expected), written


def test_the_whole_conversation_reaches_the_prompt(family: Family) -> None:
    calls = [PARIS, NOW]
    messages = [SYSTEM, ASK, Message("assistant", "I look.", tool_calls=calls), *results(*calls)]
    messages += [Message("assistant", "Answer-1"), Message("user", "Question-2")]
    text = prompt(family, *messages, tools=TOOLS)
    places = [
        text.find(word) for word in ("System-1", "Question-1", "I look.", "Paris <é>", "now", "Answer-1", "Question-2")
    ]
    assert -1 not in places
    order = [places[0], places[1], places[2], places[5], places[6]]
    assert order == sorted(order)
    assert "Result-weather" in text and "Result-now" in text
    assert "The weather of a city" in text


def test_an_unfinished_answer_is_continued(family: Family) -> None:
    assert prompt(family, ASK, Message("assistant", "Once upon"), think=False).endswith("Once upon")


def test_a_turn_is_a_prefix_of_the_next(family: Family) -> None:
    """What the KV store has of one turn serves the next, up to where the template puts thinking."""
    first = prompt(family, SYSTEM, ASK, think=False)
    second = prompt(family, SYSTEM, ASK, Message("assistant", "Answer-1"), Message("user", "Question-2"), think=False)
    asked = first.removesuffix(family.skips)
    assert second.startswith(asked)
    assert second[len(asked) :].startswith("Answer-1")


def test_thinking_is_opened_or_skipped_as_the_template_says(family: Family) -> None:
    template = PromptTemplate.from_jinja(family.template())
    on = template.render(GenerateRequest(id=1, messages=[ASK]))
    off = template.render(GenerateRequest(id=1, messages=[ASK], think=False))
    assert on.opens_thinking is bool(family.opens)
    assert not off.opens_thinking
    assert off.text.endswith(family.skips)
