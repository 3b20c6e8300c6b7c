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
