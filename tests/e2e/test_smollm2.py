"""The main job with the real client on a real model: what an Ollama user does on the first day."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import ollama
import psutil
import pytest

from tests.e2e.conftest import MODEL
from tests.support.server import ServerProcess

GREEDY = {"temperature": 0, "num_predict": 12}
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
QUESTIONS = [
    "What is the capital of France?",
    "List three fruits.",
    "What is 2+3?",
    "Say hello.",
]


def ask(client: ollama.Client, question: str) -> str:
    reply = client.chat(MODEL, [{"role": "user", "content": question}], options=GREEDY)
    return reply.message.content or ""


def loaded(client: ollama.Client) -> list[str]:
    return [model.model or "" for model in client.ps().models]


def wait_for(condition: object, timeout_s: float = 120.0) -> None:
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def runners(server: ServerProcess) -> list[psutil.Process]:
    """Model processes of the server, the spare one included."""
    assert server.process is not None
    return psutil.Process(server.process.pid).children(recursive=True)


def test_the_model_knows_the_capital_of_france(client: ollama.Client) -> None:
    reply = client.chat(MODEL, CAPITAL, options=GREEDY)
    assert reply.message.content == "The capital of France is Paris."
    assert reply.message.role == "assistant"
    assert (reply.done, reply.done_reason, reply.model) == (True, "stop", MODEL)
    for metric in (
        reply.total_duration,
        reply.load_duration,
        reply.prompt_eval_count,
        reply.prompt_eval_duration,
        reply.eval_count,
        reply.eval_duration,
    ):
        assert metric is not None
        assert metric > 0


def test_a_streamed_chat_says_the_same_piece_by_piece(client: ollama.Client) -> None:
    parts = list(client.chat(MODEL, CAPITAL, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "The capital of France is Paris."
    assert len(parts) > 4
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_generate_streams_and_returns_a_context_that_goes_on(client: ollama.Client) -> None:
    first = client.generate(MODEL, "My name is Ada.", options=GREEDY)
    assert first.response
    assert first.context
    again = client.generate(MODEL, "What is my name?", context=first.context, options=GREEDY)
    assert (again.prompt_eval_count or 0) > len(first.context)
    parts = list(client.generate(MODEL, "Say hello.", options=GREEDY, stream=True))
    assert parts[-1].done
    assert "".join(part.response for part in parts)


def test_stop_strings_and_num_predict_end_the_answer(client: ollama.Client) -> None:
    cut = client.chat(MODEL, CAPITAL, options={**GREEDY, "stop": [" is"]})
    assert cut.message.content == "The capital of France"
    assert cut.done_reason == "stop"
    short = client.chat(MODEL, CAPITAL, options={**GREEDY, "num_predict": 3})
    assert short.eval_count == 3
    assert short.done_reason == "length"


def test_a_seed_repeats_itself_and_another_does_not(client: ollama.Client) -> None:
    def tell(seed: int) -> str:
        options = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": seed, "num_predict": 16}
        return client.generate(MODEL, "Tell me a story.", options=options).response

    assert tell(7) == tell(7) != tell(8)


def test_four_chats_at_once_share_a_batch_and_say_what_each_says_alone(
    server: ServerProcess, client: ollama.Client
) -> None:
    alone = [ask(client, question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        together = list(pool.map(lambda question: ask(ollama.Client(server.url), question), QUESTIONS))
    assert together == alone
    status = httpx.get(f"{server.url}/api/omlx/status", trust_env=False).json()
    assert max(model["max_batch"] for model in status["models"]) > 1


def test_list_show_copy_delete(client: ollama.Client) -> None:
    listed = {model.model for model in client.list().models}
    assert f"{MODEL}:latest" in listed
    shown = client.show(MODEL)
    assert shown.details is not None
    assert shown.details.family == "llama"
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 8192
    client.copy(MODEL, "another/name:v1")
    assert "another/name:v1" in {model.model for model in client.list().models}
    assert client.chat("another/name:v1", CAPITAL, options=GREEDY).message.content == "The capital of France is Paris."
    client.delete("another/name:v1")
    assert "another/name:v1" not in {model.model for model in client.list().models}
    assert ask(client, QUESTIONS[0])


def test_ps_shows_what_is_loaded_and_keep_alive_0_unloads(client: ollama.Client) -> None:
    client.generate(MODEL, "", keep_alive="1h")
    entry = next(model for model in client.ps().models if (model.model or "").startswith(MODEL))
    assert (entry.size or 0) > 100_000_000
    assert entry.expires_at is not None
    assert client.generate(MODEL, "", keep_alive=0).done_reason == "unload"
    wait_for(lambda: not loaded(client))


@pytest.mark.parametrize("call", ["chat", "generate"])
def test_an_unknown_model_is_404_with_ollamas_words(client: ollama.Client, call: str) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("nobody", CAPITAL) if call == "chat" else client.generate("nobody", "Hi")
    assert caught.value.status_code == 404
    assert caught.value.error == "model 'nobody' not found"


def test_a_runner_that_is_killed_ends_its_stream_with_an_error_and_the_next_request_works(
    server: ServerProcess, client: ollama.Client
) -> None:
    body = {"model": MODEL, "prompt": "Tell me a long story.", "options": {"temperature": 0, "num_predict": 400}}
    lines: Iterator[str]
    with httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=150, trust_env=False) as response:
        lines = response.iter_lines()
        assert "response" in json.loads(next(lines))
        busiest = max(runners(server), key=lambda process: process.memory_info().rss)
        os.kill(busiest.pid, signal.SIGKILL)
        last = [json.loads(line) for line in lines][-1]
    assert "error" in last
    assert "model runner has unexpectedly stopped" in last["error"]
    assert httpx.get(f"{server.url}/api/version", trust_env=False).status_code == 200
    assert ask(client, QUESTIONS[0]) == "The capital of France is Paris."


def test_aborted_requests_leave_no_sequence_behind(server: ServerProcess, client: ollama.Client) -> None:
    client.generate(MODEL, "", keep_alive="1h")

    def abort() -> None:
        body = {"model": MODEL, "prompt": "Tell me a long story.", "options": {"num_predict": 400}}
        with httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=150, trust_env=False) as response:
            next(response.iter_lines())

    with ThreadPoolExecutor(5) as pool:
        for running in [pool.submit(abort) for _ in range(10)]:
            running.result()

    def idle() -> bool:
        status = httpx.get(f"{server.url}/api/omlx/status", trust_env=False).json()
        return all(model["running"] == model["waiting"] == 0 for model in status["models"])

    wait_for(idle)


def test_a_request_that_waits_for_a_load_is_answered(server: ServerProcess, client: ollama.Client) -> None:
    client.generate(MODEL, "", keep_alive=0)
    wait_for(lambda: not loaded(client))
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(ollama.Client(server.url), QUESTIONS[0]))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert answers == ["The capital of France is Paris."] * 2
    assert loaded(client).count(f"{MODEL}:latest") == 1


def test_the_server_ends_at_once_and_restarts_on_its_store(tmp_path: object, server: ServerProcess) -> None:
    log = server.log_text()
    assert "Listening on 127.0.0.1:" in log
    assert "Traceback" not in log
