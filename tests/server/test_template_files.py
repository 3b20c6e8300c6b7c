"""The template that `show` prints is the one that the runner uses, wherever the model's files keep it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.tiny import DATA

PLAIN = "plain:{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
WITH_TOOLS = "tools:{{ tools[0].function.name }}:{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
NAMED = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": WITH_TOOLS}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}

FILES: dict[str, dict[str, Any]] = {
    "tokenizer": {"tokenizer_config.json": PLAIN},
    "processor": {"chat_template.json": PLAIN},
    "processor-config": {"processor_config.json": PLAIN},
    "jinja": {"chat_template.jinja": PLAIN, "tokenizer_config.json": "another one", "chat_template.json": "a third"},
    "named": {"tokenizer_config.json": NAMED},
    "named-processor": {"chat_template.json": NAMED},
    "additional": {"chat_template.jinja": PLAIN, "additional_chat_templates/tool_use.jinja": WITH_TOOLS},
    "only-named": {"tokenizer_config.json": [{"name": "rag", "template": PLAIN}]},
}
KWARGS = (
    "{# <think></think> #}{{ enable_thinking }}|{{ reasoning_effort }}|{{ documents | tojson }}|{{ language }}|"
    "{{ add_generation_prompt }}|{{ messages[-1].content }}|"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
OPENS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n{{ '' }}"
)
MESSAGES = {"messages": [{"role": "user", "content": "U"}]}
ASKED: dict[str, dict[str, Any]] = {
    "/api/chat": MESSAGES,
    "/api/generate": {"prompt": "U"},
    "/v1/chat/completions": MESSAGES,
    "/v1/completions": {"prompt": "U", "max_tokens": 2},
    "/v1/responses": {"input": "U", "max_output_tokens": 2},
    "/v1/messages": MESSAGES | {"max_tokens": 2},
    "/v1/messages/count_tokens": MESSAGES,
}
"""What each route that renders a chat template needs."""
WITH_TWO = {"named", "named-processor", "additional"}


def model_folder(folder: Path, files: dict[str, Any]) -> Path:
    shutil.copytree(DATA / "taught-qwen3", folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".jinja"):
            path.write_text(content)
        else:
            held = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps({**held, "chat_template": content}))
    return folder


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("templates")
    registry = Registry(root / "models", [])
    for name, files in FILES.items():
        registry.add_model_folder(name, model_folder(root / name, files), transfer="copy")
    registry.add_model_folder("kwargs", model_folder(root / "kwargs", {"chat_template.jinja": KWARGS}), transfer="copy")
    registry.add_model_folder("opens", model_folder(root / "opens", {"chat_template.jinja": OPENS}), transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=True)
    with LocalServer(registry, settings) as server, server.client() as client:
        yield client


@pytest.mark.parametrize("model", FILES)
def test_what_is_shown_is_what_is_used(http: httpx.Client, model: str) -> None:
    def rendered(**fields: Any) -> str:
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
        body = {"model": model, "messages": messages, "stream": False, "_debug_render_only": True, **fields}
        answer = http.post("/api/chat", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["_debug_info"]["rendered_template"])

    shown = http.post("/api/show", json={"model": model}).json()
    assert shown["template"] == PLAIN
    assert rendered() == "plain:[system:S][user:U]"
    assert ("tools" in shown["capabilities"]) is (model in WITH_TWO)
    if model in WITH_TWO:
        assert rendered(tools=[TOOL]) == "tools:weather:[system:S][user:U]"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "True||null||True|U|"),
        ({}, "True||null||True|U|"),
        ({"enable_thinking": False}, "False||null||True|U|<think></think>"),
        ({"reasoning_effort": "high"}, "True|high|null||True|U|"),
        ({"reasoning_effort": "own", "language": "la"}, "True|own|null|la|True|U|"),
        ({"documents": [{"text": "D"}]}, 'True||[{"text": "D"}]||True|U|'),
    ],
)
def test_kwargs_reach_the_template(http: httpx.Client, path: str, given: Any, expected: str) -> None:
    body = {"model": "kwargs", "stream": False, **ASKED[path]}
    answer = http.post(path, json={**body, "chat_template_kwargs": given, "_debug_render_only": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["_debug_info"]["rendered_template"] == expected


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/completions"])
def test_kwargs_are_among_the_tokens_of_routes_that_show_no_prompt(http: httpx.Client, path: str) -> None:
    def tokens(**kwargs: Any) -> int:
        body = {"model": "kwargs", **ASKED[path], "chat_template_kwargs": kwargs}
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        usage = answer.json().get("usage") or answer.json()
        found = usage.get("prompt_tokens", usage.get("input_tokens"))
        return int(found) + int(usage.get("cache_read_input_tokens", 0))

    assert tokens(language="la la la la la la la la") - tokens(language="la") > 5
    assert tokens(enable_thinking=False) != tokens(enable_thinking=True)


@pytest.mark.parametrize("path", list(ASKED))
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "chat_template_kwargs must be an object"),
        ({"messages": []}, "chat_template_kwargs must not hold 'messages': the server sets it"),
        ({"add_generation_prompt": False}, "chat_template_kwargs must not hold 'add_generation_prompt'"),
        ({"__class__": 1}, "a name in chat_template_kwargs must be"),
        ({"x": "y" * 70_000}, "chat_template_kwargs may hold at most 64 names and 65536 bytes of JSON"),
        ({f"n{at}": 1 for at in range(65)}, "chat_template_kwargs may hold at most 64 names"),
    ],
)
def test_kwargs_that_no_template_may_get_are_refused(http: httpx.Client, path: str, given: Any, error: str) -> None:
    answer = http.post(path, json={"model": "kwargs", **ASKED[path], "chat_template_kwargs": given})
    assert answer.status_code == 400
    assert error in answer.text.replace("\\u0027", "'")


def test_thinking_that_the_template_opens_all_the_same_is_closed(http: httpx.Client) -> None:
    """The model would think until its tokens are spent, and a client that wants no thinking would get nothing."""

    def answer(think: bool) -> dict[str, Any]:
        options = {"num_predict": 12, "temperature": 0}
        body = {"model": "opens", "messages": [{"role": "user", "content": "Hello"}], "options": options}
        found = http.post("/api/chat", json={**body, "think": think, "stream": False})
        assert found.status_code == 200, found.text
        message: dict[str, Any] = found.json()["message"]
        return message

    wanted, unwanted = answer(True), answer(False)
    assert wanted["thinking"]
    assert "thinking" not in unwanted and unwanted["content"]
    assert "think>" not in unwanted["content"]
