"""/v1/responses: items become a conversation, a stream tells every step, and responses are kept within bounds."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from omlx.messages.request import Message
from omlx.runner.connection import CRASHED
from omlx.server.responses_store import ResponsesStore, StoredResponse
from tests.server.sse import Event, events

FUNCTION = {"type": "function", "name": "weather", "description": "d", "strict": True,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}  # fmt: skip


def respond(http: httpx.Client, given: Any, **fields: Any) -> httpx.Response:
    return http.post("/v1/responses", json={"model": "thinker", "input": given, **fields})


def internal(http: httpx.Client, items: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The internal request that a response becomes."""
    reply = respond(http, [*(items or []), {"role": "user", "content": "request"}], **fields).json()
    found: dict[str, Any] = json.loads(reply["output"][0]["content"][0]["text"])
    return found


def named(found: list[Event]) -> list[str]:
    assert [event.data["type"] for event in found] == [event.name for event in found]
    assert [event.data["sequence_number"] for event in found] == list(range(len(found)))
    return [event.name.removeprefix("response.") for event in found]


def test_what_codex_sends_becomes_a_conversation(http: httpx.Client) -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}], "id": "m1"},
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [{"type": "summary_text", "text": "T"}],
            "encrypted_content": None,
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "O"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "web_search_call", "id": "w"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "R"}]},
    ]
    tools = [
        FUNCTION,
        {"type": "web_search"},
        {"type": "namespace", "name": "ns", "tools": [{**FUNCTION, "name": "f"}]},
    ]
    found = internal(http, items, instructions="I", tools=tools, include=["reasoning.encrypted_content"], store=False,
                     client_metadata={"a": "b"}, prompt_cache_key="k", parallel_tool_calls=False, tool_choice="auto",
                     reasoning={"effort": "medium", "summary": "auto"}, max_output_tokens=9,
                     text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}})  # fmt: skip
    assert found["messages"] == [
        {"role": "system", "content": "I"},
        {"role": "system", "content": "D"},
        {"role": "assistant", "content": "O", "thinking": "T",
         "tool_calls": [{"name": "weather", "arguments": {"city": "Rome"}, "id": "c"}]},
        {"role": "tool", "content": "R", "tool_call_id": "c"},
        {"role": "user", "content": "request"},
    ]  # fmt: skip
    assert [tool["function"]["name"] for tool in found["tools"]] == ["weather", "ns.f"]
    assert found["one_call"]
    assert found["think"] == "medium"
    assert found["format"] == {"type": "object"}
    assert found["limits"] == {"num_predict": 9}
    assert found["sampling"] == {"temperature": 1.0}


def test_a_response_echoes_what_was_asked(http: httpx.Client) -> None:
    reply = respond(http, "think Hm / Yes", instructions="I", metadata={"a": "b"}, reasoning={"effort": "low"},
                    max_output_tokens=9, tools=[FUNCTION], top_p=0.5, store=False).json()  # fmt: skip
    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"], reply["error"], reply["store"]) == ("response", "completed", None, False)
    assert (reply["instructions"], reply["metadata"], reply["tools"]) == ("I", {"a": "b"}, [FUNCTION])
    assert (reply["reasoning"], reply["max_output_tokens"], reply["top_p"]) == ({"effort": "low"}, 9, 0.5)
    thought, message = reply["output"]
    assert (thought["type"], thought["summary"], thought["encrypted_content"]) == (
        "reasoning", [{"type": "summary_text", "text": "Hm"}], "Hm")  # fmt: skip
    assert (message["type"], message["status"], message["role"]) == ("message", "completed", "assistant")
    assert message["content"] == [{"type": "output_text", "text": "Yes", "annotations": [], "logprobs": []}]
    assert reply["usage"] == {
        "input_tokens": 7,
        "output_tokens": 3,
        "total_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    assert http.get(f"/v1/responses/{reply['id']}").status_code == 404


def test_a_stream_of_thoughts_and_text_tells_every_step(http: httpx.Client) -> None:
    found = events(respond(http, "think Hm / Yes", stream=True))
    assert named(found) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.data.get("output_index") for event in found[2:-1]] == [0] * 6 + [1] * 6
    assert (found[0].data["response"]["status"], found[0].data["response"]["usage"]) == ("in_progress", None)
    final = found[-1].data["response"]
    assert final["output"] == [found[7].data["item"], found[13].data["item"]]
    assert final["usage"]["total_tokens"] == 10
    assert http.get(f"/v1/responses/{final['id']}").json() == final


def test_a_stream_of_calls_gives_each_an_item(http: httpx.Client) -> None:
    found = events(respond(http, "call", stream=True))
    steps = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert named(found) == ["created", "in_progress", *steps, *steps, "completed"]
    first = found[5].data["item"]
    assert (first["name"], first["arguments"], first["status"]) == ("f", '{"b":1,"a":"<x>"}', "completed")
    assert found[2].data["item"] == {**first, "status": "in_progress", "arguments": ""}


def test_nothing_said_beside_a_call_is_lost(http: httpx.Client) -> None:
    found = events(respond(http, "mixed", stream=True))
    done = [event.data["item"] for event in found if event.name == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "message"]
    assert found[-1].data["response"]["output"] == done
    assert [event.data["sequence_number"] for event in found] == list(range(len(found)))
    whole = respond(http, "mixed").json()["output"]
    assert [item["type"] for item in whole] == ["reasoning", "message", "function_call"]
    assert whole[1]["content"][0]["text"] == "beforeafter"


def test_an_answer_that_reached_its_limit_is_incomplete(http: httpx.Client) -> None:
    last = events(respond(http, "cut so far", stream=True))[-1]
    whole = respond(http, "cut so far").json()
    assert last.name == "response.incomplete"
    for response in (last.data["response"], whole):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (response["output"][0]["status"], response["completed_at"]) == ("incomplete", None)
        assert http.get(f"/v1/responses/{response['id']}").json() == response


@pytest.mark.parametrize(
    ("choice", "must_call"), [("required", True), ({"type": "function", "name": "weather"}, "weather")]
)
def test_a_call_can_be_demanded(http: httpx.Client, choice: Any, must_call: bool | str) -> None:
    assert internal(http, [], tools=[FUNCTION], tool_choice=choice)["must_call"] == must_call


def test_a_strict_tool_is_obeyed_but_not_demanded(http: httpx.Client) -> None:
    found = internal(http, [], tools=[{**FUNCTION, "strict": True}])
    assert found["strict_tools"] and "must_call" not in found
    assert found["tools"] == internal(http, [], tools=[{**FUNCTION, "strict": False}])["tools"]


def test_a_function_of_a_namespace_is_called_by_both_names(http: httpx.Client) -> None:
    tools = [{"type": "namespace", "name": "ns", "tools": [FUNCTION]}]
    (item,) = respond(http, 'call ns.weather {"city": "Rome"}', tools=tools).json()["output"]
    assert (item["namespace"], item["name"], item["arguments"]) == ("ns", "weather", '{"city":"Rome"}')
    found = internal(http, [item, {"type": "function_call_output", "call_id": item["call_id"], "output": "R"}])
    assert found["messages"][0]["tool_calls"][0]["name"] == "ns.weather"


def test_an_empty_answer_is_complete_too(http: httpx.Client) -> None:
    assert named(events(respond(http, "many 0", stream=True))) == ["created", "in_progress", "completed"]


@pytest.mark.parametrize(("command", "message"), [("break internal it broke", "it broke"), ("crash", CRASHED)])
def test_a_failure_in_the_middle_is_response_failed(http: httpx.Client, command: str, message: str) -> None:
    found = events(respond(http, command, stream=True))
    assert named(found)[-1] == "failed"
    last = found[-1].data["response"]
    assert (last["status"], last["error"]) == ("failed", {"code": "server_error", "message": message})
    assert last["output"][0]["content"][0]["text"] == "begun"
    assert last["output"][0]["status"] == "incomplete"
    assert http.get(f"/v1/responses/{last['id']}").status_code == 404


def test_a_failure_before_the_first_token_is_the_status(http: httpx.Client) -> None:
    assert respond(http, "fail busy wait", stream=True).status_code == 503


def test_a_response_builds_on_an_earlier_one_but_not_on_its_instructions(http: httpx.Client) -> None:
    first = respond(http, "call", instructions="I", tools=[FUNCTION]).json()
    outputs = [{"type": "function_call_output", "call_id": item["call_id"], "output": "R"} for item in first["output"]]
    found = internal(http, outputs, instructions="J", previous_response_id=first["id"])
    system, user, assistant, *rest = found["messages"]
    assert (system["content"], user["content"]) == ("J", "call")
    assert [call["id"] for call in assistant["tool_calls"]] == [item["call_id"] for item in first["output"]]
    assert [message["role"] for message in rest] == ["tool", "tool", "user"]
    assert http.delete(f"/v1/responses/{first['id']}").json() == {
        "id": first["id"], "object": "response", "deleted": True}  # fmt: skip
    assert http.delete(f"/v1/responses/{first['id']}").status_code == 404
    gone = respond(http, "x", previous_response_id=first["id"])
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"background": True}, "background is not supported: ask without it, and stream the answer"),
        ({"background": True, "stream": True}, "background is not supported: ask without it, and stream the answer"),
        *(({"tools": [FUNCTION], "tool_choice": choice},
           'tool_choice must be "none", "auto", "required" or name a function')
          for choice in ("banana", {"type": "banana"}, {"type": "web_search"}, {"type": "function"})),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(http: httpx.Client, fields: dict[str, Any], message: str) -> None:
    response = respond(http, "say a", **fields)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"type": "x"}], 'input[0]: unknown input item type: "x"'),
        ([{"content": "a"}], "input[0]: input item missing required 'type' field"),
        ([{"role": "user", "content": [{"type": "y"}]}], "input[0]: content[0]: unknown content type: y"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0]: file inputs are not currently supported"),
        (
            [{"type": "function_call", "name": "f", "arguments": "{"}],
            "input[0]: failed to parse function call arguments",
        ),
        ([], "[] is too short - 'input'"),
        (5, "input must be a string or an array of items"),
    ],
)
def test_bad_input_is_named_by_its_place(http: httpx.Client, given: Any, message: str) -> None:
    response = respond(http, given)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


def test_the_store_forgets_what_was_used_longest_ago() -> None:
    store = ResponsesStore(max_entries=2, max_bytes=10_000)
    turn = (Message(role="user", content="x" * 100),)
    store.put("a", StoredResponse(b"A", turn))
    store.put("b", StoredResponse(b"B", turn))
    assert store.get("a") is not None
    store.put("c", StoredResponse(b"C", turn))
    assert [store.get(name) is not None for name in "abc"] == [True, False, True]


def test_the_store_stays_within_its_bytes() -> None:
    store = ResponsesStore(max_entries=100, max_bytes=10_000)
    for number in range(50):
        store.put(str(number), StoredResponse(b"x" * 900, (Message(role="user", content="y" * 900),)))
        assert store.size <= 10_000
    assert 0 < len(store) < 10
    kept = len(store)
    store.put("giant", StoredResponse(b"x" * 20_000, ()))
    assert store.get("giant") is None
    assert len(store) == kept
    for name in list(map(str, range(50))):
        store.remove(name)
    assert (store.size, len(store)) == (0, 0)
