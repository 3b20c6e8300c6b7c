"""/v1/messages: blocks become a conversation, a stream keeps Anthropic's exact order, faults are told in its words."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from omlx.runner.connection import CRASHED
from tests.server.local import LocalServer, eventually
from tests.server.sse import Event, events

PNG = b"\x89PNG\r\n\x1a\n"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                     "data": base64.b64encode(PNG).decode()}}  # fmt: skip
TOOL = {"name": "weather", "description": "d", "cache_control": {"type": "ephemeral"}, "input_schema": {
    "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False,
    "properties": {"city": {"type": "string", "minLength": 1}}}}  # fmt: skip


def ask(http: httpx.Client, prompt: Any, model: str = "thinker", **fields: Any) -> httpx.Response:
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    body = {"model": model, "max_tokens": 50, "messages": messages, **fields}
    return http.post("/v1/messages?beta=true", json=body, headers={"x-api-key": "k", "anthropic-version": "2023-06-01"})


def internal(http: httpx.Client, messages: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The internal request that a message becomes."""
    reply = ask(http, [*(messages or []), {"role": "user", "content": "request"}], **fields).json()
    found: dict[str, Any] = json.loads(reply["content"][0]["text"])
    return found


def named(found: list[Event]) -> list[str]:
    assert [event.data["type"] for event in found] == [event.name for event in found]
    return [event.name for event in found]


def test_what_claude_code_sends_becomes_a_conversation(http: httpx.Client) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "T", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "O"},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "R"}]},
            {"type": "text", "text": "note"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t2", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": "S"}]},
    ]  # fmt: skip
    found = internal(http, messages, system=[{"type": "text", "text": "S1 "}, {"type": "text", "text": "S2"}],
                     tools=[TOOL], tool_choice={"type": "auto"}, metadata={"user_id": "u"}, service_tier="auto",
                     thinking={"type": "enabled", "budget_tokens": 1024}, container=None)  # fmt: skip
    assert found["limits"] == {"num_predict": 50, "think_budget": 1024}
    assert found["messages"] == [
        {"role": "system", "content": "S1 S2"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "O", "thinking": "T",
         "tool_calls": [{"name": "weather", "arguments": {"city": "Rome"}, "id": "t1"}]},
        {"role": "tool", "content": "R", "tool_call_id": "t1"},
        {"role": "user", "content": "note"},
        {"role": "assistant", "tool_calls": [{"name": "weather", "arguments": {}, "id": "t2"}]},
        {"role": "tool", "content": "S", "tool_call_id": "t2"},
        {"role": "user", "content": "request"},
    ]  # fmt: skip
    assert found["think"] is True
    assert found["tools"] == [{"type": "function", "function": {
        "name": "weather", "description": "d", "parameters": TOOL["input_schema"]}}]  # fmt: skip


def test_sampling_is_the_modelfiles_unless_given(http: httpx.Client) -> None:
    found = internal(http, model="plain")
    assert (found["sampling"], found["limits"]) == ({"temperature": 0.5}, {"num_predict": 50, "stop": ["END"]})
    found = internal(http, temperature=0.25, top_p=0.5, top_k=3, stop_sequences=["x"])
    assert found["sampling"] == {"temperature": 0.25, "top_k": 3, "top_p": 0.5}
    assert found["limits"] == {"num_predict": 50, "stop": ["x"]}


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, "high"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, False),
    ],
)
def test_thinking_and_effort(http: httpx.Client, fields: dict[str, Any], think: Any) -> None:
    assert internal(http, **fields).get("think") == think


def test_a_model_that_cannot_think_is_not_asked_to(http: httpx.Client) -> None:
    assert "think" not in internal(http, model="plain", thinking={"type": "enabled", "budget_tokens": 1024})


@pytest.mark.parametrize(
    ("choice", "must_call"),
    [({"type": "auto"}, False), ({"type": "any"}, True), ({"type": "tool", "name": "weather"}, "weather")],
)
def test_tool_choice_demands_a_call(http: httpx.Client, choice: dict[str, Any], must_call: bool | str) -> None:
    tools = [TOOL, {**TOOL, "name": "other", "type": "custom"}, {"type": "bash_20250124", "name": "bash"}]
    found = internal(http, tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True})
    assert (found.get("must_call", False), found["one_call"], len(found["tools"])) == (must_call, True, 2)
    assert "tools" not in internal(http, tools=tools, tool_choice={"type": "none"})


def test_a_strict_tool_is_obeyed_but_not_demanded(http: httpx.Client) -> None:
    found = internal(http, tools=[{**TOOL, "strict": True}])
    assert found["strict_tools"] and "must_call" not in found
    assert found["tools"] == internal(http, tools=[TOOL])["tools"]


def test_images_of_turns_and_of_tool_results(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}, IMAGE]}]  # fmt: skip
    tool, user, _ = internal(http, messages, model="eyes")["messages"]
    assert tool["images"] == user["images"] == [base64.b64encode(PNG).decode()]


def test_a_whole_answer_has_anthropics_shape(http: httpx.Client) -> None:
    reply = ask(http, "think Hm / Yes").json()
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "thinker",
        "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}, {"type": "text", "text": "Yes"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                  "output_tokens": 3},
    }  # fmt: skip
    assert ask(http, "many 0").json()["content"] == []


def test_a_stream_keeps_anthropics_order(http: httpx.Client) -> None:
    found = events(ask(http, "think Hm / Yes", stream=True))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert named(found) == ["message_start", *block, *block, "message_delta", "message_stop"]
    start = found[0].data["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert start["usage"]["input_tokens"] > 0
    assert [event.data["index"] for event in found[1:-2]] == [0, 0, 0, 1, 1, 1]
    assert found[1].data["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert found[2].data["delta"] == {"type": "thinking_delta", "thinking": "Hm"}
    assert found[4].data["content_block"] == {"type": "text", "text": ""}
    assert found[5].data["delta"] == {"type": "text_delta", "text": "Yes"}
    assert found[7].data["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (found[7].data["usage"]["input_tokens"], found[7].data["usage"]["output_tokens"]) == (7, 3)


def test_each_tool_use_is_a_block_of_its_own(http: httpx.Client) -> None:
    found = events(ask(http, "call", stream=True))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert named(found) == ["message_start", *block, *block, "message_delta", "message_stop"]
    start, delta = found[1].data["content_block"], found[2].data["delta"]
    assert (start["type"], start["name"], start["input"]) == ("tool_use", "f", {})
    assert delta == {"type": "input_json_delta", "partial_json": '{"b":1,"a":"<x>"}'}
    assert found[-2].data["delta"]["stop_reason"] == "tool_use"
    whole = ask(http, "call").json()
    assert [block["input"] for block in whole["content"]] == [{"b": 1, "a": "<x>"}, {}]


def test_nothing_said_beside_a_tool_use_is_lost(http: httpx.Client) -> None:
    found = events(ask(http, "mixed", stream=True))
    started = [event.data["content_block"]["type"] for event in found if event.name == "content_block_start"]
    assert started == ["thinking", "text", "tool_use", "text"]
    assert [event.data["index"] for event in found if event.name == "content_block_stop"] == [0, 1, 2, 3]
    whole = ask(http, "mixed").json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][1]["text"] == "beforeafter"


@pytest.mark.parametrize(
    ("prompt", "reason", "sequence"),
    [("stop \n\nHuman", "stop_sequence", "\n\nHuman"), ("stop END", "end_turn", None), ("cut x", "max_tokens", None),
     ("say x", "end_turn", None)],
)  # fmt: skip
def test_the_stop_sequence_that_ended_an_answer_is_named(
    http: httpx.Client, prompt: str, reason: str, sequence: str | None
) -> None:
    whole = ask(http, prompt, stop_sequences=["x", "\n\nHuman", ""]).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    last = events(ask(http, prompt, stop_sequences=["x", "\n\nHuman", ""], stream=True))[-2]
    assert last.data["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_empty_answer_is_complete_too(http: httpx.Client) -> None:
    assert named(events(ask(http, "many 0", stream=True))) == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(("command", "message"), [("break internal it broke", "it broke"), ("crash", CRASHED)])
def test_a_failure_in_the_middle_is_an_error_event(http: httpx.Client, command: str, message: str) -> None:
    last = events(ask(http, command, stream=True))[-1]
    assert last.name == "error"
    assert last.data["error"] == {"type": "api_error", "message": message}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "status", "kind"),
    [("fail internal it broke", 500, "api_error"), ("fail busy wait", 503, "overloaded_error"),
     ("fail too_long no", 400, "invalid_request_error")],
)  # fmt: skip
def test_a_failure_before_the_first_token_is_the_status(
    http: httpx.Client, prompt: str, status: int, kind: str, stream: bool
) -> None:
    response = ask(http, prompt, stream=stream)
    assert (response.status_code, response.json()["type"], response.json()["error"]["type"]) == (status, "error", kind)
    assert response.json()["request_id"].startswith("req_")


@pytest.mark.parametrize(
    ("fields", "status", "kind", "message"),
    [
        ({"model": ""}, 400, "invalid_request_error", "model is required"),
        ({"model": "nope"}, 404, "not_found_error", "model 'nope' not found"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens is required and must be positive"),
        ({"messages": []}, 400, "invalid_request_error", "messages is required"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "invalid_request_error",
         "web search is not available: it runs on Ollama's servers"),
        ({"model": "m:cloud"}, 403, "permission_error", "ollama cloud is disabled: remote model is unavailable"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, 400,
         "invalid_request_error", "tool_use block missing required 'id' field"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "f"}]}]}, 400,
         "invalid_request_error", "tool_use block missing required 'name' field"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
         400, "invalid_request_error", "invalid image source type: url. Only base64 images are supported."),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error",
         "invalid image source"),
        ({"model": "plain", "tools": [TOOL]}, 400, "invalid_request_error",
         "registry.ollama.ai/library/plain:latest does not support tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "banana"}}, 400, "invalid_request_error",
         'tool_choice.type must be "auto", "any", "tool" or "none"'),
        ({"model": 5}, 400, "invalid_request_error",
         "json: cannot unmarshal number into Go struct field MessagesRequest.model of type string"),
    ],
)  # fmt: skip
def test_a_bad_request_gets_its_sentence_in_anthropics_envelope(
    http: httpx.Client, fields: dict[str, Any], status: int, kind: str, message: str
) -> None:
    response = ask(http, "x", **fields)
    assert (response.status_code, response.json()["error"]) == (status, {"type": kind, "message": message})


def test_tokens_are_counted_without_generating(http: httpx.Client) -> None:
    body = {"model": "thinker", "messages": [{"role": "user", "content": "hang"}], "tools": [TOOL]}
    reply = http.post("/v1/messages/count_tokens", json=body)
    assert (reply.status_code, reply.json()) == (200, {"input_tokens": 7})
    missing = http.post("/v1/messages/count_tokens", json={**body, "model": "nope"})
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


def test_a_client_that_leaves_cancels(scripted: LocalServer, http: httpx.Client) -> None:
    body = {"model": "thinker", "max_tokens": 5, "messages": [{"role": "user", "content": "begin"}], "stream": True}
    with http.stream("POST", "/v1/messages", json=body) as response:
        # Held on to: httpx closes the response when the iterator goes.
        lines = response.iter_lines()
        next(lines)
        assert eventually(lambda: scripted.running() == 1)
    assert eventually(lambda: scripted.running() == 0)
