"""/api/chat and /api/generate over HTTP: what goes to the runner, what comes back, field by field."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, stocked

STAMP = re.compile(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d*[1-9])?Z\Z")
METRICS = [
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
]


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def chat(http: httpx.Client, text: str, model: str = "plain", **fields: Any) -> list[dict[str, Any]]:
    """The objects of the answer."""
    response = http.post("/api/chat", json={"model": model, "messages": say(text), **fields})
    assert response.status_code == 200, response.text
    return [json.loads(part) for part in response.text.splitlines()]


def generate(http: httpx.Client, prompt: str, model: str = "plain", **fields: Any) -> list[dict[str, Any]]:
    response = http.post("/api/generate", json={"model": model, "prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    return [json.loads(part) for part in response.text.splitlines()]


def request_seen(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The internal request the runner got for an HTTP request."""
    reply = http.post(path, json={"stream": False, **body})
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    seen: dict[str, Any] = json.loads(answer["message"]["content"] if path == "/api/chat" else answer["response"])
    return seen


def test_a_chat_stream_is_one_object_a_line_and_ends_with_the_numbers(http: httpx.Client) -> None:
    with http.stream("POST", "/api/chat", json={"model": "plain", "messages": say("say Hi there")}) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.headers["transfer-encoding"] == "chunked"
        text = response.read().decode()
    assert text.endswith("\n")
    assert "\n\n" not in text
    first, second, last = [json.loads(part) for part in text.splitlines()]
    assert list(first) == ["model", "created_at", "message", "done"]
    assert first["message"] == {"role": "assistant", "content": "Hi"}
    assert second["message"] == {"role": "assistant", "content": "there"}
    assert not first["done"]
    assert list(last) == ["model", "created_at", "message", "done", "done_reason", *METRICS]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"], last["model"]) == (True, "stop", "plain")
    assert all(isinstance(last[name], int) and last[name] > 0 for name in METRICS)
    assert (last["prompt_eval_count"], last["eval_count"]) == (7, 3)
    assert all(STAMP.match(part["created_at"]) for part in (first, second, last))


def test_without_streaming_the_answer_is_one_object(http: httpx.Client) -> None:
    response = http.post("/api/chat", json={"model": "PLAIN", "messages": say("say Hi there"), "stream": False})
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert not response.text.endswith("\n")
    answer = response.json()
    assert answer["model"] == "PLAIN"
    assert answer["message"] == {"role": "assistant", "content": "Hithere"}
    assert answer["done_reason"] == "stop"


def test_a_generate_stream_ends_with_context_and_numbers(http: httpx.Client) -> None:
    first, last = generate(http, "say Hi")
    assert list(first) == ["model", "created_at", "response", "done"]
    assert first["response"] == "Hi"
    assert list(last) == ["model", "created_at", "response", "done", "done_reason", "context", *METRICS]
    assert last["context"] == [1, 2, 3]
    assert "context" not in generate(http, "say Hi", raw=True)[-1]


def test_thinking_is_apart_from_the_content(http: httpx.Client) -> None:
    assert [part["message"] for part in chat(http, "think Hm / Yes", "thinker")[:2]] == [
        {"role": "assistant", "content": "", "thinking": "Hm"},
        {"role": "assistant", "content": "Yes"},
    ]
    (whole,) = generate(http, "think Hm / Yes", "thinker", stream=False)
    assert (whole["thinking"], whole["response"]) == ("Hm", "Yes")


def test_tool_calls_are_numbered_and_have_ids(http: httpx.Client) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    parts = chat(http, "call", "thinker", tools=tools)
    (first,), (second,) = (part["message"]["tool_calls"] for part in parts[:2])
    assert re.fullmatch(r"call_[a-z0-9]{8}", first["id"])
    assert first["function"] == {"index": 0, "name": "f", "arguments": {"b": 1, "a": "<x>"}}
    assert list(first["function"]["arguments"]) == ["b", "a"]
    assert second["function"] == {"index": 1, "name": "g", "arguments": {}}
    assert parts[-1]["done_reason"] == "stop"
    (whole,) = chat(http, "call", "thinker", tools=tools, stream=False)
    assert [call["function"]["index"] for call in whole["message"]["tool_calls"]] == [0, 1]


def test_logprobs_come_with_their_chunk_and_joined(http: httpx.Client) -> None:
    first, second, _ = chat(http, "logprobs", logprobs=True, top_logprobs=1)
    entry = {"token": "A", "logprob": -0.5, "bytes": [65],
             "top_logprobs": [{"token": "B", "logprob": -1.5, "bytes": [66]}]}  # fmt: skip
    assert first["logprobs"] == [entry]
    assert second["logprobs"] == [{"token": "", "logprob": -0.25}]
    (whole,) = generate(http, "logprobs", logprobs=True, stream=False)
    assert len(whole["logprobs"]) == 2


def test_angle_brackets_are_escaped_as_go_does(http: httpx.Client) -> None:
    response = http.post("/api/generate", json={"model": "plain", "prompt": "say <b>&\u2028", "stream": False})
    assert '"response":"\\u003cb\\u003e\\u0026\\u2028"' in response.text


def test_an_empty_request_loads_and_unloads(http: httpx.Client) -> None:
    def loaded() -> list[str]:
        return [model["model"] for model in http.get("/api/ps").json()["models"]]

    response = http.post("/api/generate", json={"model": "eyes", "images": ["aGk="], "keep_alive": "1h"})
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    reply = response.json()
    assert STAMP.match(reply.pop("created_at"))
    assert reply == {"model": "eyes", "response": "", "done": True, "done_reason": "load"}
    assert "eyes:latest" in loaded()
    reply = http.post("/api/chat", json={"model": "eyes", "keep_alive": 0}).json()
    assert STAMP.match(reply.pop("created_at"))
    message = {"role": "assistant", "content": ""}
    assert reply == {"model": "eyes", "message": message, "done": True, "done_reason": "unload"}
    assert "eyes:latest" not in loaded()
    again = http.post("/api/generate", json={"model": "eyes", "prompt": "", "keep_alive": 0}).json()
    assert again["done_reason"] == "unload"


def test_a_keep_alive_beyond_all_time_is_shown_as_forever(http: httpx.Client) -> None:
    assert http.post("/api/generate", json={"model": "eyes", "keep_alive": 10**30, "stream": False}).status_code == 200
    shown = {model["name"]: model["expires_at"] for model in http.get("/api/ps").json()["models"]}
    assert shown["eyes:latest"] > "2300"
    assert http.post("/api/generate", json={"model": "eyes", "keep_alive": 0, "stream": False}).status_code == 200


def test_keep_alive_zero_lets_the_model_go_after_the_answer(http: httpx.Client) -> None:
    assert chat(http, "say Hi", "eyes", keep_alive=0)[-1]["done"]
    assert "eyes:latest" not in [model["model"] for model in http.get("/api/ps").json()["models"]]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_the_rendered_prompt_can_be_looked_at(http: httpx.Client, path: str) -> None:
    body = {"model": "eyes", "prompt": "x", "messages": say("x"), "images": ["aGk="], "_debug_render_only": True}
    response = http.post(path, json=body)
    reply = response.json()
    assert response.headers["content-type"].startswith("application/json")
    assert reply["_debug_info"]["rendered_template"].endswith("messages>")
    assert not reply["done"]
    assert "total_duration" not in reply


def test_chat_messages_reach_the_runner(http: httpx.Client) -> None:
    image = base64.b64encode(b"pixels").decode()
    seen = request_seen(http, "/api/chat", {"model": "eyes", "messages": [
        {"role": "SYSTEM", "content": "s"},
        {"role": "user", "content": None, "images": [image]},
        {"role": "assistant", "thinking": "t",
         "tool_calls": [{"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"z": 1, "a": None}}}]},
        {"role": "tool", "content": "4", "tool_name": "f", "tool_call_id": "call_1"},
        {"role": "user", "content": "request"},
    ]})  # fmt: skip
    assert seen["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "images": [image]},
        {"role": "assistant", "thinking": "t",
         "tool_calls": [{"name": "f", "arguments": {"z": 1, "a": None}, "id": "call_1"}]},
        {"role": "tool", "content": "4", "tool_name": "f", "tool_call_id": "call_1"},
        {"role": "user", "content": "request"},
    ]  # fmt: skip


def test_the_modelfile_comes_before_the_request(http: httpx.Client) -> None:
    preset = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    kind, question = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "request"}
    seen = request_seen(http, "/api/chat", {"model": "plain", "messages": say("request")})
    assert seen["messages"] == [kind, *preset, question]
    assert seen["sampling"] == {"temperature": 0.5}
    assert seen["limits"] == {"stop": ["END"]}
    rude = {"role": "system", "content": "Be rude."}
    seen = request_seen(http, "/api/chat", {"model": "plain", "messages": [rude, question]})
    assert seen["messages"] == [*preset, rude, question]
    seen = request_seen(http, "/api/generate", {"model": "plain", "prompt": "request"})
    assert seen["messages"] == [kind, *preset, question]
    seen = request_seen(
        http, "/api/generate", {"model": "plain", "prompt": "request", "system": "Be rude.", "context": [5]}
    )
    assert seen["messages"] == [rude, question]
    assert seen["context"] == [5]


def test_generate_fields_reach_the_runner(http: httpx.Client) -> None:
    seen = request_seen(http, "/api/generate", {
        "model": "thinker", "prompt": "request", "think": False, "format": {"type": "object"}, "logprobs": True,
        "top_logprobs": 3, "truncate": False, "shift": False, "template": "{{ .Prompt }}!",
        "options": {"num_predict": 5.9, "seed": 1, "temperature": 0, "num_ctx": 256, "unknown": 1, "top_k": None},
    })  # fmt: skip
    assert seen["think"] is False
    assert seen["format"] == {"type": "object"}
    assert (seen["logprobs"], seen["top_logprobs"], seen["return_context"]) == (True, 3, True)
    assert seen["template"] == "{{ .Prompt }}!"
    assert seen["sampling"] == {"temperature": 0.0, "seed": 1}
    assert seen["limits"] == {"num_predict": 5, "num_ctx": 256, "truncate": False, "shift": False}


def test_raw_goes_in_verbatim(http: httpx.Client) -> None:
    seen = request_seen(http, "/api/generate", {"model": "plain", "prompt": "request", "raw": True})
    assert seen["raw_prompt"] == "request"
    assert seen["messages"] == [{"role": "user", "content": "request"}]


def test_not_given_may_be_said_in_several_ways(http: httpx.Client) -> None:
    seen = request_seen(http, "/api/generate", {
        "model": "plain", "prompt": "request", "suffix": "", "system": "", "template": "", "format": "", "think": None,
        "options": None, "keep_alive": None, "images": None, "context": None,
    })  # fmt: skip
    assert set(seen) == {"id", "messages", "sampling", "limits", "return_context", "trace"}
    assert (
        request_seen(http, "/api/chat", {"model": "plain", "messages": say("request"), "format": "json", "tools": []})[
            "format"
        ]
        == "json"
    )


def test_old_thoughts_are_dropped_for_models_that_write_them_as_text(http: httpx.Client) -> None:
    turns = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "<think>\nlong\n</think>\n\nshort"},
        {"role": "user", "content": "request"},
    ]
    seen = request_seen(http, "/api/chat", {"model": "qwen3", "messages": turns})
    assert [message["content"] for message in seen["messages"]] == ["1", "short", "request"]
    seen = request_seen(http, "/api/chat", {"model": "thinker", "messages": turns})
    assert seen["messages"][1]["content"].startswith("<think>")


def test_tools_reach_the_runner_as_given(http: httpx.Client) -> None:
    tool = {"function": {"description": "d", "name": "f", "parameters": {"properties": {"x": {"type": "string"}},
            "type": "object", "required": ["x"]}, "strict": True}, "type": "function"}  # fmt: skip
    seen = request_seen(http, "/api/chat", {"model": "thinker", "messages": say("request"), "tools": [tool]})
    del tool["function"]["strict"]  # type: ignore[attr-defined]
    assert json.dumps(seen["tools"]) == json.dumps([tool])


def test_tools_may_be_ignored_where_the_model_knows_none(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = Settings(models=str(root), spare_runner=False, unsupported_tools="ignore")
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    plain = {"model": "plain", "messages": [{"role": "user", "content": "say Hi"}]}
    with LocalServer(stocked(root), settings, SCRIPTED) as server, server.client() as http:
        looked = {**plain, "stream": False, "_debug_render_only": True}
        shown = [http.post("/api/chat", json=looked | more).json()["_debug_info"] for more in ({}, {"tools": [tool]})]
        assert shown[0] == shown[1]
        replies = [http.post("/api/chat", json=plain | {"stream": False, "tools": [tool]}).json()["message"]["content"]]
        asked = plain | {"tools": [tool], "tool_choice": "required"}
        replies.append(http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"])
        named = [{"name": "get_weather", "input_schema": {"type": "object"}}]
        asked = plain | {"tools": named, "tool_choice": {"type": "any"}, "max_tokens": 50}
        replies.append(http.post("/v1/messages", json=asked).json()["content"][0]["text"])
        assert replies == ["Hi"] * 3


MANY_STOPS = [str(number) for number in range(1001)]
LONG_STOPS = ["a" * 60_000, "b" * 60_000]


@pytest.mark.parametrize("stops", [MANY_STOPS, LONG_STOPS])
@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/api/chat", "options"),
        ("/api/generate", "options"),
        ("/v1/chat/completions", "stop"),
        ("/v1/completions", "stop"),
        ("/v1/messages", "stop_sequences"),
    ],
)
def test_more_stop_strings_than_anybody_needs_are_refused(
    http: httpx.Client, path: str, where: str, stops: list[str]
) -> None:
    def asked(stops: list[str]) -> httpx.Response:
        given = {"stop": stops} if where == "options" else stops
        return http.post(
            path,
            json={
                "model": "plain",
                "messages": say("x"),
                "prompt": "x",
                "max_tokens": 9,
                "stream": False,
                where: given,
            },
        )

    refused = asked(stops)
    assert refused.status_code == 400
    assert "stop may hold at most 1000 strings, of 100000 characters together" in refused.text
    assert asked(stops[:1]).status_code == 200
