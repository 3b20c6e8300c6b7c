"""A template that no conversation comes through is refused when the model is made, not when somebody asks it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, stocked
from tests.support.tiny import DATA


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    root = tmp_path_factory.mktemp("store")
    settings = Settings(models=str(root), spare_runner=False)
    with LocalServer(stocked(root), settings, SCRIPTED) as server, server.client() as client:
        yield client


def create(http: httpx.Client, chat_template: str | None = None, **fields: Any) -> str:
    """The error of a create from the files of a model whose Jinja template is this one, "" for success."""
    files = {path.name: path.read_bytes() for path in (DATA / "taught-llama").iterdir() if path.is_file()}
    if chat_template is not None:
        files["chat_template.jinja"] = chat_template.encode()
    digests = {}
    for name, content in files.items():
        digests[name] = f"sha256:{hashlib.sha256(content).hexdigest()}"
        http.post(f"/api/blobs/{digests[name]}", content=content).raise_for_status()
    reply = http.post("/api/create", json={"model": "made", "files": digests, **fields})
    return str(json.loads(reply.text.splitlines()[-1]).get("error", ""))


LOOP = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages | no_such_filter }}", ["cannot be read", "no_such_filter"]),
        (LOOP + "{{ no_such_function() }}", ["fails on this conversation", "no_such_function"]),
        ("{% for m in messages %}{{ m.content.items() }}{% endfor %}", ["fails on this conversation"]),
        ("{{ messages[7].content.strip() }}", ["fails on this conversation"]),
        ("{% for m in messages %}", ["cannot be read"]),
        ("{{ messages }}" * 800_000, ["longer than 262,144 characters"]),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", ["longer than"]),
    ],
)
def test_a_jinja_template_that_cannot_be_used_is_refused(http: httpx.Client, template: str, words: list[str]) -> None:
    error = create(http, template)
    assert error.startswith("the model's chat template ") and "set TEMPLATE in the Modelfile" in error
    assert all(word in error for word in words), error
    assert "made:latest" not in {model["name"] for model in http.get("/api/tags").json()["models"]}


def test_a_template_of_its_own_takes_the_place_of_a_bad_one(http: httpx.Client) -> None:
    assert create(http, "{{ messages | no_such_filter }}", template="{{ .Prompt }}") == ""
    http.request("DELETE", "/api/delete", json={"model": "made"}).raise_for_status()


@pytest.mark.parametrize(
    "template",
    [
        None,
        LOOP,
        "{{ bos_token + messages[0].content + eos_token }}",
        "{{ raise_exception('give me a source language') }}",
        "{% if not tools %}{{ raise_exception('tools, please') }}{% endif %}" + LOOP,
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
    ],
)
def test_one_that_works_or_wants_another_conversation_is_taken(http: httpx.Client, template: str | None) -> None:
    assert create(http, template) == ""
    http.request("DELETE", "/api/delete", json={"model": "made"}).raise_for_status()


@pytest.mark.parametrize(
    "template",
    [
        "{{ index .Messages 7 }}",
        "{{ range .Messages }}{{ .NoSuchField.Part }}{{ end }}",
        "{{ noSuchFunction .Prompt }}",
    ],
)
def test_a_go_template_that_fails_is_refused(http: httpx.Client, template: str) -> None:
    reply = http.post("/api/create", json={"model": "made", "from": "plain", "template": template, "stream": False})
    assert reply.json()["error"].startswith("template error: template: ")
