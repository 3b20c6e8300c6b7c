"""What exceeds the context, through the whole stack: the task of a tool loop stays, a long message is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from omlx_registry import Registry, Texts

from omlx.runner.prompt import TOO_LONG
from omlx.settings import Settings
from tests.server.local import LocalServer
from tests.support.tiny import DATA

CONTEXT = 200
WORDS = [f"w{at}" for at in range(1000)]
LONG = " ".join(WORDS)


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("long")
    registry = Registry(root / "models", [])
    small = Texts(parameters={"num_ctx": CONTEXT, "num_predict": 2, "temperature": 0})
    registry.add_model_folder("small", DATA / "taught-qwen3", texts=small, transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False)
    with LocalServer(registry, settings) as server, server.client() as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "count"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": LONG}], "stream": False}, "prompt_eval_count"),
        ("/api/generate", {"prompt": LONG, "stream": False}, "prompt_eval_count"),
        ("/api/generate", {"prompt": LONG, "raw": True, "stream": False}, "prompt_eval_count"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "usage.prompt_tokens"),
        ("/v1/completions", {"prompt": LONG, "max_tokens": 2}, "usage.prompt_tokens"),
        ("/v1/responses", {"input": LONG}, "usage.input_tokens"),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}, "usage"),
    ],
)
def test_a_message_longer_than_the_context_is_answered(
    http: httpx.Client, path: str, body: dict[str, Any], count: str
) -> None:
    answer = http.post(path, json={"model": "small", **body})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    for name in count.split("."):
        found = found[name]
    if count == "usage":  # Anthropic counts apart what came from the cache.
        found = found["input_tokens"] + found["cache_read_input_tokens"]
    assert CONTEXT - 5 <= found < CONTEXT, "about as many tokens as there is room for"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": LONG}], "stream": False}),
        ("/api/generate", {"prompt": LONG, "stream": False}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": LONG, "max_tokens": 2}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2}),
    ],
)
def test_without_truncate_it_is_refused(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = http.post(path, json={"model": "small", "truncate": False, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error if isinstance(error, str) else error["message"]) == (400, TOO_LONG)


def rendered(http: httpx.Client, messages: list[dict[str, Any]], **options: Any) -> str:
    body = {"model": "small", "messages": messages, "options": options, "stream": False, "_debug_render_only": True}
    answer = http.post("/api/chat", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["_debug_info"]["rendered_template"])


def test_the_beginning_and_the_end_of_a_long_message_are_kept(http: httpx.Client) -> None:
    whole = rendered(http, [{"role": "user", "content": LONG}], num_ctx=4096)
    cut = rendered(http, [{"role": "user", "content": LONG}], num_keep=20)
    assert cut[:20] == whole[:20] and cut[-100:] == whole[-100:]
    assert len(cut) < len(whole)


def test_system_and_the_end_of_the_question_are_kept_beside_each_other(http: httpx.Client) -> None:
    text = rendered(http, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": LONG}])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert text.endswith(f"{WORDS[-2]} {WORDS[-1]}<|im_end|>\n<|im_start|>assistant\n")


def test_the_task_of_a_tool_loop_is_not_forgotten(http: httpx.Client) -> None:
    call = {"function": {"name": "bash", "arguments": {"command": "git status"}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "SYSTEM"},
        {"role": "user", "content": "Run git status"},
    ]
    for at in range(4):
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"RESULT{at} " + "x " * 30},
        ]
    text = rendered(http, messages)
    assert "SYSTEM" in text and "Run git status" in text
    assert "RESULT3" in text and "RESULT0" not in text
    assert text.count("<tool_call>") == text.count("RESULT"), "no result without its call"


def test_the_task_stays_where_the_results_of_one_message_do_not_fit(http: httpx.Client) -> None:
    call = {"function": {"name": "bash", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "SYSTEM"},
        {"role": "user", "content": "TASK"},
        {"role": "assistant", "content": "", "tool_calls": [call] * 3},
        *({"role": "tool", "content": f"RESULT{at} " + "x " * 60 + f"END{at}"} for at in range(3)),
    ]
    text = rendered(http, messages)
    assert "SYSTEM" in text and "TASK" in text
    assert text.count("<tool_response>") == text.count("<tool_call>\n") == 3
    assert "END2" in text and "END0" not in text


def test_a_rendered_prompt_begins_with_the_text_of_its_context(http: httpx.Client) -> None:
    first = http.post("/api/generate", json={"model": "small", "prompt": "Hello", "stream": False}).json()
    asked = {"model": "small", "prompt": "Again", "context": first["context"], "_debug_render_only": True}
    text = http.post("/api/generate", json={**asked, "stream": False}).json()["_debug_info"]["rendered_template"]
    assert text.startswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert first["response"] in text
    assert text.endswith("<|im_start|>user\nAgain<|im_end|>\n<|im_start|>assistant\n")
