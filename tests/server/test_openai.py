"""OpenAI's routes: what a client sends reaches the model as meant, and faults are told in OpenAI's words."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import httpx
import pytest

from omlx.runner.connection import CRASHED
from tests.server.local import LocalServer, eventually
from tests.server.sse import events

PNG = b"\x89PNG\r\n\x1a\n"
IMAGE = "data:image/png;base64," + base64.b64encode(PNG).decode()
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "minLength": 1}}}}}  # fmt: skip
OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def chat(http: httpx.Client, prompt: Any, model: str = "thinker", **fields: Any) -> httpx.Response:
    messages = prompt if isinstance(prompt, list) else user(prompt)
    return http.post("/v1/chat/completions", json={"model": model, "messages": messages, **fields})


def internal(http: httpx.Client, messages: list[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """The internal request that a chat completion becomes."""
    reply = chat(http, [*(messages or []), *user("request")], **fields)
    found: dict[str, Any] = json.loads(reply.json()["choices"][0]["message"]["content"])
    return found


def error(kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# ---------------------------------------------------------------- requests
def test_sampling_defaults_are_openais_and_not_the_modelfiles(http: httpx.Client) -> None:
    found = internal(http, model="plain")
    assert found["sampling"] == {"temperature": 1.0, "top_p": 1.0}
    assert found["limits"] == {"stop": ["END"]}
    assert [message["content"] for message in found["messages"]] == ["Be kind.", "A", "B", "request"]


def test_every_sampling_field_reaches_the_engine(http: httpx.Client) -> None:
    found = internal(
        http,
        temperature=0.25,
        top_p=0.5,
        seed=3,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        max_tokens=9,
        stop=["a", 1, "b"],
        logit_bias={"7": 500, "8": -1},
    )
    assert found["sampling"] == {
        "temperature": 0.25,
        "top_p": 0.5,
        "seed": 3,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"7": 100.0, "8": -1.0},
    }
    assert found["limits"] == {"num_predict": 9, "stop": ["a", "b"]}
    assert internal(http, stop="x", max_tokens=1, max_completion_tokens=2)["limits"] == {
        "num_predict": 2,
        "stop": ["x"],
    }


def test_fields_that_mean_nothing_here_and_nulls_are_no_errors(http: httpx.Client) -> None:
    found = internal(http, user="u", metadata={"a": 1}, store=True, service_tier="auto", keep_alive=0, options={"x": 1},
                     functions=[], tools=None, stop=None, n=None, response_format=None, stream=None, temperature=None,
                     reasoning_effort=None, max_tokens=None, logprobs=None)  # fmt: skip
    assert found["sampling"] == {"temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning": {"effort": "xhigh"}}, "max"),
        ({"reasoning": {"effort": "medium"}, "reasoning_effort": "low"}, "medium"),
    ],
)
def test_effort_decides_about_thinking(http: httpx.Client, fields: dict[str, Any], think: Any) -> None:
    assert internal(http, **fields).get("think") == think


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}, {"type": "object"}),
    ],
)
def test_response_formats(http: httpx.Client, form: dict[str, Any], wanted: Any) -> None:
    assert internal(http, response_format=form).get("format") == wanted


def test_parts_of_a_message_stay_one_message(http: httpx.Client) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": IMAGE}},
             {"type": "image_url", "image_url": IMAGE}, {"type": "text", "text": "here"}]  # fmt: skip
    first, _ = internal(http, user(parts), model="eyes")["messages"]
    assert first == {
        "role": "user",
        "content": "look\nhere",
        "images": [base64.b64encode(PNG).decode()] * 2,
    }


def test_tool_turns_keep_ids_names_and_thoughts(http: httpx.Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    empty = {"id": "c2", "type": "function", "function": {"name": "other", "arguments": ""}}
    asked: list[dict[str, Any]] = [
        {"role": "developer", "content": "D"},
        {"role": "assistant", "content": None, "tool_calls": [call, empty], "reasoning": "T"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "18"}]},
        {"role": "tool", "tool_call_id": "c2", "name": "other", "content": "x"},
    ]
    system, assistant, first, second, _ = internal(http, asked, tools=[WEATHER])["messages"]
    assert system == {"role": "system", "content": "D"}
    assert assistant == {
        "role": "assistant",
        "thinking": "T",
        "tool_calls": [
            {"name": "weather", "arguments": {"city": "Paris"}, "id": "c1"},
            {"name": "other", "arguments": {}, "id": "c2"},
        ],
    }
    assert first == {"role": "tool", "content": "18", "tool_call_id": "c1"}
    assert second == {"role": "tool", "content": "x", "tool_name": "other", "tool_call_id": "c2"}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["weather", "other"]),
        ("auto", ["weather", "other"]),
        ("none", []),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}}, ["other"]),
    ],
)
def test_tool_choice_decides_which_tools_are_offered(http: httpx.Client, choice: Any, names: list[str]) -> None:
    found = internal(http, tools=[WEATHER, OTHER], tool_choice=choice)
    assert [tool["function"]["name"] for tool in found.get("tools", [])] == names
    assert "must_call" not in found


def test_a_strict_tool_is_obeyed_but_not_demanded(http: httpx.Client) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    found = internal(http, tools=[strict, OTHER])
    assert found["strict_tools"] and "must_call" not in found
    plain = internal(http, tools=[WEATHER, OTHER])
    assert found["tools"] == plain["tools"] and "strict_tools" not in plain


@pytest.mark.parametrize(
    ("choice", "must_call"),
    [
        ("required", True),
        ({"type": "function", "function": {"name": "other"}}, "other"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER, OTHER]}}, True),
    ],
)
def test_a_call_can_be_demanded_and_all_tools_are_offered_still(
    http: httpx.Client, choice: Any, must_call: bool | str
) -> None:
    found = internal(http, tools=[WEATHER, OTHER], tool_choice=choice, parallel_tool_calls=False)
    assert (found["must_call"], found["one_call"], len(found["tools"])) == (must_call, True, 2)
    assert "must_call" not in internal(http, tool_choice=choice)


def test_thinking_has_a_budget(http: httpx.Client) -> None:
    assert internal(http, reasoning={"max_tokens": 128})["limits"]["think_budget"] == 128


# ---------------------------------------------------------------- answers
def test_a_whole_answer_has_openais_shape(http: httpx.Client) -> None:
    reply = chat(http, "call").json()
    assert list(reply) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"]
    assert (reply["object"], reply["model"], reply["system_fingerprint"]) == ("chat.completion", "thinker", "fp_ollama")
    assert reply["id"].startswith("chatcmpl-")
    (choice,) = reply["choices"]
    assert (choice["index"], choice["finish_reason"], "logprobs" in choice) == (0, "tool_calls", False)
    message = choice["message"]
    assert (message["role"], message["content"]) == ("assistant", "")
    assert [(call["index"], call["type"], call["function"]) for call in message["tool_calls"]] == [
        (0, "function", {"name": "f", "arguments": '{"b":1,"a":"<x>"}'}),
        (1, "function", {"name": "g", "arguments": "{}"}),
    ]
    assert reply["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_has_openais_chunks_in_order(http: httpx.Client) -> None:
    *chunks, done = events(chat(http, "think Hm / Yes", stream=True, stream_options={"include_usage": True}))
    assert done.data == "[DONE]"
    assert all(chunk.name == "" for chunk in chunks)
    *said, usage = [chunk.data for chunk in chunks]
    assert [chunk["choices"][0]["delta"] for chunk in said] == [
        {"role": "assistant", "content": "", "reasoning": "Hm"},
        {"content": "Yes"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in said] == [None, None, "stop"]
    assert all("usage" not in chunk for chunk in said)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 10
    assert {(chunk["id"], chunk["created"], chunk["object"]) for chunk in (*said, usage)} == {
        (usage["id"], usage["created"], "chat.completion.chunk")
    }


def test_nothing_said_beside_a_call_is_lost(http: httpx.Client) -> None:
    message = chat(http, "mixed").json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"], len(message["tool_calls"])) == ("T", "beforeafter", 1)
    *chunks, _ = events(chat(http, "mixed", stream=True))
    deltas = [chunk.data["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "reasoning": "T"}
    assert [delta.get("content") for delta in deltas] == ["", "before", "", "after", None]
    assert chunks[-1].data["choices"][0]["finish_reason"] == "tool_calls"


def test_an_answer_without_any_text_is_still_an_answer(http: httpx.Client) -> None:
    *chunks, _ = events(chat(http, "many 0", stream=True))
    assert [chunk.data["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]


def test_choices_of_one_request_come_under_their_index(http: httpx.Client) -> None:
    reply = chat(http, "say a b", n=3, seed=5).json()
    assert [(choice["index"], choice["message"]["content"]) for choice in reply["choices"]] == [
        (0, "ab"), (1, "ab"), (2, "ab")]  # fmt: skip
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (7, 9)
    requests = [
        json.loads(choice["message"]["content"]) for choice in chat(http, "request", n=3, seed=5).json()["choices"]
    ]
    assert [request["sampling"]["seed"] for request in requests] == [5, 6, 7]
    *chunks, _ = events(chat(http, "say a", n=2, stream=True))
    finishes = [chunk.data["choices"][0]["index"] for chunk in chunks if chunk.data["choices"][0]["finish_reason"]]
    assert sorted(finishes) == [0, 1]


def test_logprobs_are_written_only_where_they_are_asked_for(http: httpx.Client) -> None:
    (choice,) = chat(http, "logprobs", logprobs=True, top_logprobs=1).json()["choices"]
    assert choice["logprobs"]["content"][0] == {
        "token": "A",
        "logprob": -0.5,
        "bytes": [65],
        "top_logprobs": [{"token": "B", "logprob": -1.5, "bytes": [66]}],
    }
    assert len(choice["logprobs"]["content"]) == 2
    assert "logprobs" not in chat(http, "logprobs").json()["choices"][0]


def test_a_prompt_can_be_shown_instead_of_answered(http: httpx.Client) -> None:
    reply = chat(http, "x", stream=True, _debug_render_only=True).json()
    assert reply["_debug_info"] == {"rendered_template": "<1 messages>"}


def test_completions_stream_as_ollama_does(http: httpx.Client) -> None:
    body = {"model": "plain", "prompt": "say a b", "stream": True, "stream_options": {"include_usage": True}}
    *chunks, done = events(http.post("/v1/completions", json=body))
    assert done.data == "[DONE]"
    assert list(chunks[0].data) == ["id", "object", "created", "choices", "model", "system_fingerprint", "usage"]
    assert [[choice["text"] for choice in chunk.data["choices"]] for chunk in chunks] == [["a"], ["b"], [""], []]
    assert chunks[2].data["choices"][0]["finish_reason"] == "stop"
    assert [chunk.data["usage"]["total_tokens"] for chunk in chunks] == [0, 0, 0, 10]


def test_completions_leave_thoughts_out_echo_and_take_several_prompts(http: httpx.Client) -> None:
    def texts(**fields: Any) -> list[str]:
        reply = http.post("/v1/completions", json={"model": "thinker", **fields}).json()
        return [choice["text"] for choice in reply["choices"]]

    assert texts(prompt="think a / b") == ["b"]
    assert texts(prompt="say a", echo=True) == ["say aa"]
    assert texts(prompt=["say a", "say b"], n=2) == ["a", "a", "b", "b"]
    loaded = http.post("/v1/completions", json={"model": "thinker"}).json()
    assert (loaded["choices"][0]["text"], loaded["choices"][0]["finish_reason"]) == ("", "load")


def test_embeddings_as_numbers_and_as_base64(http: httpx.Client) -> None:
    def embed(**fields: Any) -> Any:
        return http.post("/v1/embeddings", json={"model": "embedder", **fields}).json()

    reply = embed(input=["a", "bb"])
    assert [(item["object"], item["index"]) for item in reply["data"]] == [("embedding", 0), ("embedding", 1)]
    assert reply["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    packed = embed(input="bb", encoding_format="BASE64")["data"][0]["embedding"]
    assert list(struct.unpack("<2f", base64.b64decode(packed))) == pytest.approx(
        reply["data"][1]["embedding"], rel=1e-7
    )


def test_models_are_listed_and_shown_under_the_name_asked_for(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert {"thinker:latest", "qwen3:plain"} <= {model["id"] for model in listed["data"]}
    shown = http.get("/v1/models/Thinker").json()
    assert (shown["id"], shown["object"], shown["owned_by"]) == ("Thinker", "model", "library")
    missing = http.get("/v1/models/hf.co/org/absent:q4")
    assert (missing.status_code, missing.json()) == (
        404, error("not_found_error", "model 'hf.co/org/absent:q4' not found"))  # fmt: skip


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        ("chat/completions", {"model": "plain"}, 400, "invalid_request_error", "[] is too short - 'messages'"),
        ("chat/completions", {"messages": user("x")}, 400, "invalid_request_error", "model is required"),
        ("chat/completions", {"model": "nope", "messages": user("x")}, 404, "not_found_error",
         "model 'nope' not found"),
        ("chat/completions", {"model": "plain", "messages": user(None)}, 400, "invalid_request_error",
         "invalid message content type: <nil>"),
        ("chat/completions", {"model": "plain", "messages": user(5)}, 400, "invalid_request_error",
         "invalid message content type: float64"),
        ("chat/completions", {"model": "plain", "messages": user([{"type": "video"}])}, 400, "invalid_request_error",
         "invalid message format"),
        ("chat/completions", {"model": "eyes", "messages": user([{"type": "image_url", "image_url": "http://x"}])}, 400,
         "invalid_request_error", "image URLs are not currently supported, please use base64 encoded data instead"),
        ("chat/completions", {"model": "eyes", "messages": user([{"type": "image_url", "image_url": "data:x"}])}, 400,
         "invalid_request_error", "invalid image input"),
        ("chat/completions", {"model": "eyes", "messages": user([{"type": "image_url", "image_url":
            {"url": "data:image/png,x;base64"}}])}, 400, "invalid_request_error", "invalid image input"),
        ("chat/completions", {"model": "eyes", "messages": user([{"type": "image_url", "image_url":
            {"url": "data:image/png;base64,?"}}])}, 400, "invalid_request_error", "invalid image input"),
        ("chat/completions", {"model": "plain", "messages": user([{"type": "image_url", "image_url": IMAGE}])}, 400,
         "invalid_request_error", "this model does not support image input"),
        ("chat/completions", {"model": "plain", "messages": [
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}]}, 400,
         "invalid_request_error", "invalid tool call arguments"),
        ("chat/completions", {"model": "plain", "messages": user("x"), "reasoning_effort": "low"}, 400,
         "invalid_request_error", '"plain" does not support thinking'),
        ("chat/completions", {"model": "plain", "messages": user("x"), "reasoning_effort": "lots"}, 400,
         "invalid_request_error", 'invalid reasoning value: "lots" (must be "minimal", "low", "medium", "high",'
         ' "xhigh", "ultra", "max", or "none")'),
        ("chat/completions", {"model": "plain", "messages": user("x"), "tools": [WEATHER]}, 400,
         "invalid_request_error", "registry.ollama.ai/library/plain:latest does not support tools"),
        ("chat/completions", {"model": "plain", "messages": user("x"), "top_logprobs": 21}, 400,
         "invalid_request_error", "top_logprobs must be between 0 and 20"),
        ("chat/completions", {"model": "thinker", "messages": user("x"), "tools": [WEATHER],
                              "tool_choice": {"type": "function", "function": {"name": "absent"}}}, 400,
         "invalid_request_error", "tool_choice names absent, which is not among the tools"),
        *(("chat/completions", {"model": "thinker", "messages": user("x"), "tools": [WEATHER], "tool_choice": choice},
           400, "invalid_request_error", 'tool_choice must be "none", "auto", "required" or name a function')
          for choice in ("banana", "Auto", 5, [], True, {}, {"type": "banana"}, {"type": ["function"]},
                         {"type": "function"}, {"type": "function", "function": {}})),
        ("chat/completions", {"model": "plain", "messages": user("x"), "response_format": {"type": "grammar"}}, 400,
         "invalid_request_error",
         'invalid format: a grammar needs "syntax" ("regex", "lark" or "gbnf") and "definition"'),
        ("chat/completions", {"model": "plain", "messages": user("x"), "n": 0}, 400, "invalid_request_error",
         "n must be between 1 and 128"),
        ("chat/completions", {"model": "plain", "messages": user("x"), "logit_bias": {"a": 1}}, 400,
         "invalid_request_error", "logit_bias: the keys must be token ids"),
        ("chat/completions", {"model": 5, "messages": user("x")}, 400, "invalid_request_error",
         "json: cannot unmarshal number into Go struct field ChatCompletionRequest.model of type string"),
        ("chat/completions", {"model": "embedder", "messages": user("x")}, 400, "invalid_request_error",
         '"embedder" does not support chat'),
        ("completions", {"model": "plain", "prompt": [1, "a"]}, 400, "invalid_request_error",
         "invalid type for 'prompt': it must be a string, a list of strings, or token ids"),
        ("completions", {"model": "plain", "prompt": [1, True]}, 400, "invalid_request_error",
         "invalid type for 'prompt': it must be a string, a list of strings, or token ids"),
        ("completions", {"model": "plain", "prompt": [1], "echo": True}, 400, "invalid_request_error",
         "echo and suffix need the prompt as text, not as tokens"),
        ("completions", {"model": "plain", "prompt": ["a", []]}, 400, "invalid_request_error",
         "a list of prompts must not hold an empty one"),
        ("completions", {"model": "plain", "prompt": "a", "suffix": "b"}, 400, "invalid_request_error",
         "registry.ollama.ai/library/plain:latest does not support insert"),
        ("embeddings", {"model": "embedder"}, 400, "invalid_request_error", "invalid input"),
        ("embeddings", {"model": "embedder", "input": []}, 400, "invalid_request_error", "invalid input"),
        ("embeddings", {"model": "embedder", "input": [1, -2]}, 400, "invalid_request_error", "invalid input type"),
        ("embeddings", {"model": "embedder", "input": [1.5]}, 400, "invalid_request_error", "invalid input type"),
        ("embeddings", {"model": "embedder", "input": {}}, 400, "invalid_request_error", "invalid input type"),
        ("embeddings", {"model": "embedder", "input": "a", "encoding_format": "x"}, 400, "invalid_request_error",
         "Invalid value for 'encoding_format' = x. Supported values: ['float', 'base64']."),
        ("embeddings", {"model": "embedder", "input": "fail"}, 400, "invalid_request_error",
         "the input length exceeds the context length"),
        ("embeddings", {"model": "nope", "input": "a"}, 404, "not_found_error",
         'model "nope" not found, try pulling it first'),
    ],
)  # fmt: skip
def test_a_bad_request_gets_its_sentence_in_openais_envelope(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, kind: str, message: str
) -> None:
    response = http.post(f"/v1/{path}", json=body)
    assert (response.status_code, response.json()) == (status, error(kind, message))


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings", "responses"])
def test_an_empty_body_is_eof(http: httpx.Client, path: str) -> None:
    response = http.post(f"/v1/{path}", content=b" ")
    assert (response.status_code, response.json()) == (400, error("invalid_request_error", "EOF"))


@pytest.mark.parametrize(
    "path", ["/v1/nowhere", "/v1/audio/speech", "/v1/images/generations", "/v1/messages/batches", "/v1/é"]
)
def test_routes_that_are_missing_are_named_in_the_clients_shape(http: httpx.Client, path: str) -> None:
    reply = http.post(path, content=b"x")
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "not_found_error"
    assert reply.json()["error"]["message"] == f"404 page not found: {path}"
    assert reply.headers["content-type"].startswith("application/json")


def test_a_wrong_method_is_told_in_openais_shape(http: httpx.Client) -> None:
    reply = http.get("/v1/chat/completions")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert reply.json()["error"]["message"] == "405 method not allowed: /v1/chat/completions"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "status", "expected"),
    [
        ("fail internal it broke", 500, error("api_error", "it broke")),
        ("fail busy wait", 503, error("api_error", "wait")),
        ("fail too_long no", 400, error("invalid_request_error", "no", "context_length_exceeded")),
    ],
)
def test_a_failure_before_the_first_token_is_the_status(
    http: httpx.Client, prompt: str, status: int, expected: dict[str, Any], stream: bool
) -> None:
    response = chat(http, prompt, stream=stream)
    assert (response.status_code, response.json()) == (status, expected)


@pytest.mark.parametrize(("command", "message"), [("break internal it broke", "it broke"), ("crash", CRASHED)])
@pytest.mark.parametrize("route", ["chat", "completions"])
def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(
    http: httpx.Client, command: str, message: str, route: str
) -> None:
    body = {"model": "thinker", "prompt": command, "stream": True}
    response = chat(http, command, stream=True) if route == "chat" else http.post("/v1/completions", json=body)
    first, last = events(response)
    assert "begun" in json.dumps(first.data)
    assert (last.name, last.data) == ("", error("api_error", message))


def test_one_failing_choice_ends_the_request_and_frees_the_others(scripted: LocalServer, http: httpx.Client) -> None:
    body = {"model": "thinker", "prompt": ["hang", "fail internal it broke"]}
    response = http.post("/v1/completions", json=body)
    assert (response.status_code, response.json()) == (500, error("api_error", "it broke"))
    assert eventually(lambda: scripted.running() == 0)


def test_a_client_that_leaves_cancels_all_choices(scripted: LocalServer, http: httpx.Client) -> None:
    body = {"model": "thinker", "messages": user("begin"), "n": 2, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        # Held on to: httpx closes the response when the iterator goes.
        lines = response.iter_lines()
        next(lines)
        assert eventually(lambda: scripted.running() == 2)
    assert eventually(lambda: scripted.running() == 0)
