"""The real `ollama` client works against the server, errors included."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from omlx.runner.connection import CRASHED
from tests.server.local import LocalServer


@pytest.fixture(scope="module")
def client(scripted: LocalServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=scripted.url, trust_env=False) as client:
        yield client


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat("plain", user("say Hi there"))
    assert whole.message.content == "Hithere"
    assert whole.done_reason == "stop"
    assert whole.eval_count == 3
    parts = list(client.chat("plain", user("say Hi there"), stream=True))
    assert [part.message.content for part in parts] == ["Hi", "there", ""]
    assert parts[-1].done


def test_generate_with_context_and_options(client: ollama.Client) -> None:
    reply = client.generate("plain", "say Hi", options={"temperature": 0, "num_predict": 5}, keep_alive="5m")
    assert reply.response == "Hi"
    assert list(reply.context or []) == [1, 2, 3]
    again = client.generate("plain", "say Hi", context=reply.context, keep_alive=60)
    assert again.response == "Hi"


def test_tools_and_thinking(client: ollama.Client) -> None:
    def f(a: str, b: int) -> str:
        """Do it.

        Args:
            a: first
            b: second
        """
        return a * b

    reply = client.chat("thinker", user("call"), tools=[f], think=False)
    assert reply.message.tool_calls is not None
    assert dict(reply.message.tool_calls[0].function.arguments) == {"b": 1, "a": "<x>"}
    result = {"role": "tool", "content": "4", "tool_name": "f"}
    follow: list[Any] = [*user("call"), reply.message, result, *user("say Done")]
    assert client.chat("thinker", follow, tools=[f]).message.content == "Done"
    assert client.chat("thinker", user("think Hm / Yes"), think=True).message.thinking == "Hm"
    assert client.generate("thinker", "think Hm / Yes", think="low").thinking == "Hm"


def test_list_show_ps_copy_delete(client: ollama.Client) -> None:
    assert "plain:latest" in [model.model for model in client.list().models]
    shown = client.show("plain")
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 4096
    client.generate("plain", keep_alive="5m")
    assert "plain:latest" in [model.model for model in client.ps().models]
    client.generate("plain", keep_alive=0)
    assert "plain:latest" not in [model.model for model in client.ps().models]
    assert client.copy("plain", "twin").status == "success"
    assert client.delete("twin").status == "success"


def test_embed(client: ollama.Client) -> None:
    assert [list(vector) for vector in client.embed("embedder", ["a", "bc"]).embeddings] == [
        [1.0, 0.100000001],
        [2.0, 0.100000001],
    ]
    assert client.embeddings("embedder", "abc").embedding[0] == 3.0


def test_create_and_pull(client: ollama.Client) -> None:
    assert client.create("made", from_="plain", system="Hi.").status == "success"
    assert [line.status for line in client.create("made", from_="plain", stream=True)][-1] == "success"
    client.delete("made")
    told = [line.status for line in client.pull("remote", stream=True)]
    assert (told[0], told[-1]) == ("pulling manifest", "success")
    with pytest.raises(ollama.ResponseError, match="file does not exist"):
        client.pull("nope")


def test_errors_have_their_status(client: ollama.Client) -> None:
    for ask, status, text in (
        (lambda: client.chat("nope", user("x")), 404, "model 'nope' not found"),
        (lambda: client.show("nope"), 404, "model 'nope:latest' not found"),
        (lambda: client.chat("plain", user("x"), think=True), 400, '"plain" does not support thinking'),
        (lambda: client.chat("plain", user("x"), tools=[{"type": "function"}]), 400, "does not support tools"),
        (lambda: client.generate("plain", "fail too_long too long"), 400, "too long"),
        (lambda: client.delete("nope"), 404, "model 'nope' not found"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        assert caught.value.status_code == status
        assert text in caught.value.error


def test_an_error_in_mid_stream_is_raised(client: ollama.Client) -> None:
    stream = client.generate("plain", "crash", stream=True)
    assert next(stream).response == "begun"
    with pytest.raises(ollama.ResponseError) as caught:
        list(stream)
    assert caught.value.error == CRASHED


@pytest.fixture
def patient(scripted: LocalServer) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=scripted.url, trust_env=False)


@pytest.mark.anyio
async def test_async_chat_generate_and_tools(patient: ollama.AsyncClient) -> None:
    def f(a: str, b: int) -> str:
        """Do it."""
        return a * b

    parts = [part.message.content async for part in await patient.chat("plain", user("say Hi there"), stream=True)]
    assert parts == ["Hi", "there", ""]
    texts = [part.response async for part in await patient.generate("plain", "say Hi there", stream=True)]
    assert texts == ["Hi", "there", ""]
    called = await patient.chat("thinker", user("call"), tools=[f], think=False)
    assert [call.function.name for call in called.message.tool_calls or []] == ["f", "g"]
    thought = await patient.chat("thinker", user("think Hm / Yes"), think="high")
    assert (thought.message.thinking, thought.message.content) == ("Hm", "Yes")


@pytest.mark.anyio
async def test_async_embeddings_and_management(patient: ollama.AsyncClient) -> None:
    assert len((await patient.embed("embedder", ["a", "bc"])).embeddings) == 2
    assert (await patient.embeddings("embedder", "abc")).embedding[0] == 3.0
    assert "plain:latest" in [model.model for model in (await patient.list()).models]
    assert (await patient.show("plain")).capabilities == ["completion"]
    await patient.generate("plain", keep_alive="5m")
    assert "plain:latest" in [model.model for model in (await patient.ps()).models]
    told = [line.status async for line in await patient.create("async", from_="plain", system="Hi.", stream=True)]
    assert told[-1] == "success"
    assert (await patient.copy("async", "twin")).status == "success"
    for name in ("async", "twin"):
        assert (await patient.delete(name)).status == "success"
    pulled = [line.status async for line in await patient.pull("remote", stream=True)]
    assert (pulled[0], pulled[-1]) == ("pulling manifest", "success")


@pytest.mark.anyio
async def test_async_requests_at_once_and_their_errors(patient: ollama.AsyncClient) -> None:
    answers = await asyncio.gather(
        patient.chat("plain", user("say One")),
        patient.chat("nope", user("x")),
        patient.chat("plain", user("x"), think=True),
        patient.show("nope"),
        patient.delete("nope"),
        patient.chat("plain", user("say Two")),
        return_exceptions=True,
    )
    failed = [answer for answer in answers if isinstance(answer, ollama.ResponseError)]
    assert [error.status_code for error in failed] == [404, 400, 404, 404]
    whole = [answer.message.content for answer in answers if isinstance(answer, ollama.ChatResponse)]
    assert whole == ["One", "Two"]
    stream = await patient.generate("plain", "crash", stream=True)
    with pytest.raises(ollama.ResponseError, match="runner"):
        async for _ in stream:
            pass
