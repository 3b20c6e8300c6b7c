"""The real `anthropic` package against the real stack: what the model says arrives word for word, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.server.local import LocalServer, eventually
from tests.support.lessons import LESSONS, STORY, Lesson, lesson

MODEL = "taught"


@pytest.fixture(scope="module")
def client(taught: LocalServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=taught.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def given(of: Lesson, **fields: Any) -> dict[str, Any]:
    """A lesson as Anthropic's clients send it."""
    system = [{"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
              for message in of.messages if message["role"] == "system"]  # fmt: skip
    tools = [{"name": tool["function"]["name"], "description": tool["function"]["description"],
              "input_schema": tool["function"]["parameters"]} for tool in of.tools]  # fmt: skip
    messages = [_turn(message) for message in of.messages if message["role"] != "system"]
    optional = {"system": system, "tools": tools}
    return {"model": MODEL, "max_tokens": 300, "messages": messages, "extra_body": {"temperature": 0},
            **{name: value for name, value in optional.items() if value}, **fields}  # fmt: skip


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"],
                  "content": [{"type": "text", "text": message["content"]}]}  # fmt: skip
        return {"role": "user", "content": [result]}
    calls = [{"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
              "input": call["function"]["arguments"]} for call in message.get("tool_calls", [])]  # fmt: skip
    texts = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return {"role": message["role"], "content": [*texts, *calls]}


def expected_kinds(of: Lesson) -> list[str]:
    return [
        *(["thinking"] if of.thinking else []),
        *(["text"] if of.content else []),
        *["tool_use"] * len(of.tool_calls),
    ]


def check(message: Any, of: Lesson) -> None:
    assert [block.type for block in message.content] == expected_kinds(of)
    assert "".join(block.text for block in message.content if block.type == "text") == of.content
    assert "".join(block.thinking for block in message.content if block.type == "thinking").strip() == of.thinking
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [{"name": block.name, "arguments": block.input} for block in calls] == of.tool_calls
    assert message.stop_reason == ("tool_use" if of.tool_calls else "end_turn")


@pytest.mark.parametrize("of", LESSONS, ids=lambda of: of.name)
def test_every_lesson_whole_and_streamed(client: anthropic.Anthropic, of: Lesson) -> None:
    whole = client.messages.create(**given(of))
    check(whole, of)
    with client.messages.stream(**given(of)) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    check(final, of)
    assert events[0] == "message_start"
    assert events[-2:] == ["message_delta", "message_stop"]
    assert final.usage.output_tokens == whole.usage.output_tokens
    prompts = [message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) for message in (whole, final)]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("name", ["hello", "pirate", "two-cities", "tool-result"])
def test_tokens_are_counted_exactly(client: anthropic.Anthropic, name: str) -> None:
    fields = given(lesson(name))
    reply = client.messages.create(**fields)
    asked = {key: fields[key] for key in ("model", "messages", "system", "tools") if key in fields}
    counted = client.messages.count_tokens(**asked)
    assert counted.input_tokens == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)


def test_a_prompt_seen_before_is_read_from_the_cache_and_says_so(client: anthropic.Anthropic) -> None:
    fields = given(lesson("hello"), system="You are a sailor. " * 60, max_tokens=4)
    client.messages.create(**fields)
    usage = client.messages.create(**fields).usage
    assert (usage.cache_read_input_tokens or 0) > 0
    assert usage.input_tokens > 0
    assert usage.cache_creation_input_tokens == 0


def test_limits_and_stop_sequences(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(**given(lesson("story"), max_tokens=5))
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)
    stopped = client.messages.create(**given(lesson("story"), stop_sequences=["One winter"]))
    assert "".join(block.text for block in stopped.content if block.type == "text") == STORY.partition("One winter")[0]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "One winter")


def test_thinking_can_be_switched_off(client: anthropic.Anthropic) -> None:
    reply = client.messages.create(**given(lesson("sum"), thinking={"type": "disabled"}))
    assert [block.type for block in reply.content] == ["text"]


def test_a_tool_is_used_and_the_conversation_goes_on(client: anthropic.Anthropic) -> None:
    of = lesson("weather")
    fields = given(of)
    first = client.messages.create(**fields)
    use = first.content[0]
    assert use.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "18 degrees, cloudy"}
    fields["messages"] = [
        *fields["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(**fields)
    assert [block.text for block in second.content if block.type == "text"] == [lesson("tool-result").content]


def test_one_tool_use_where_the_client_takes_no_more(client: anthropic.Anthropic) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    reply = client.messages.create(**given(lesson("two-cities"), tool_choice=choice))
    assert [block.input for block in reply.content if block.type == "tool_use"] == [{"city": "Paris"}]


def test_errors_are_the_packages_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**given(lesson("hello")) | {"model": "absent"})
    assert missing.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "model 'absent' not found"},
        "request_id": missing.value.body["request_id"],  # type: ignore[index]
    }
    with pytest.raises(anthropic.BadRequestError, match="max_tokens is required and must be positive"):
        client.messages.create(**given(lesson("hello")) | {"max_tokens": 0})


def test_leaving_a_stream_frees_the_engine(taught: LocalServer, client: anthropic.Anthropic) -> None:
    fields = given(lesson("story"), max_tokens=100_000, extra_body={"temperature": 2.0})
    stream = client.messages.create(**fields, stream=True)
    next(iter(stream))
    stream.close()
    assert eventually(lambda: taught.running() == 0)
