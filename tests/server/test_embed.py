"""Embedding and reranking through the whole stack, with tiny encoders and the clients that people use."""

from __future__ import annotations

import base64
import json
import select
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import LocalServer, eventually
from tests.support.tiny import DATA
from tests.support.tiny_encoder import WIDTH, Reference, make_encoder, spell

TEXTS = ["hello world", "", "the quick brown fox"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("encoders")
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    return {
        "bert": make_encoder(root / "bert", "bert", pooling=pooling),
        "qwen3-embed": make_encoder(root / "qwen3", "qwen3", pooling={"pooling_mode_lasttoken": True}),
        "ranker": make_encoder(root / "ranker", "bert", ranks=True),
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Any]) -> Iterator[LocalServer]:
    root = tmp_path_factory.mktemp("embed")
    registry = Registry(root / "models", [])
    for name, folder in folders.items():
        registry.add_model_folder(name, folder, transfer="copy")
    registry.add_model_folder("chat", DATA / "taught-qwen3", transfer="copy")
    registry.add_model_folder("broken", make_encoder(root / "broken", "bert", pooling={"pooling_mode": "odd"}))
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), max_loaded_models=8)
    with LocalServer(registry, settings) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: LocalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def client(server: LocalServer) -> ollama.Client:
    return ollama.Client(server.url)


@pytest.fixture(scope="module")
def openai_client(server: LocalServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_many_vectors_are_written_beside_the_event_loop(http: httpx.Client, client: ollama.Client) -> None:
    """Thousands of vectors, in JSON and in base64, are those of their texts; the server answers others meanwhile."""
    texts = ["hello world", "the quick brown fox"] * 1000
    singles = client.embed("bert", texts[:2]).embeddings
    found = http.post("/api/embed", json={"model": "bert", "input": texts}, timeout=120).json()["embeddings"]
    np.testing.assert_allclose(found, [*singles] * 1000, atol=1e-5)
    for encoding in ("float", "base64"):
        body = {"model": "bert", "input": texts, "encoding_format": encoding}
        data = http.post("/v1/embeddings", json=body, timeout=120).json()["data"]
        assert [item["index"] for item in data] == list(range(2000))
        rows = [item["embedding"] for item in data]
        if encoding == "base64":
            rows = [struct.unpack(f"<{WIDTH}f", base64.b64decode(row)) for row in rows]
        np.testing.assert_allclose(rows, found, atol=1e-5)  # rows share other forwards each time


def test_the_ollama_client_gets_the_vectors_of_the_trained_model(
    client: ollama.Client, folders: dict[str, Any]
) -> None:
    found = client.embed("bert", TEXTS)
    reference = Reference(folders["bert"])
    wanted = [reference.embed(spell(text), "cls") for text in TEXTS]
    np.testing.assert_allclose(found.embeddings, wanted, atol=1e-5)
    assert found.prompt_eval_count == sum(len(spell(text)) for text in TEXTS)
    assert found.total_duration and found.load_duration
    (single,) = client.embed("bert", TEXTS[0]).embeddings
    np.testing.assert_allclose(single, wanted[0], atol=1e-5)
    np.testing.assert_allclose(client.embeddings("bert", TEXTS[0]).embedding, wanted[0], atol=1e-5)


def test_nothing_to_embed_only_loads(http: httpx.Client) -> None:
    nothing: list[dict[str, Any]] = [{}, {"input": ""}, {"input": []}]
    for given in nothing:
        assert http.post("/api/embed", json={"model": "bert", **given}).json() == {"model": "bert", "embeddings": []}
    assert http.post("/api/embeddings", json={"model": "bert"}).json() == {"embedding": []}


def test_long_inputs_are_cut_or_refused(http: httpx.Client, client: ollama.Client) -> None:
    assert client.embed("bert", "a" * 500).prompt_eval_count == 64
    refused = http.post("/api/embed", json={"model": "bert", "input": ["b", "a" * 500], "truncate": False})
    assert (refused.status_code, refused.json()) == (400, {"error": "the input length exceeds the context length"})


@pytest.mark.parametrize("model", ["bert", "qwen3-embed", "chat"])
def test_the_context_of_the_request_holds_for_its_inputs(http: httpx.Client, model: str) -> None:
    def post(path: str, **fields: Any) -> httpx.Response:
        return http.post(path, json={"model": model, "options": {"num_ctx": 8}, **fields})

    whole = http.post("/api/embed", json={"model": model, "input": "abcdefghijkl" * 4}).json()
    cut = post("/api/embed", input=["abcdefghijkl" * 4, "a"]).json()
    short = http.post("/api/embed", json={"model": model, "input": "a"}).json()
    assert whole["prompt_eval_count"] > 8
    assert cut["prompt_eval_count"] == 8 + short["prompt_eval_count"]
    assert cut["embeddings"][0] != whole["embeddings"][0]
    np.testing.assert_allclose(cut["embeddings"][1], short["embeddings"][0], atol=1e-5)
    older = post("/api/embeddings", prompt="abcdefghijkl" * 4).json()["embedding"]
    np.testing.assert_allclose(older, cut["embeddings"][0], atol=1e-5)
    too_long = {"error": "the input length exceeds the context length"}
    assert post("/api/embed", input="abcdefghijkl" * 4, truncate=False).json() == too_long
    assert post("/api/embeddings", prompt="abcdefghijkl" * 4, truncate=False).json() == too_long
    assert post("/api/embed", input="a", truncate=False).status_code == 200


def test_a_cut_input_keeps_its_special_tokens(client: ollama.Client, folders: dict[str, Any]) -> None:
    reference = Reference(folders["bert"])
    text = "a" * 40
    (found,) = client.embed("bert", text, options={"num_ctx": 8}).embeddings
    tokens = spell(text)
    np.testing.assert_allclose(found, reference.embed([*tokens[:7], tokens[-1]], "cls"), atol=1e-5)


def test_dimensions_shorten_and_keep_the_length_of_one(client: ollama.Client, openai_client: openai.OpenAI) -> None:
    whole = np.array(client.embed("bert", "hello").embeddings[0])
    (cut,) = client.embed("bert", "hello", dimensions=8).embeddings
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    assert len(client.embed("bert", "hello", dimensions=999).embeddings[0]) == WIDTH
    (theirs,) = openai_client.embeddings.create(model="bert", input="hello", dimensions=8).data
    np.testing.assert_allclose(theirs.embedding, cut, atol=1e-6)


def test_the_openai_client_gets_the_same_as_floats_and_as_base64(
    http: httpx.Client, client: ollama.Client, openai_client: openai.OpenAI
) -> None:
    wanted = client.embed("bert", TEXTS).embeddings
    # Its own default is base64.
    found = openai_client.embeddings.create(model="bert", input=TEXTS)
    np.testing.assert_allclose([entry.embedding for entry in found.data], wanted, atol=1e-7)
    assert [entry.index for entry in found.data] == [0, 1, 2]
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(len(spell(text)) for text in TEXTS)
    raw = {"model": "bert", "input": TEXTS[0]}
    floats, packed = (
        http.post("/v1/embeddings", json=raw | {"encoding_format": kind}).json()["data"][0]["embedding"]
        for kind in ("float", "base64")
    )
    np.testing.assert_allclose(floats, struct.unpack(f"<{WIDTH}f", base64.b64decode(packed)), atol=1e-7)


@pytest.mark.parametrize("model", ["qwen3-embed", "chat"])
def test_decoders_embed_too(client: ollama.Client, model: str) -> None:
    together = np.array(client.embed(model, TEXTS).embeddings)
    alone = [client.embed(model, [text]).embeddings[0] for text in TEXTS]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)


def test_a_model_of_another_kind_says_what_it_cannot_do(http: httpx.Client, client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match='"bert" does not support chat'):
        client.chat("bert", [{"role": "user", "content": "hi"}])
    with pytest.raises(ollama.ResponseError, match='"ranker" does not support generate'):
        client.generate("ranker", "hi")
    with pytest.raises(ollama.ResponseError, match="this model does not support embeddings"):
        client.embed("ranker", "hi")
    answer = http.post("/v1/rerank", json={"model": "bert", "query": "q", "documents": ["d"]})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, '"bert" does not support rerank')


def test_a_model_that_would_embed_wrongly_is_not_loaded(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="this model's pooling \\(odd\\) is not supported") as failure:
        client.embed("broken", "hi")
    assert failure.value.status_code == 500


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_come_back_with_the_best_first(http: httpx.Client, folders: dict[str, Any], path: str) -> None:
    documents: list[Any] = ["the quick brown fox", {"text": "fox"}, "a cat", ""]
    texts = [entry["text"] if isinstance(entry, dict) else entry for entry in documents]
    found = http.post(path, json={"model": "ranker", "query": "fox", "documents": documents}).json()
    reference = Reference(folders["ranker"])
    pairs = [spell("fox", text) for text in texts]
    segments = [[0] * len(spell("fox")) + [1] * (len(pair) - len(spell("fox"))) for pair in pairs]
    wanted = [reference.score(pair, kinds) for pair, kinds in zip(pairs, segments, strict=True)]
    order = sorted(range(4), key=lambda at: -wanted[at])
    assert [entry["index"] for entry in found["results"]] == order
    np.testing.assert_allclose(
        [entry["relevance_score"] for entry in found["results"]], sorted(wanted, reverse=True), atol=1e-5
    )
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] == sum(map(len, pairs))
    assert found["model"] == "ranker" and found["id"]
    assert all("document" not in entry for entry in found["results"])

    best = {"model": "ranker", "query": {"text": "fox"}, "documents": documents, "top_n": 1, "return_documents": True}
    (entry,) = http.post(path, json=best).json()["results"]
    assert (entry["index"], entry["document"]) == (order[0], {"text": texts[order[0]]})


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"documents": ["d"]}, 400, "query is required"),
        ({"query": "q"}, 400, "documents is required"),
        ({"query": "q", "documents": []}, 400, "documents is required"),
        ({"query": "q", "documents": "d"}, 400, "documents must be a list"),
        ({"query": "q", "documents": ["d", 5]}, 400, "documents must be a list"),
        ({"query": "q", "documents": ["d"], "top_n": 0}, 400, "top_n must be at least 1"),
        ({"query": "q", "documents": ["d"], "model": ""}, 400, "model is required"),
        ({"query": "q", "documents": ["d"], "model": "nope"}, 404, "model 'nope' not found"),
    ],
)
def test_what_is_wrong_with_a_ranking_request_is_said(
    http: httpx.Client, given: dict[str, Any], status: int, said: str
) -> None:
    answer = http.post("/v1/rerank", json={"model": "ranker", **given})
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_small_jobs_are_answered_while_a_large_one_runs_and_leaving_ends_it(
    server: LocalServer, http: httpx.Client
) -> None:
    assert http.post("/api/embed", json={"model": "bert", "input": "x"}).status_code == 200
    body = json.dumps({"model": "bert", "input": ["a " * 60] * 40_000}).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as leaving:
        head = f"POST /api/embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        leaving.sendall(head.encode() + body)
        assert eventually(lambda: server.running() > 0)
        for _ in range(3):
            assert http.post("/api/embed", json={"model": "bert", "input": "hello"}).status_code == 200
        answered, _, _ = select.select([leaving], [], [], 0)
        assert not answered
    assert eventually(lambda: server.running() == 0)


def test_a_chat_streams_on_while_its_model_embeds(server: LocalServer) -> None:
    with server.client() as embedding, server.client() as chatting:
        texts = [f"text number {number} " * 20 for number in range(80)]
        answer: list[Any] = []
        thread = threading.Thread(
            target=lambda: answer.append(embedding.post("/api/embed", json={"model": "chat", "input": texts}))
        )
        thread.start()
        said = chatting.post(
            "/api/generate", json={"model": "chat", "prompt": "hi", "stream": False, "options": {"num_predict": 16}}
        )
        thread.join()
    assert said.json()["done"]
    assert len(answer[0].json()["embeddings"]) == 80
