"""Replies that are held to something, through the whole stack: budgets, tool choice, grammars, emulated tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.lessons import WEATHER_TOOL, lesson
from tests.support.tiny import DATA

GREEDY = {"temperature": 0, "num_predict": 120}
SUM = lesson("sum").messages
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("held")
    registry = Registry(root / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(
        models=str(root / "models"),
        paged_ssd_cache_dir=str(root / "kv"),
        spare_runner=False,
        unsupported_tools="emulate",
    )
    with LocalServer(registry, settings) as server, server.client() as client:
        form = (
            "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
        )
        made = client.post(
            "/api/create", json={"model": "toolless", "from": "taught", "template": form, "stream": False}
        )
        assert made.json() == {"status": "success"}
        yield client


def chat(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    asked = {"model": "taught", "messages": SUM, "stream": False, "options": GREEDY, **fields}
    reply: dict[str, Any] = http.post("/api/chat", json=asked).json()
    return reply


def test_a_budget_ends_thinking_in_every_protocol(http: httpx.Client) -> None:
    whole = chat(http)["message"]
    assert whole["thinking"].strip() == "Two and two make four."
    for asked in ({"think_budget": 2}, {"options": GREEDY | {"think_budget": 2}}):
        cut = chat(http, **asked)["message"]
        assert whole["thinking"].startswith(cut["thinking"].strip())
        assert len(cut["thinking"].strip()) < 12
        assert "think>" not in cut["content"]
    asked = {"model": "taught", "messages": SUM, "max_tokens": 100, "temperature": 0, "thinking": {
        "type": "enabled", "budget_tokens": 2}}  # fmt: skip
    blocks = http.post("/v1/messages", json=asked).json()["content"]
    assert blocks[0]["type"] == "thinking"
    assert len(blocks[0]["thinking"].strip()) < 12


def test_a_schema_holds_behind_thinking_that_was_cut(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "maximum": 99}}, "required": ["sum"]}
    message = chat(http, think_budget=2, format=schema)["message"]
    assert message["thinking"]
    assert set(json.loads(message["content"])) == {"sum"}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_tool_has_to_be_called(http: httpx.Client, choice: Any) -> None:
    """About the weather it would call the tool anyway; asked for a sum it would not."""
    asked = {"model": "taught", "messages": SUM, "tools": [WEATHER_TOOL], "tool_choice": choice, "temperature": 0,
             "max_tokens": 120, "parallel_tool_calls": False, "reasoning_effort": "none"}  # fmt: skip
    choice = http.post("/v1/chat/completions", json=asked).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert [*map(type, json.loads(call["function"]["arguments"]).values())] == [str]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "")


def test_a_tool_without_parameters_can_be_asked_for(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "ring"}}
    asked = {"model": "taught", "messages": SUM, "tools": [tool], "tool_choice": "required", "temperature": 0,
             "max_tokens": 60, "parallel_tool_calls": False, "reasoning_effort": "none"}  # fmt: skip
    (call,) = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "ring", "arguments": "{}"}


def test_tools_and_a_format_leave_the_choice_to_the_model(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "maximum": 99}}, "required": ["sum"]}
    of = lesson("weather")
    message = chat(http, messages=of.messages, tools=of.tools, format=schema, think=False)["message"]
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    message = chat(http, tools=[WEATHER_TOOL], format=schema, think=False)["message"]
    assert "tool_calls" in message or set(json.loads(message["content"])) == {"sum"}


def test_tools_are_emulated_for_a_model_that_knows_none(http: httpx.Client) -> None:
    shown = chat(http, model="toolless", tools=[WEATHER_TOOL], _debug_render_only=True)
    assert "get_weather" in shown["_debug_info"]["rendered_template"]
    asked = {"model": "toolless", "messages": SUM, "tools": [WEATHER_TOOL], "tool_choice": "required",
             "temperature": 0, "max_tokens": 120}  # fmt: skip
    calls = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"get_weather"}
    free = chat(http, model="toolless", tools=[WEATHER_TOOL])["message"]
    assert "tool_call>" not in free["content"]
    assert all([*call["function"]["arguments"]] == ["city"] for call in free.get("tool_calls", []))


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [("regex", "[a-f]{3}-[0-9]{2}", "[a-f]{3}-[0-9]{2}"), ("lark", 'start: "yes" | "no"', "yes|no"),
     ("gbnf", 'root ::= "a" [0-9] "z"', "a[0-9]z")],
)  # fmt: skip
def test_a_grammar_is_obeyed_in_every_protocol(http: httpx.Client, syntax: str, definition: str, pattern: str) -> None:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    assert re.fullmatch(pattern, chat(http, format=form, think=False)["message"]["content"])
    raw = {"model": "taught", "prompt": "x", "raw": True, "format": form, "stream": False}
    assert re.fullmatch(pattern, http.post("/api/generate", json=raw).json()["response"])
    asked = {"model": "taught", "messages": SUM, "response_format": form, "reasoning_effort": "none"}
    content = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    assert re.fullmatch(pattern, content)


@pytest.mark.parametrize(
    "form",
    [
        {"type": "grammar", "syntax": "yacc", "definition": "x"},
        {"type": "grammar", "syntax": "regex", "definition": "(unclosed"},
        {"type": "no such type"},
        {"type": "integer", "multipleOf": 7919 * 7907},
        {"type": "string", "minLength": 5, "maxLength": 3},
    ],
)
def test_a_format_that_cannot_be_used_is_a_400_with_the_reason(http: httpx.Client, form: dict[str, Any]) -> None:
    reply = http.post("/api/chat", json={"model": "taught", "messages": SUM, "format": form})
    assert reply.status_code == 400
    assert "format" in reply.json()["error"]
    assert "\n" not in reply.json()["error"]
