"""Pulls of GGUF repositories, and repositories that are refused before their weights are fetched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from omlx_registry import Progress, Registry
from omlx_registry.errors import RegistryError
from omlx_registry.hub.source import HubSource
from safetensors.numpy import save_file

from tests.registry.tiny_gguf import make_pair, write_gguf
from tests.support.hub import FakeHub
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root, made = tmp_path_factory.mktemp("hub"), tmp_path_factory.mktemp("gguf")
    _, whole = make_pair(made / "whole", "llama")
    _, first = make_pair(made / "split", "llama", split=6)
    one, parts = root / "org" / "Tiny-GGUF", root / "org" / "Split-GGUF"
    one.mkdir(parents=True)
    parts.mkdir()
    shutil.copy(whole, one / "Tiny-F32.gguf")
    (one / "mtp-F32.gguf").write_bytes(b"no model")
    (one / "template").write_text("{{ .System }}|{{ .Prompt }}")
    (one / "system").write_text("Answer in rhymes.")
    (one / "params").write_text('{"temperature": 0.3, "stop": ["<end>"]}')
    for part in first.parent.glob("*.gguf"):
        shutil.copy(part, parts / part.name.replace("llama", "Split-F32"))
    with FakeHub(root) as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.env.items():
            patch.setenv(name, value)
        patch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture
def hub(running: FakeHub) -> Iterator[FakeHub]:
    running.reset()
    yield running
    running.reset()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models", [HubSource(attempts=3)])


async def pull(registry: Registry, name: str) -> list[Progress]:
    return [line async for line in registry.pull(name)]


async def refused(registry: Registry, name: str) -> str:
    """The sentence of a refused pull, which leaves nothing behind."""
    with pytest.raises(RegistryError) as caught:
        await pull(registry, name)
    assert registry.list() == []
    assert [path.name for path in registry.store.blobs.folder.glob("*")] == []
    return caught.value.message


async def test_a_gguf_brings_the_texts_of_its_repository(hub: FakeHub, registry: Registry) -> None:
    await pull(registry, "hf.co/org/Tiny-GGUF:f32")
    spec = registry.resolve("hf.co/org/Tiny-GGUF:f32")
    assert spec.template == "{{ .System }}|{{ .Prompt }}"
    assert spec.system == "Answer in rhymes."
    assert spec.parameters == {"temperature": 0.3, "stop": ["<end>"]}
    assert "mtp-F32.gguf" not in hub.requests


async def test_a_split_gguf_is_the_same_model_as_a_whole_one(hub: FakeHub, registry: Registry) -> None:
    await pull(registry, "hf.co/org/Tiny-GGUF")
    await pull(registry, "hf.co/org/Split-GGUF")
    assert len([name for name in hub.requests if name.startswith("Split-F32-0000")]) > 2
    whole, split = registry.resolve("hf.co/org/Tiny-GGUF"), registry.resolve("hf.co/org/Split-GGUF")
    assert split.fingerprint == whole.fingerprint
    # The GGUF files themselves are not kept.
    assert not [path for path in registry.store.blobs.folder.iterdir() if path.read_bytes()[:4] == b"GGUF"]


async def test_an_unknown_kind_is_refused_with_those_there_are(hub: FakeHub, registry: Registry) -> None:
    assert "it has F32" in await refused(registry, "hf.co/org/Tiny-GGUF:Q4_K_M")


def make_repository(hub: FakeHub, name: str, config: dict[str, object], drop: str = "", rows: int = 0) -> None:
    """A copy of the tiny model with other settings; `rows`: so many megabytes of other weights instead."""
    folder = hub.root / "org" / name
    shutil.copytree(tiny_model("llama"), folder, dirs_exist_ok=True)
    settings = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(settings))
    if drop:
        (folder / drop).unlink()
    if rows:
        save_file({"model.embed_tokens.weight": np.zeros((rows, 262_144), np.float32)}, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("unknown", {"model_type": "frobnicator"}, "architecture 'frobnicator', which mlx-lm and mlx-vlm do not know"),
        ("bnb", {"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized with bitsandbytes"),
    ],
)
async def test_what_the_configuration_tells_is_refused_without_the_weights(
    hub: FakeHub, registry: Registry, name: str, config: dict[str, object], words: str
) -> None:
    make_repository(hub, name, config)
    assert words in await refused(registry, f"hf.co/org/{name}")
    assert hub.sent[WEIGHTS] == 0


@pytest.mark.parametrize(
    ("name", "config", "drop", "words"),
    [
        ("layers", {"num_hidden_layers": 100_000}, "", "num_hidden_layers is 100,000"),
        ("mute", {}, "tokenizer.json", "no tokenizer"),
    ],
)
async def test_what_the_headers_tell_is_refused_without_the_weights(
    hub: FakeHub, registry: Registry, name: str, config: dict[str, object], drop: str, words: str
) -> None:
    make_repository(hub, name, config, drop, rows=40)
    assert words in await refused(registry, f"hf.co/org/{name}")
    assert hub.sent[WEIGHTS] < 1 << 20


async def test_a_gguf_that_cannot_be_imported_is_refused_by_its_header(hub: FakeHub, registry: Registry) -> None:
    source, folder = hub.root / "org" / "Tiny-GGUF" / "Tiny-F32.gguf", hub.root / "org" / "Unlike-GGUF"
    folder.mkdir(exist_ok=True)
    data = source.read_bytes().replace(b"llama", b"llamo")
    (folder / "Odd-F32.gguf").write_bytes(data + bytes(40 << 20))
    assert "llamo" in await refused(registry, "hf.co/org/Unlike-GGUF")
    assert hub.sent["Odd-F32.gguf"] <= 8 << 20


async def test_a_refusal_after_the_weights_came_frees_them(hub: FakeHub, registry: Registry) -> None:
    make_repository(hub, "small", {"num_hidden_layers": 100_000})
    assert "num_hidden_layers is 100,000" in await refused(registry, "hf.co/org/small")
    assert hub.sent[WEIGHTS] > 0


@pytest.mark.parametrize(
    ("file", "words"),
    [("adapter_config.json", "a LoRA adapter and no model"), ("pytorch_model.bin", "weights are in pytorch_model.bin")],
)
async def test_what_is_no_model_is_named(hub: FakeHub, registry: Registry, file: str, words: str) -> None:
    folder = hub.root / "org" / file.partition(".")[0]
    folder.mkdir(exist_ok=True)
    (folder / file).write_text("{}")
    assert words in await refused(registry, f"hf.co/org/{folder.name}")


async def test_a_gguf_that_becomes_no_model_that_loads_is_refused(
    hub: FakeHub, registry: Registry, tmp_path: Path
) -> None:
    """The widths that its metadata states are not those of its weights."""
    folder = hub.root / "org" / "Misfit-GGUF"
    folder.mkdir(parents=True)
    source = Path(shutil.copytree(tiny_model("llama"), tmp_path / "source"))
    settings = json.loads((source / "config.json").read_text()) | {"intermediate_size": 96}
    (source / "config.json").write_text(json.dumps(settings))
    write_gguf(folder / "Odd-F32.gguf", source, lambda name: "F32", {})
    message = await refused(registry, "hf.co/org/Misfit-GGUF")
    assert message.startswith("the llama model of these weights and config.json does not load: Expected shape")
