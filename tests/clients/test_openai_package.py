"""The real `openai` package against the real stack: what the model says arrives word for word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from tests.server.local import LocalServer, eventually
from tests.support.lessons import LESSONS, STORY, Lesson, lesson
from tests.support.tiny import DATA

MODEL = "taught"


@pytest.fixture(scope="module")
def client(taught: LocalServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{taught.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def chat_messages(of: Lesson) -> list[Any]:
    """A lesson's messages as OpenAI's clients hold them."""
    return [
        {key: value for key, value in message.items() if key not in {"tool_calls", "tool_name"}}
        | ({"tool_calls": [_call(call) for call in message["tool_calls"]]} if "tool_calls" in message else {})
        for message in of.messages
    ]


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {"name": function["name"], "arguments": json.dumps(function["arguments"])}}


def given(of: Lesson, **fields: Any) -> dict[str, Any]:
    tools = {"tools": of.tools} if of.tools else {}
    return {"model": MODEL, "messages": chat_messages(of), "temperature": 0, **tools, **fields}


def calls_of(found: Any) -> list[dict[str, Any]]:
    return [{"name": call.function.name, "arguments": json.loads(call.function.arguments)} for call in found or []]


@pytest.mark.parametrize("of", LESSONS, ids=lambda of: of.name)
def test_every_lesson_as_a_chat_completion(client: openai.OpenAI, of: Lesson) -> None:
    whole = client.chat.completions.create(**given(of))
    message = whole.choices[0].message
    assert (message.role, message.content) == ("assistant", of.content)
    assert str(getattr(message, "reasoning", "") or "").strip() == of.thinking
    assert calls_of(message.tool_calls) == of.tool_calls
    assert whole.choices[0].finish_reason == ("tool_calls" if of.tool_calls else "stop")
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

    chunks = list(client.chat.completions.create(**given(of), stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert {chunk.id for chunk in chunks} == {parts[0].id}
    deltas = [chunk.choices[0].delta for chunk in parts]
    assert [delta.role for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
    assert "".join(delta.content or "" for delta in deltas) == of.content
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas).strip() == of.thinking
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    assert calls_of(calls) == of.tool_calls
    assert [call.index for call in calls] == list(range(len(calls)))
    assert [chunk.choices[0].finish_reason for chunk in parts] == [
        *[None] * (len(parts) - 1),
        whole.choices[0].finish_reason,
    ]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_the_stream_helper_of_the_package_assembles_the_same_answer(client: openai.OpenAI) -> None:
    of = lesson("two-cities")
    with client.chat.completions.stream(**given(of)) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert calls_of(final.choices[0].message.tool_calls) == of.tool_calls


def test_a_tool_call_is_answered_and_the_conversation_goes_on(client: openai.OpenAI) -> None:
    of = lesson("tool-result")
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    tools: list[Any] = of.tools
    first = client.chat.completions.create(model=MODEL, messages=asked, tools=tools, temperature=0)
    message = first.choices[0].message
    assert message.tool_calls is not None
    asked += [
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees, cloudy"},
    ]
    second = client.chat.completions.create(model=MODEL, messages=asked, tools=tools, temperature=0)
    assert second.choices[0].message.content == of.content


def test_limits_stops_and_the_newer_name_of_the_limit(client: openai.OpenAI) -> None:
    of = lesson("story")
    for field in ("max_tokens", "max_completion_tokens"):
        cut = client.chat.completions.create(**given(of, **{field: 5}))
        assert cut.choices[0].finish_reason == "length"
        assert cut.usage is not None
        assert cut.usage.completion_tokens == 5
    stopped = client.chat.completions.create(**given(of), stop=["One winter", "never"])
    assert stopped.choices[0].message.content == STORY.partition("One winter")[0]


def test_thinking_can_be_switched_off(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(**given(lesson("sum")), reasoning_effort="none").choices[0].message
    assert (message.content, getattr(message, "reasoning", None)) == ("2 + 2 = 4", None)


def test_tool_choice_none_offers_no_tools(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**given(lesson("hello-with-tools")), tool_choice="none")
    plain = client.chat.completions.create(**given(lesson("hello")))
    assert reply.usage is not None
    assert plain.usage is not None
    assert reply.usage.prompt_tokens == plain.usage.prompt_tokens


def test_a_reply_ends_with_its_first_call_where_the_client_takes_no_more(client: openai.OpenAI) -> None:
    of = lesson("two-cities")
    both, one = (client.chat.completions.create(**given(of), parallel_tool_calls=many) for many in (True, False))
    assert calls_of(both.choices[0].message.tool_calls) == of.tool_calls
    assert calls_of(one.choices[0].message.tool_calls) == of.tool_calls[:1]
    assert one.choices[0].finish_reason == "tool_calls"
    assert one.usage is not None
    assert both.usage is not None
    # The second call was not even written: at most a token of it, which was already on its way.
    assert one.usage.completion_tokens < both.usage.completion_tokens - 5
    streamed = list(client.chat.completions.create(**given(of), parallel_tool_calls=False, stream=True))
    calls = [call for chunk in streamed for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert [call.index for call in calls] == [0]


def test_thinking_is_counted(client: openai.OpenAI) -> None:
    thought, plain = (
        client.chat.completions.create(**given(lesson("sum")), reasoning_effort=effort).usage
        for effort in ("medium", "none")
    )
    assert thought is not None
    assert plain is not None
    assert thought.completion_tokens_details is not None
    counted = thought.completion_tokens_details.reasoning_tokens or 0
    # Two and two make four, and the rest is the answer: as many tokens as without thinking, or a few more of markers.
    assert 0 <= thought.completion_tokens - counted - plain.completion_tokens <= 3
    assert plain.completion_tokens_details is None
    response = client.responses.create(model=MODEL, input="What is 2 + 2?", temperature=0)
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == counted


def test_several_choices_with_one_seed_differ_and_can_be_had_again(client: openai.OpenAI) -> None:
    fields = given(lesson("story"), temperature=1.5, max_tokens=12, n=3, seed=7)
    first, second = (client.chat.completions.create(**fields) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert [choice.message.content for choice in second.choices] == texts
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_json_schemas_and_objects_constrain_the_answer(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"],
              "additionalProperties": False}  # fmt: skip
    forms: list[dict[str, Any]] = [
        {"type": "json_schema", "json_schema": {"name": "age", "schema": schema, "strict": True}},
        {"type": "json_object"},
    ]
    fields: dict[str, Any] = {"reasoning_effort": "none", "max_tokens": 60}
    by_schema, by_object = (
        client.chat.completions.create(**given(lesson("json"), response_format=form, **fields)) for form in forms
    )
    assert set(json.loads(by_schema.choices[0].message.content or "")) == {"age"}
    assert json.loads(by_object.choices[0].message.content or "") == {"name": "Ada", "age": 36}


def test_logprobs_name_the_chosen_tokens(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(**given(lesson("hello")), logprobs=True, top_logprobs=2)
    assert reply.choices[0].logprobs is not None
    tokens = reply.choices[0].logprobs.content or []
    assert "".join(token.token for token in tokens).startswith("Hello!")
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)


def test_a_second_turn_is_served_from_the_cache_and_says_so(client: openai.OpenAI) -> None:
    history: list[Any] = [{"role": "system", "content": "You are a pirate. " * 60}, {"role": "user", "content": "Hi"}]
    fields: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 4}
    client.chat.completions.create(messages=history, **fields)
    again = client.chat.completions.create(messages=history, **fields)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert 0 < cached < again.usage.prompt_tokens


def test_completions_echo_and_several_prompts(client: openai.OpenAI) -> None:
    prompts = ["Hello", "What is the capital of France?"]
    wanted = [lesson("hello").content, lesson("capital").content]
    reply = client.completions.create(model=MODEL, prompt=prompts, temperature=0)
    assert [(choice.index, choice.text) for choice in reply.choices] == list(enumerate(wanted))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 10
    echoed = client.completions.create(model=MODEL, prompt="Hello", temperature=0, echo=True)
    assert echoed.choices[0].text == "Hello" + wanted[0]
    streamed = client.completions.create(model=MODEL, prompt="Hello", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == wanted[0]


def test_a_prompt_and_a_text_may_come_as_tokens(client: openai.OpenAI) -> None:
    tokenizer = Tokenizer.from_file(str(DATA / "taught-qwen3" / "tokenizer.json"))
    prompt = tokenizer.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n").ids
    # As they are: with the template around them they would be a text that this model has never seen.
    reply = client.completions.create(model=MODEL, prompt=prompt, temperature=0)
    assert reply.choices[0].text == lesson("hello").content
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(prompt)
    several = client.completions.create(model=MODEL, prompt=[prompt, prompt], temperature=0, max_tokens=2, n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        client.completions.create(model=MODEL, prompt=[5, 1_000_000])

    text = "The capital of France"
    as_text, as_tokens = (
        client.embeddings.create(model=MODEL, input=given).data[0].embedding
        for given in (text, tokenizer.encode(text).ids)
    )
    assert as_tokens == as_text
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        client.embeddings.create(model=MODEL, input=[[5], [1_000_000]])


def test_completions_with_the_older_logprobs(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="Hello", temperature=0, logprobs=2).choices[0]
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or []).startswith("Hello!")
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs or [])
    placed = zip(choice.logprobs.text_offset or [], choice.logprobs.tokens or [], strict=True)
    assert all(choice.text[at:].startswith(token) for at, token in placed if at < len(choice.text))


@pytest.mark.parametrize("of", LESSONS, ids=lambda of: of.name)
def test_every_lesson_as_a_response(client: openai.OpenAI, of: Lesson) -> None:
    fields: dict[str, Any] = {
        "model": MODEL,
        "input": _items(of),
        "temperature": 0,
        "tools": [_flat(tool) for tool in of.tools],
    }
    whole = client.responses.create(**fields)
    assert whole.output_text == of.content
    assert _called(whole.output) == of.tool_calls
    assert "".join(part.text for item in whole.output if item.type == "reasoning" for part in item.summary).strip() == (
        of.thinking
    )
    with client.responses.stream(**fields) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == of.content
    assert _called(final.output) == of.tool_calls
    assert final.usage is not None
    assert final.usage.total_tokens > 0


def _items(of: Lesson) -> list[Any]:
    items: list[Any] = []
    for message in of.messages:
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls", []):
            function = call["function"]
            items.append({"type": "function_call", "call_id": call["id"], "name": function["name"],
                          "arguments": json.dumps(function["arguments"])})  # fmt: skip
    return items


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"]}


def _called(output: Any) -> list[dict[str, Any]]:
    return [{"name": item.name, "arguments": json.loads(item.arguments)} for item in output
            if item.type == "function_call"]  # fmt: skip


def test_a_response_goes_on_from_the_one_before(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ada.", temperature=0)
    second = client.responses.create(
        model=MODEL, input="What is my name?", temperature=0, previous_response_id=first.id
    )
    assert second.output_text == lesson("recall").content
    assert client.responses.retrieve(first.id).output_text == lesson("name").content
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    # What was built on it has the conversation of its own.
    third = client.responses.create(
        model=MODEL, input="What is my name?", max_output_tokens=3, previous_response_id=second.id
    )
    assert third.previous_response_id == second.id
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.responses.create(model=MODEL, input="x", previous_response_id=first.id)


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["taught:latest"]
    assert client.models.retrieve("taught").owned_by == "library"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("hf.co/org/absent")


def test_leaving_a_stream_frees_the_engine(taught: LocalServer, client: openai.OpenAI) -> None:
    fields = given(lesson("story"), temperature=2.0, max_tokens=100_000, n=2)
    stream = client.chat.completions.create(**fields, stream=True)
    next(iter(stream))
    stream.close()
    assert eventually(lambda: taught.running() == 0)
    assert (
        client.chat.completions.create(**given(lesson("hello"))).choices[0].message.content == lesson("hello").content
    )


def test_embeddings_have_length_one_and_come_shorter_on_demand(client: openai.OpenAI) -> None:
    reply = client.embeddings.create(model=MODEL, input=["Hello", "The capital"])  # the package asks for base64
    assert [item.index for item in reply.data] == [0, 1]
    assert all(sum(value * value for value in item.embedding) == pytest.approx(1, abs=1e-4) for item in reply.data)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 1
    plain = client.embeddings.create(model=MODEL, input="Hello", encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(reply.data[0].embedding, abs=1e-6)
    short = client.embeddings.create(model=MODEL, input="Hello", dimensions=8).data[0].embedding
    assert len(short) == 8
    assert sum(value * value for value in short) == pytest.approx(1, abs=1e-4)
