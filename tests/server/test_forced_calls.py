"""Calls that a client forces, through HTTP and a real model: the tool's whole schema reaches the template and holds, in
every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.tiny import DATA

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"unit": {"type": "string", "enum": ["c", "f"]}},
    "properties": {
        "u": {"$ref": "#/$defs/unit"},
        "n": {"type": "integer", "minimum": 100, "maximum": 105, "default": None},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$", "maxLength": 2},
        "always": {"const": "yes"},
        "list": {"type": "array", "items": {"oneOf": [{"const": 1}, {"const": 2}]}, "minItems": 2, "maxItems": 3},
    },
    "required": ["u", "n", "code", "always", "list"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "Hello"}]
FUNCTION = {"name": "order", "description": "Order it", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("forced")
    registry = Registry(root / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server, server.client() as client:
        yield client


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    reply = http.post(path, json={"model": "taught", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(http: httpx.Client, choice: Any, **function: Any) -> Any:
    tool = {"type": "function", "function": FUNCTION | function}
    asked = {"messages": MESSAGES, "tools": [tool], "tool_choice": choice, "temperature": 0, "max_tokens": 200}
    (call,) = post(http, "/v1/chat/completions", **asked, parallel_tool_calls=False)["choices"][0]["message"][
        "tool_calls"
    ]
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def responses(http: httpx.Client, choice: Any) -> Any:
    asked = {"input": "Hello", "tools": [{"type": "function", **FUNCTION}], "tool_choice": choice, "temperature": 0}
    output = post(http, "/v1/responses", **asked, max_output_tokens=200, parallel_tool_calls=False)["output"]
    (call,) = [item for item in output if item["type"] == "function_call"]
    return call["name"], json.loads(call["arguments"])


def messages(http: httpx.Client, choice: dict[str, Any]) -> Any:
    tool = {"name": "order", "description": "Order it", "input_schema": SCHEMA}
    asked = {"messages": MESSAGES, "tools": [tool], "temperature": 0, "max_tokens": 200}
    choice = {**choice, "disable_parallel_tool_use": True}
    (call,) = [
        block for block in post(http, "/v1/messages", **asked, tool_choice=choice)["content"]
        if block["type"] == "tool_use"
    ]  # fmt: skip
    return call["name"], call["input"]


def test_a_forced_call_obeys_the_tools_whole_schema(http: httpx.Client) -> None:
    named = {"type": "function", "function": {"name": "order"}}
    calls = [
        chat(http, "required"), chat(http, named),
        responses(http, "required"), responses(http, {"type": "function", "name": "order"}),
        messages(http, {"type": "any"}), messages(http, {"type": "tool", "name": "order"}),
    ]  # fmt: skip
    for name, arguments in calls:
        assert name == "order"
        jsonschema.validate(arguments, SCHEMA)


def test_more_new_schemas_at_once_than_are_kept_are_each_obeyed(http: httpx.Client) -> None:
    """Compiled ones make way for others before their requests begin: they are compiled again."""

    def answer(at: int) -> Any:
        format = {"type": "object", "properties": {f"key {at}": {"const": at}}, "required": [f"key {at}"]}
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": False, "format": format}
        return json.loads(post(http, "/api/chat", **body)["message"]["content"])

    with ThreadPoolExecutor(24) as threads:
        assert [*threads.map(answer, range(24))] == [{f"key {at}": at} for at in range(24)]


def test_a_forced_call_obeys_a_schema_in_parts(http: httpx.Client) -> None:
    parts = {
        "type": "object",
        "$defs": {"base": {"properties": {"id": {"enum": [7, 8]}}, "required": ["id"]}},
        "allOf": [{"$ref": "#/$defs/base"}],
        "anyOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}],
        "properties": {"b": {"const": "x"}},
    }
    name, arguments = chat(http, "required", parameters=parts)
    jsonschema.validate(arguments, parts)
    assert name == "order" and set(arguments) <= {"id", "a", "b"}


def test_a_parameter_may_be_any_value_or_none(http: httpx.Client) -> None:
    either = {
        "type": "object",
        "properties": {"any": True, "never": False, "one": {"anyOf": [False, {"const": 7}]}},
        "required": ["any", "one"],
        "additionalProperties": False,
    }
    name, arguments = chat(http, "required", parameters=either)
    assert name == "order" and set(arguments) == {"any", "one"} and arguments["one"] == 7


def test_templates_get_the_schema_as_the_client_sent_it(http: httpx.Client) -> None:
    asked = {"messages": MESSAGES, "_debug_render_only": True, "stream": False}
    for function in (FUNCTION, {**FUNCTION, "strict": True}):
        tool = {"type": "function", "function": function}
        for path in ("/api/chat", "/v1/chat/completions"):
            body = post(http, path, tools=[tool], **asked)
            debug = body.get("_debug_info") or body["debug_info"]
            assert json.dumps(CHAT_TOOL) in debug["rendered_template"]


def test_a_schema_that_cannot_be_enforced_is_refused_where_a_call_is_forced(http: httpx.Client) -> None:
    broken = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": broken}}
    asked = {"model": "taught", "messages": MESSAGES, "tools": [tool], "max_tokens": 20}
    assert http.post("/v1/chat/completions", json=asked).status_code == 200
    refused = http.post("/v1/chat/completions", json=asked | {"tool_choice": "required"})
    assert refused.status_code == 400
    assert '"$ref" leads to #/$defs/a, which is not in the schema' in refused.json()["error"]["message"]
