"""The boundaries of a prompt are where the next prompts really part from it, whatever the template does to the past."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.template import PromptTemplate
from omlx.runner.prompt import Prompt, Prompter, PromptTokenizer
from tests.support.tiny import tiny_model
from tests.support.tiny_template import CHATML

TOOLS_LAST = """{%- for message in messages -%}
{%- if loop.last and tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}
[{{ message.role }}]{{ message.content }}
{%- endfor -%}{% if add_generation_prompt %}[assistant]{% endif %}"""
SYSTEM, USER, ANSWER = Message("system", "You are brief."), Message("user", "Hello"), Message("assistant", "Hi.")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_model("llama"))


def parts(tokenizer: Any, prompt: Prompt) -> list[str]:
    """The prompt's text up to each boundary."""
    return [tokenizer.decode(prompt.tokens[:end]) for end in prompt.boundaries]


def build(tokenizer: Any, template: str, *messages: Message, fast: bool = True, **changes: Any) -> Prompt:
    encoder = PromptTokenizer(tokenizer if fast else Slow(tokenizer))
    prompter = Prompter(PromptTemplate.from_jinja(template), encoder, bounded=True)
    return prompter.build(GenerateRequest(id=1, messages=[*messages], **changes), 2048)


class Slow:
    """The same tokenizer without its fast half."""

    def __init__(self, tokenizer: Any) -> None:
        self.encode, self.get_vocab = tokenizer.encode, tokenizer.get_vocab


@pytest.mark.parametrize("fast", [True, False])
def test_a_first_turn_parts_behind_the_system_prompt_and_before_the_answer(tokenizer: Any, fast: bool) -> None:
    prompt = build(tokenizer, CHATML, SYSTEM, USER, think=False, fast=fast)
    system = "<|im_start|>system\nYou are brief.<|im_end|>\n<|im_start|>user\n"
    # What opens the answer is gone in the next turn's prompt.
    assert parts(tokenizer, prompt) == [system, system + "Hello<|im_end|>\n<|im_start|>assistant\n"]
    assert prompt.text.endswith("</think>\n\n")


def test_a_later_turn_parts_where_its_question_begins_too(tokenizer: Any) -> None:
    prompt = build(tokenizer, CHATML, SYSTEM, USER, ANSWER, Message("user", "Bye"), think=False)
    ends = parts(tokenizer, prompt)
    assert [end.rpartition("<|im_start|>")[2] for end in ends] == ["user\n", "user\n", "assistant\n"]
    assert ends[1].count("<|im_end|>") == 3


def test_tools_before_the_last_message_move_on_with_it(tokenizer: Any) -> None:
    tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
    prompt = build(tokenizer, TOOLS_LAST, USER, ANSWER, Message("user", "Bye"), tools=tools)
    assert "[user]Hello[assistant]Hi." in parts(tokenizer, prompt)


def test_the_next_turn_has_the_promised_beginning(tokenizer: Any) -> None:
    before = build(tokenizer, CHATML, SYSTEM, USER, think=False)
    after = build(tokenizer, CHATML, SYSTEM, USER, ANSWER, Message("user", "Bye"), think=False)
    end = before.boundaries[-1]
    assert after.tokens[:end] == before.tokens[:end]
    assert after.tokens[: end + 1] != before.tokens[: end + 1]


def test_a_raw_prompt_has_none(tokenizer: Any) -> None:
    assert build(tokenizer, CHATML, raw_prompt="Once upon a time").boundaries == ()
