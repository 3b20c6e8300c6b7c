"""Push and pull are inverse: a pulled copy is the model that was pushed, with all that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from omlx_registry import CreateSpec, Registry
from omlx_registry.hub.source import HubSource
from omlx_registry.modelfile import interpret, parse_modelfile

from tests.registry.test_lora import peft_adapter, upload
from tests.support.hub import FakeHub
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
NAME = "hf.co/me/pushed"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    (tmp_path / "hub").mkdir()
    with FakeHub(tmp_path / "hub") as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.env.items():
            patch.setenv(name, value)
        patch.setenv("HF_TOKEN", "hf_secret")
        yield hub


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models", [HubSource(attempts=3)])
    registry.add_model_folder("base", tiny_model("llama"))
    return registry


async def make(registry: Registry, **fields: object) -> None:
    request = CreateSpec(model=NAME, source="base", **fields)  # type: ignore[arg-type]
    async for _ in registry.create(request):
        pass


async def copy_of(registry: Registry, other: Path) -> Registry:
    """Push the model, and pull it into another store."""
    async for _ in registry.push(NAME):
        pass
    pulled = Registry(other, [HubSource(attempts=3)])
    async for _ in pulled.pull(NAME):
        pass
    return pulled


async def test_texts_come_back_as_they_were(hub: FakeHub, registry: Registry, tmp_path: Path) -> None:
    await make(
        registry,
        template="{{ .System }} {{ .Prompt }}",
        system='Answer in """rhymes""".',
        parameters={"temperature": 0.25, "stop": ["<a>", "<b>"], "an odd name": 7},
        messages=[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}],
        license=["First licence", "Second licence"],
        renderer="qwen3-coder",
        parser="qwen3-coder",
        requires="0.14.0",
    )
    before, after = registry.resolve(NAME), (await copy_of(registry, tmp_path / "other")).resolve(NAME)
    for field in (
        "template", "chat_template", "system", "parameters", "messages", "licenses", "renderer", "parser", "requires",
        "capabilities", "fingerprint", "context_length", "parameter_count",
    ):  # fmt: skip
        assert getattr(after, field) == getattr(before, field), field
    assert after.details.quantization_level == before.details.quantization_level
    assert after.source.startswith("hf:me/pushed@")
    modelfile = interpret(parse_modelfile((hub.root / "me" / "pushed" / "Modelfile").read_text()))
    assert modelfile.parameters == {"temperature": 0.25, "stop": ["<a>", "<b>"]}


async def test_an_adapter_is_not_lost(hub: FakeHub, registry: Registry, tmp_path: Path) -> None:
    peft_adapter(tmp_path / "adapter", tiny_model("llama"))
    await make(registry, adapters=upload(registry, tmp_path / "adapter"))
    before, after = registry.resolve(NAME), (await copy_of(registry, tmp_path / "other")).resolve(NAME)
    assert before.adapter_path is not None
    assert after.adapter_path is not None
    assert after.fingerprint == before.fingerprint
    for path in Path(before.adapter_path).iterdir():
        assert (Path(after.adapter_path) / path.name).read_bytes() == path.read_bytes()


async def test_the_progress_counts_bytes(hub: FakeHub, registry: Registry) -> None:
    await make(registry)
    lines = [line async for line in registry.push(NAME) if line.status == "pushing model"]
    done = [line.completed for line in lines]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == lines[-1].total > 700_000
    assert len({count for count in done if 0 < count < lines[-1].total}) > 3
