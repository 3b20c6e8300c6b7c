"""Routes about models: what is listed, shown and loaded; copy, delete, blobs, pull and push."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any

import httpx
import pytest
from omlx_registry import Name, Progress, Store, Texts
from omlx_registry.folders import add_model_folder

from omlx import __version__
from tests.server.local import MODELS, LocalServer, ScriptedSource, eventually
from tests.support.tiny import DATA

DETAILS = {"parent_model": "", "format": "safetensors", "family": "llama", "families": ["llama"]}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(part) for part in response.text.splitlines()]


def test_the_heartbeat_answers_get_and_head(http: httpx.Client) -> None:
    response = http.get("/")
    assert (response.status_code, response.text) == (200, "Ollama is running")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    # By this the command line knows us from a genuine Ollama.
    assert http.head("/").headers["x-omlx-version"] == __version__
    for path in ("/", "/api/version", "/api/tags"):
        response = http.head(path)
        assert (response.status_code, response.text) == (200, "")


def test_the_version_is_one_that_clients_can_parse(http: httpx.Client) -> None:
    response = http.get("/api/version")
    assert response.json() == {"version": "0.33.0", "omlx_version": __version__}
    assert all(part.isdigit() for part in response.json()["version"].split("."))
    assert response.headers["x-omlx-version"] == __version__


def test_the_cloud_is_off(http: httpx.Client) -> None:
    assert http.get("/api/status").json() == {"cloud": {"disabled": True, "source": "env"}}
    assert http.get("/api/experimental/model-recommendations").json() == {"recommendations": []}


def test_tags_lists_every_model_completely(http: httpx.Client) -> None:
    models = http.get("/api/tags").json()["models"]
    assert {model["name"].removesuffix(":latest") for model in models} == set(MODELS)
    plain = next(model for model in models if model["name"] == "plain:latest")
    assert list(plain) == ["name", "model", "modified_at", "size", "digest", "details", "capabilities"]
    assert plain["model"] == "plain:latest"
    assert len(plain["digest"]) == 64
    assert plain["size"] > 0
    assert plain["details"].items() >= DETAILS.items()
    assert plain["capabilities"] == ["completion"]
    assert datetime.fromisoformat(plain["modified_at"]).tzinfo is not None


def test_show_has_what_clients_need(http: httpx.Client) -> None:
    shown = http.post("/api/show", json={"model": "", "name": "PLAIN"}).json()
    assert shown["details"].items() >= DETAILS.items()
    assert shown["license"] == "Free."
    assert shown["template"] == "{{ .System }}{{ .Prompt }}"
    assert shown["system"] == "Be kind."
    assert shown["messages"] == [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    assert sorted(shown["parameters"].splitlines()) == [f'{"stop":30} "END"', f"{'temperature':30} 0.5"]
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] == 4096
    assert shown["capabilities"] == ["completion"]
    assert "tensors" not in shown
    assert list(shown)[-1] == "modified_at"
    assert "FROM" in shown["modelfile"]


def test_copilot_gets_the_name_it_asked_for(http: httpx.Client) -> None:
    agent = {"User-Agent": "GitHubCopilotChat/1.0"}
    shown = http.post("/api/show", json={"model": "plain"}, headers=agent).json()
    assert shown["model_info"]["general.basename"] == "plain"


def test_ps_shows_what_is_loaded_and_until_when(http: httpx.Client) -> None:
    http.post("/api/generate", json={"model": "thinker", "keep_alive": -1})
    http.post("/api/generate", json={"model": "plain", "keep_alive": "10m"})
    models = http.get("/api/ps").json()["models"]
    names = [model["name"] for model in models]
    assert names.index("thinker:latest") < names.index("plain:latest")
    plain = models[names.index("plain:latest")]
    assert list(plain) == [
        *("name", "model", "size", "digest", "details", "expires_at", "size_vram", "context_length"),
    ]  # fmt: skip
    left = datetime.fromisoformat(plain["expires_at"]) - datetime.now().astimezone()
    assert 550 < left.total_seconds() < 601
    assert plain["context_length"] > 0
    assert http.post("/api/show", json={"model": "plain"}).json()["weights"] == "none"
    assert datetime.fromisoformat(models[names.index("thinker:latest")]["expires_at"]).year > 2200


def test_embeddings_in_both_forms(http: httpx.Client) -> None:
    reply = http.post("/api/embed", json={"model": "embedder", "input": ["a", "", "abc"]}).json()
    assert reply["embeddings"] == [[1.0, 0.100000001], [0.0, 0.100000001], [3.0, 0.100000001]]
    assert reply["prompt_eval_count"] == 4
    assert min(reply["total_duration"], reply["load_duration"]) > 0
    assert list(reply)[:2] == ["model", "embeddings"]
    assert http.post("/api/embed", json={"model": "embedder", "input": "ab"}).json()["embeddings"][0][0] == 2.0
    nothings: list[dict[str, Any]] = [{}, {"input": ""}, {"input": []}, {"input": None}]
    for nothing in nothings:
        assert http.post("/api/embed", json={"model": "embedder", **nothing}).json() == {
            "model": "embedder",
            "embeddings": [],
        }
    reply = http.post("/api/embeddings", json={"model": "embedder", "prompt": "abcd", "input": "ignored"}).json()
    assert reply == {"embedding": [4.0, 0.10000000149011612]}
    assert http.post("/api/embeddings", json={"model": "embedder"}).json() == {"embedding": []}
    reply = http.post("/api/embed", json={"model": "embedder", "input": "fail", "truncate": False})
    assert (reply.status_code, reply.json()) == (400, {"error": "the input length exceeds the context length"})
    assert http.post("/api/embeddings", json={"model": "embedder", "prompt": "fail"}).status_code == 500


def test_copy_and_delete_answer_with_nothing(own_server: LocalServer) -> None:
    with own_server.client() as http:
        reply = http.post("/api/copy", json={"source": "plain", "destination": "me/twin:1"})
        assert (reply.status_code, reply.content) == (200, b"")
        assert "content-type" not in reply.headers
        names = [model["name"] for model in http.get("/api/tags").json()["models"]]
        assert "me/twin:1" in names
        reply = http.request("DELETE", "/api/delete", json={"model": "", "name": "me/twin:1"})
        assert (reply.status_code, reply.content) == (200, b"")
        assert http.post("/api/show", json={"model": "me/twin:1"}).status_code == 404
        assert http.post("/api/show", json={"model": "plain"}).status_code == 200


def test_what_no_name_leads_to_any_more_leaves_memory(own_server: LocalServer) -> None:
    with own_server.client() as http:

        def loaded() -> list[str]:
            return [model["name"] for model in http.get("/api/ps").json()["models"]]

        def create(system: str) -> None:
            made = {"model": "mine", "from": "plain", "system": system, "stream": False}
            assert http.post("/api/create", json=made).json() == {"status": "success"}

        create("one")
        assert http.post("/api/generate", json={"model": "mine", "keep_alive": -1}).status_code == 200
        assert http.post("/api/copy", json={"source": "mine", "destination": "twin"}).status_code == 200
        create("two")
        assert loaded() == ["twin:latest"]  # "mine" is another model by now
        assert http.post("/api/generate", json={"model": "mine", "keep_alive": -1}).status_code == 200
        http.request("DELETE", "/api/delete", json={"model": "twin"})
        assert eventually(lambda: len(loaded()) == 1)
        create("three")
        assert eventually(lambda: loaded() == [])


class _Renewed:
    """A source whose `renewed` is another model at every pull."""

    def __init__(self) -> None:
        self.pulls = 0

    def offers(self, name: Name) -> bool:
        return name.model == "renewed"

    async def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        self.pulls += 1
        texts = Texts(template="{{ .Prompt }}", system=f"version {self.pulls}")
        await asyncio.to_thread(add_model_folder, store, name, DATA / "taught-llama", texts=texts, transfer="copy")
        yield Progress("writing manifest")


@pytest.mark.parametrize("way", ["pull", "dashboard", "copy"])
def test_a_model_whose_name_means_another_now_leaves_memory(own_server: LocalServer, way: str) -> None:
    """A client that pulls expects the new weights from the next request on, and the memory of the old ones back."""
    own_server.registry.sources.insert(0, _Renewed())
    with own_server.client() as http:

        def pids() -> list[int]:
            return [model["pid"] for model in http.get("/api/omlx/status").json()["models"]]

        pull = {"model": "renewed", "stream": False}
        assert http.post("/api/pull", json=pull).json() == {"status": "success"}
        assert http.post("/api/generate", json={"model": "renewed", "keep_alive": -1}).status_code == 200
        (old,) = pids()
        if way == "pull":
            assert http.post("/api/pull", json=pull).json() == {"status": "success"}
        elif way == "dashboard":
            http.post("/api/omlx/pulls", json={"model": "renewed"})
        else:
            http.post("/api/copy", json={"source": "plain", "destination": "renewed"})
        assert eventually(lambda: pids() == [])
        assert http.post("/api/generate", json={"model": "renewed", "keep_alive": -1}).status_code == 200
        assert old not in pids()
        assert http.post("/api/show", json={"model": "renewed"}).json()["system"] != "version 1"


def test_blobs_are_stored_once_and_verified(own_server: LocalServer) -> None:
    data = b"x" * 9_000_000
    digest = "sha256:" + hashlib.sha256(data).hexdigest()

    def pieces() -> Any:
        for start in range(0, len(data), 1_000_000):
            yield data[start : start + 1_000_000]

    with own_server.client() as http:
        assert http.head(f"/api/blobs/{digest}").status_code == 404
        assert http.head("/api/blobs/sha256:12").status_code == 400
        reply = http.post(f"/api/blobs/{digest}", content=data[:-1])
        wrong = hashlib.sha256(data[:-1]).hexdigest()
        message = f'digest mismatch, expected "{digest}", got "sha256:{wrong}"'
        assert (reply.status_code, reply.json()) == (400, {"error": message})
        assert http.head(f"/api/blobs/{digest}").status_code == 404
        reply = http.post(f"/api/blobs/{digest}", content=pieces())
        assert (reply.status_code, reply.content) == (201, b"")
        assert http.post(f"/api/blobs/{digest}", content=data).status_code == 200
        reply = http.head(f"/api/blobs/{digest.replace(':', '-')}")
        assert (reply.status_code, reply.content) == (200, b"")
    assert own_server.registry.store.blobs.path(digest).read_bytes() == data


def test_an_upload_that_breaks_off_leaves_nothing(own_server: LocalServer) -> None:
    digest = "sha256:" + "0" * 64

    def broken() -> Any:
        yield b"x" * 6_000_000
        raise ConnectionAbortedError

    with own_server.client() as http, pytest.raises(ConnectionAbortedError):
        http.post(f"/api/blobs/{digest}", content=broken())
    with own_server.client() as http:
        assert http.head(f"/api/blobs/{digest}").status_code == 404
    folder = own_server.registry.store.blobs.folder
    assert eventually(lambda: not list(folder.glob(".omlx-*")))


def test_a_pull_is_told_line_by_line(http: httpx.Client) -> None:
    digest = "sha256:6a0746a1ec1a" + "0" * 52
    layer = {"status": "pulling 6a0746a1ec1a", "digest": digest, "total": 100}
    first, *middle, last = lines(http.post("/api/pull", json={"model": "remote"}))
    assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
    # A step that another overtook before it was read is not told.
    assert middle in ([layer, layer | {"completed": 100}], [layer | {"completed": 100}])
    whole = http.post("/api/pull", json={"model": "remote", "stream": False})
    assert whole.json() == {"status": "success"}
    assert whole.headers["content-type"] == "application/json"


def test_a_failed_pull_is_a_line_or_a_status(http: httpx.Client) -> None:
    failed = lines(http.post("/api/pull", json={"name": "remote-broken"}))
    assert failed[0] == {"status": "pulling manifest"}
    assert failed[-1] == {"error": "pull model manifest: unauthorized: access denied"}
    reply = http.post("/api/pull", json={"name": "remote-broken", "stream": False})
    assert (reply.status_code, reply.json()) == (500, failed[-1])
    assert lines(http.post("/api/pull", json={"model": "nope"}))[-1]["error"].startswith(
        "pull model manifest: file does not exist"
    )


def test_leaving_stops_a_pull(http: httpx.Client) -> None:
    with http.stream("POST", "/api/pull", json={"model": "remote-endless"}) as response:
        # Held on to: httpx closes the response when the iterator goes.
        lines = response.iter_lines()
        assert json.loads(next(lines)) == {"status": "pulling manifest"}
        assert eventually(lambda: "remote-endless" in ScriptedSource.pulling)
    assert eventually(lambda: "remote-endless" not in ScriptedSource.pulling)


def test_a_model_is_created_from_another(own_server: LocalServer) -> None:
    with own_server.client() as http:
        body = {"name": "pirate", "from": "plain", "system": "Arr.", "parameters": {"temperature": 1},
                "messages": [{"role": "user", "content": "Ho"}], "license": "Mine."}  # fmt: skip
        told = lines(http.post("/api/create", json=body))
        assert told[-2:] == [{"status": "writing manifest"}, {"status": "success"}]
        assert any(line["status"].startswith("using existing layer sha256:") for line in told)
        shown = http.post("/api/show", json={"model": "pirate"}).json()
        assert shown["system"] == "Arr."
        assert shown["messages"] == [{"role": "user", "content": "Ho"}]
        reply = http.post("/api/create", json={"model": "again", "from": "pirate", "stream": False})
        assert reply.json() == {"status": "success"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "neither 'from' or 'files' was specified"),
        ({"files": {"../x": "sha256:" + "0" * 64}}, 400, "file path must be relative"),
        ({"files": {"x.gguf": "sha256:12"}}, 400, "invalid digest format"),
        ({"from": "plain", "license": 5}, 400, "license must be a string or a list of strings"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_create_that_cannot_begin_is_a_status(
    http: httpx.Client, body: dict[str, Any], status: int, message: str, stream: bool
) -> None:
    reply = http.post("/api/create", json={"model": "new", "stream": stream, **body})
    assert (reply.status_code, reply.json()) == (status, {"error": message})


def test_push_says_what_is_missing(http: httpx.Client) -> None:
    known = lines(http.post("/api/push", json={"model": "plain"}))
    assert known[0] == {"status": "retrieving manifest"}
    assert "push" in known[-1]["error"]
    unknown = lines(http.post("/api/push", json={"model": "nope"}))
    assert [line.get("status") for line in unknown[:-1]] == ["retrieving manifest", "couldn't retrieve manifest"]
    assert "not found" in unknown[-1]["error"]


def test_health_and_readiness_are_two_questions(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    ready = http.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready"


def test_names_that_are_made_and_removed_at_once_are_there_or_not(own_server: LocalServer) -> None:
    """Copies, creates, deletions and uses of one name by several clients: each is done, or the name is not there."""
    odd: set[tuple[str, int, str]] = set()
    base = {"model": "w", "from": "plain", "stream": False}

    def repeat(path: str, bodies: Sequence[dict[str, Any]], method: str = "POST") -> None:
        with own_server.client() as client:
            for body in bodies:
                reply = client.request(method, path, json=body)
                # The base of a model that is not there is pulled, here from nowhere.
                if reply.status_code not in (200, 404) and "file does not exist" not in reply.text:
                    odd.add((path, reply.status_code, reply.text))

    work = [
        threading.Thread(target=repeat, args=arguments)
        for arguments in (
            ("/api/copy", [{"source": "plain", "destination": "w"}] * 150),
            ("/api/create", [{**base, "system": str(number)} for number in range(60)]),
            ("/api/delete", [{"model": "w"}] * 200, "DELETE"),
            ("/api/show", [{"model": "w"}] * 150),
            ("/api/create", [{**base, "from": "w", "model": "v"}] * 60),
        )
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert odd == set()


def test_what_is_wrong_with_the_disk_is_said_without_the_place_of_the_store(own_server: LocalServer) -> None:
    (own_server.registry.store.manifests.root / "hf.co").write_text("a file where a folder belongs")
    with own_server.client() as client:
        reply = client.post("/api/copy", json={"source": "plain", "destination": "hf.co/a/b"})
    assert reply.status_code == 500
    assert reply.json() == {"error": "the model store cannot be used: manifests/hf.co/a/b: Not a directory"}
