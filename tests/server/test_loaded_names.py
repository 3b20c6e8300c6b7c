"""/api/ps tells the name in use and the context in use, and the status what names share."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.local import LocalServer, eventually
from tests.server.test_request_headers import ASKS, internal


def ask(http: httpx.Client, model: str, **options: int) -> None:
    body = {"model": model, "prompt": "say Hi", "stream": False, "options": options}
    http.post("/api/generate", json=body).raise_for_status()


def listed(http: httpx.Client, model: str = "") -> list[str]:
    models = http.get("/api/ps").json()["models"]
    assert all(entry["name"] == entry["model"] for entry in models)
    return [entry["name"] for entry in models if entry["name"].startswith(model)]


def context(http: httpx.Client, model: str) -> int:
    (found,) = (entry for entry in http.get("/api/ps").json()["models"] if entry["name"] == f"{model}:latest")
    return int(found["context_length"])


def test_a_name_that_was_deleted_is_not_listed_and_the_one_in_use_is(own_server: LocalServer) -> None:
    with own_server.client() as http:
        http.post("/api/copy", json={"source": "plain", "destination": "copy"}).raise_for_status()
        ask(http, "copy")
        assert listed(http) == ["copy:latest"]
        http.request("DELETE", "/api/delete", json={"model": "copy"}).raise_for_status()
        assert listed(http) == ["plain:latest"], "another name of the loaded model"
        ask(http, "plain")
        assert listed(http) == ["plain:latest"]
        assert http.get("/api/omlx/status").json()["models"][0]["name"] == "plain:latest"
        assert http.get("/api/omlx/overview").json()["models"][0]["name"] == "plain:latest"


def test_of_several_names_the_one_used_last_is_listed(own_server: LocalServer) -> None:
    with own_server.client() as http:
        http.post("/api/copy", json={"source": "plain", "destination": "copy"}).raise_for_status()
        for name in ("plain", "copy", "plain"):
            ask(http, name)
            assert listed(http) == [f"{name}:latest"]
        (status,) = http.get("/api/omlx/status").json()["models"]
        assert (status["other_names"], status["same_weights"]) == (["copy:latest"], [])


def test_a_model_whose_last_name_was_deleted_leaves(own_server: LocalServer) -> None:
    with own_server.client() as http:
        ask(http, "plain")
        http.request("DELETE", "/api/delete", json={"model": "plain"}).raise_for_status()
        assert listed(http) == []


def test_models_of_the_same_weights_are_told_apart(own_server: LocalServer) -> None:
    with own_server.client() as http:
        for name in ("qwen3", "qwen3:plain"):
            ask(http, name)
        models = {entry["name"]: entry for entry in http.get("/api/omlx/status").json()["models"]}
        assert models["qwen3:latest"]["same_weights"] == ["qwen3:plain"]
        assert models["qwen3:plain"]["same_weights"] == ["qwen3:latest"]
        assert models["qwen3:plain"]["other_names"] == []


def test_the_context_of_ps_is_that_of_the_last_request(http: httpx.Client) -> None:
    ask(http, "thinker")
    default = context(http, "thinker")
    assert default > 256
    ask(http, "thinker", num_ctx=256)
    assert context(http, "thinker") == 256
    ask(http, "thinker", num_ctx=10**9)
    trained = http.post("/api/show", json={"model": "thinker"}).json()["model_info"]["llama.context_length"]
    assert context(http, "thinker") == trained, "never more than the model was trained for"
    http.post("/api/generate", json={"model": "thinker", "options": {"num_ctx": 128}}).raise_for_status()  # a load
    assert context(http, "thinker") == 128
    ask(http, "thinker")
    assert context(http, "thinker") == default


def test_while_several_clients_ask_the_context_of_ps_is_the_largest(http: httpx.Client) -> None:
    """Else a chat's small request hides the large context that an agent has, for as long as both run."""

    def begin(num_ctx: int) -> Any:
        body = {"model": "thinker", "prompt": "begin", "options": {"num_ctx": num_ctx}}
        return http.stream("POST", "/api/generate", json=body)

    with begin(512) as small:
        small_lines = small.iter_lines()
        next(small_lines)
        with begin(1024) as large:
            large_lines = large.iter_lines()  # closed with its last reference, and the request with it
            next(large_lines)
            assert context(http, "thinker") == 1024
            ask(http, "thinker", num_ctx=256)
            assert context(http, "thinker") == 1024
        assert eventually(lambda: context(http, "thinker") == 512)
    assert eventually(lambda: context(http, "thinker") == 256), "that of the last request"


@pytest.mark.parametrize("path", ASKS)
def test_a_header_asks_for_a_context_in_every_protocol(http: httpx.Client, path: str) -> None:
    reply = http.post(path, json=ASKS[path], headers={"X-OMLX-Num-Ctx": "512"})
    assert internal(reply.json())["limits"]["num_ctx"] == 512
    assert context(http, "plain") == 512
    assert "num_ctx" not in internal(http.post(path, json=ASKS[path]).json()).get("limits", {})
    for wrong in ("0", "-1", "many", "1e3", "99999999999", "²"):
        refused = http.post(path, json=ASKS[path], headers={"X-OMLX-Num-Ctx": wrong.encode()})
        assert refused.status_code == 400
        assert "X-OMLX-Num-Ctx must be a number of tokens above 0" in refused.text


def test_the_context_that_a_model_can_have_is_told_without_loading_it(own_server: LocalServer) -> None:
    with own_server.client() as http:
        told: dict[str, Any] = http.get("/api/omlx/context?model=plain").json()
        assert listed(http) == []
        trained = http.post("/api/show", json={"model": "plain"}).json()["model_info"]["llama.context_length"]
        assert told["max_num_ctx"] == trained
        ask(http, "plain")
        assert context(http, "plain") == told["num_ctx"]
        assert http.get("/api/omlx/context?model=absent").status_code == 404
        assert http.get("/api/omlx/context").status_code == 400
