"""The whole stack, nothing scripted: HTTP, pool, runner, engine and a tiny model that knows its lessons by heart."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest
from omlx_registry import Registry
from prometheus_client.parser import text_string_to_metric_families

from omlx.runner.connection import CRASHED
from omlx.server.telemetry.reading import MetricsReading
from omlx.settings import Settings
from tests.server.local import LocalServer, eventually
from tests.support.lessons import LESSONS, STORY, Lesson, lesson
from tests.support.tiny import DATA

GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("taught")
    registry = Registry(root / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def native(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A lesson's messages in Ollama's shape."""
    return [
        {key: value for key, value in message.items() if key != "tool_calls"}
        | {"tool_calls": [{"function": call["function"]} for call in message.get("tool_calls", [])]}
        for message in messages
    ]


def body(of: Lesson, **fields: Any) -> dict[str, Any]:
    return {"model": "taught", "messages": native(of.messages), "tools": of.tools, "options": GREEDY, **fields}


@pytest.mark.parametrize("of", LESSONS, ids=lambda of: of.name)
def test_every_lesson_is_answered_word_for_word(http: httpx.Client, of: Lesson) -> None:
    whole = http.post("/api/chat", json=body(of, stream=False)).json()["message"]
    assert whole["content"] == of.content
    assert whole.get("thinking", "").strip() == of.thinking
    calls = [call["function"] for call in whole.get("tool_calls", [])]
    assert [{"name": call["name"], "arguments": call["arguments"]} for call in calls] == of.tool_calls
    assert [call["index"] for call in calls] == list(range(len(calls)))
    streamed = [json.loads(part) for part in http.post("/api/chat", json=body(of)).text.splitlines()]
    assert "".join(part["message"]["content"] for part in streamed) == whole["content"]
    assert "".join(part["message"].get("thinking", "") for part in streamed) == whole.get("thinking", "")
    assert streamed[-1]["done_reason"] == "stop"
    assert all(streamed[-1][name] > 0 for name in ("prompt_eval_duration", "eval_duration", "eval_count"))


def test_thinking_can_be_switched_off(http: httpx.Client) -> None:
    reply = http.post("/api/chat", json=body(lesson("sum"), think=False, stream=False)).json()
    assert reply["message"] == {"role": "assistant", "content": "2 + 2 = 4"}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_no_tokens_wanted_ends_as_in_ollama(http: httpx.Client, path: str) -> None:
    asked = {"model": "taught", "options": GREEDY | {"num_predict": 0}, "messages": [{"role": "user", "content": "Hi"}],
             "prompt": "Hi"}  # fmt: skip
    lines = [json.loads(part) for part in http.post(path, json=asked).text.splitlines()]
    for last in (lines[-1], http.post(path, json=asked | {"stream": False}).json()):
        assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 0)
        assert (last["message"]["content"] if path == "/api/chat" else last["response"]) == ""
        assert last["prompt_eval_count"] > 0
    assert len(lines) == 1


def test_limits_and_stops(http: httpx.Client) -> None:
    def story(**options: Any) -> dict[str, Any]:
        reply: dict[str, Any] = http.post("/api/chat", json=body(of, stream=False, options=GREEDY | options)).json()
        return reply

    of = lesson("story")
    reply = story(num_predict=5)
    assert (reply["done_reason"], reply["eval_count"]) == ("length", 5)
    reply = story(stop=["One winter"])
    assert reply["done_reason"] == "stop"
    assert reply["message"]["content"] == STORY.partition("One winter")[0]


def test_context_carries_a_conversation_on(http: httpx.Client) -> None:
    asked = {"model": "taught", "prompt": "My name is Ada.", "stream": False, "options": GREEDY}
    first = http.post("/api/generate", json=asked).json()
    assert first["response"] == "Nice to meet you, Ada."
    assert len(first["context"]) >= first["prompt_eval_count"] + first["eval_count"] - 1
    second = http.post("/api/generate", json=asked | {"context": first["context"]}).json()
    assert second["prompt_eval_count"] >= len(first["context"]) + first["prompt_eval_count"] - 1


def test_raw_and_rendered_prompts(http: httpx.Client) -> None:
    shown = http.post("/api/chat", json=body(lesson("hello"), _debug_render_only=True)).json()
    prompt = shown["_debug_info"]["rendered_template"]
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    raw = {"model": "taught", "prompt": prompt, "raw": True, "stream": False, "options": GREEDY}
    reply = http.post("/api/generate", json=raw).json()
    assert reply["response"] == lesson("hello").content
    assert "context" not in reply


def test_json_and_schemas_constrain_the_answer(http: httpx.Client) -> None:
    def answer(of: Lesson, form: Any, think: bool | None = False) -> str:
        options = GREEDY | {"num_predict": 60}
        asked = body(of, format=form, think=think, stream=False, options=options)
        return str(http.post("/api/chat", json=asked).json()["message"]["content"])

    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"],
              "additionalProperties": False}  # fmt: skip
    assert answer(lesson("hello"), "json").lstrip().startswith("{")
    assert set(json.loads(answer(lesson("hello"), schema))) == {"age"}
    assert json.loads(answer(lesson("json"), "json")) == {"name": "Ada", "age": 36}
    # Thinking is on, and this model does not think about these: the constraint holds from the first token.
    assert json.loads(answer(lesson("json"), "json", None)) == {"name": "Ada", "age": 36}
    assert answer(lesson("hello"), "json", None).lstrip().startswith("{")


def test_logprobs_name_the_chosen_tokens(http: httpx.Client) -> None:
    reply = http.post("/api/chat", json=body(lesson("hello"), logprobs=True, top_logprobs=2, stream=False)).json()
    assert "".join(entry["token"] for entry in reply["logprobs"]).startswith("Hello!")
    for entry in reply["logprobs"]:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]


def test_a_prompt_that_cannot_fit_is_refused_with_the_status(http: httpx.Client) -> None:
    asked = {"model": "taught", "prompt": "word " * 9000, "truncate": False, "options": {"num_ctx": 256}}
    reply = http.post("/api/generate", json=asked)
    assert reply.status_code == 400
    assert "context length" in reply.json()["error"]


def test_concurrent_chats_share_a_batch_and_do_not_mix(server: LocalServer) -> None:
    wanted = [lesson(name) for name in ("hello", "capital", "count", "story", "json", "pirate", "name", "emoji")]
    answers: dict[str, str | None] = {}

    def ask(of: Lesson) -> None:
        client = ollama.Client(host=server.url, trust_env=False)
        answers[of.name] = client.chat("taught", native(of.messages), options=GREEDY).message.content

    threads = [threading.Thread(target=ask, args=(of,)) for of in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert answers == {of.name: of.content for of in wanted}

    async def largest() -> int:
        return max(model.heartbeat.max_batch for model in server.pool.loaded())

    assert eventually(lambda: server.ask(largest) > 1)


def test_leaving_in_the_middle_frees_the_engine(server: LocalServer, http: httpx.Client) -> None:
    endless = body(lesson("story"), options={"temperature": 2.0, "num_predict": 100_000, "seed": 1})
    for _ in range(3):
        with http.stream("POST", "/api/chat", json=endless) as response:
            next(response.iter_lines())
        assert eventually(lambda: server.running() == 0)
    assert http.post("/api/chat", json=body(lesson("hello"), stream=False)).status_code == 200


def test_a_killed_runner_ends_the_stream_and_the_next_request_works(server: LocalServer, http: httpx.Client) -> None:
    endless = body(lesson("story"), options={"temperature": 2.0, "num_predict": 100_000, "seed": 1})

    async def pid() -> int:
        return server.pool.loaded()[0].pid

    with http.stream("POST", "/api/chat", json=endless) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(server.ask(pid), signal.SIGKILL)
        *_, last = lines
    assert json.loads(last) == {"error": CRASHED}
    reply = http.post("/api/chat", json=body(lesson("hello"), stream=False)).json()
    assert reply["message"]["content"] == lesson("hello").content


def test_a_model_with_a_draft_says_what_it_says_without(http: httpx.Client, server: LocalServer) -> None:
    made = http.post("/api/create", json={"model": "drafted", "from": "taught", "draft": "taught", "stream": False})
    assert made.json() == {"status": "success"}, made.text
    for item in ("story", "capital"):
        answer = http.post("/api/chat", json=body(lesson(item), model="drafted", stream=False)).json()
        assert answer["message"]["content"] == lesson(item).content
    strange = http.post("/api/create", json={"model": "drafted", "from": "taught", "draft": "absent", "stream": False})
    assert strange.status_code >= 400


def test_the_metrics_say_what_the_answers_say(http: httpx.Client) -> None:
    def total(name: str, **labels: str) -> float:
        return MetricsReading(text_string_to_metric_families(http.get("/metrics").text)).total(name, **labels)

    # Twice, so that the prompt is known; then wait until what the first one did has been counted.
    start = total("omlx_generated_tokens_total")
    first = http.post("/api/chat", json=body(lesson("sum"), think=False, stream=False)).json()
    assert eventually(lambda: total("omlx_generated_tokens_total") >= start + first["eval_count"])
    kinds = ("prompt", "cached", "read", "generated")
    before = {kind: total(f"omlx_{kind}_tokens_total") for kind in kinds}
    reply = http.post("/api/chat", json=body(lesson("sum"), think=False, stream=False)).json()
    assert reply["cached_tokens"] > 0

    def grown(kind: str) -> float:
        return total(f"omlx_{kind}_tokens_total") - before[kind]

    assert eventually(lambda: grown("generated") == reply["eval_count"])
    assert grown("prompt") == reply["prompt_eval_count"]
    assert grown("cached") == reply["cached_tokens"]
    assert grown("read") == reply["prompt_eval_count"] - reply["cached_tokens"]
    row = http.get("/api/omlx/requests").json()["requests"][0]
    assert (row["cached_tokens"], row["completion_tokens"]) == (reply["cached_tokens"], reply["eval_count"])
    assert row["cache_reason"]
