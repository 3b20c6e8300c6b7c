"""How much of a turn's prompt and answer the next prompt begins with, for every family's template.

What is not kept has to be read again in the next turn, so snapshots are placed where prompts part (see
`runner.boundaries`).
`python -m tests.prompting.test_prefixes` prints the report.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.prompting.template import PromptTemplate
from tests.prompting.families import FAMILIES, Family
from tests.prompting.test_families import TOOLS

ASK, AGAIN = Message("user", "Question-1"), Message("user", "Question-2")
CALL = ToolCall("weather", {"city": "Paris"}, "call_abcd1234")
RESULT = Message("tool", "Result-1", tool_call_id="call_abcd1234")
TURNS = {
    "plain": ([ASK], [Message("assistant", "Answer-1"), AGAIN], False),
    "thinking": ([ASK], [Message("assistant", "Answer-1", "Thought-1"), AGAIN], True),
    "tool": ([ASK], [Message("assistant", tool_calls=[CALL]), RESULT], False),
}
"""Messages of a prompt, what the next has behind them, and whether the model thinks."""


class Kept(NamedTuple):
    """`asked`: the next prompt begins with the whole of this turn's. Else `lost` is what it has instead of its end."""

    asked: bool
    question: bool
    """It has at least all up to the end of the question."""
    lost: str


def kept(family: Family, kind: str) -> Kept:
    messages, later, think = TURNS[kind]
    template = PromptTemplate.from_jinja(family.template(), bos_token="<s>")

    def render(*turns: Message) -> str:
        return template.render(GenerateRequest(id=1, messages=[*turns], tools=TOOLS, think=think)).text

    first, second = render(*messages), render(*messages, *later)
    common = len(os.path.commonprefix([first, second]))  # noqa: RUF071
    return Kept(common == len(first), common >= first.index("Question-1") + len("Question-1"), first[common:])


PARTS = {
    ("qwen3", "plain"), ("qwen3", "tool"), ("qwq", "thinking"), ("deepseek-r1", "plain"), ("deepseek-r1", "tool"),
    ("deepseek-r1", "thinking"), ("deepseek-v3.1", "plain"), ("deepseek-v3.1", "tool"),
    ("deepseek-v3.1", "thinking"), ("glm4.5", "plain"), ("glm4.5", "tool"), ("minimax-m2", "thinking"),
}  # fmt: skip
"""Templates that put a mark of thinking behind the question which the next turn's prompt no longer has."""


@pytest.mark.parametrize("kind", TURNS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_prompt_is_kept_but_for_the_mark_of_thinking_at_its_end(family: Family, kind: str) -> None:
    found = kept(family, kind)
    assert found.question, "all up to the question is kept by every template"
    assert found.asked is ((family.name, kind) not in PARTS)
    assert family.opens.endswith(found.lost) or family.skips.endswith(found.lost)


def report() -> str:
    lines = []
    for family in FAMILIES:
        found = [kept(family, kind) for kind in TURNS]
        words = ", ".join(
            f"{kind}: {'kept' if one.asked else 'parts at ' + repr(one.lost)}"
            for kind, one in zip(TURNS, found, strict=True)
        )
        lines.append(f"{family.name:14} {words}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
