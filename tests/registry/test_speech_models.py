"""Whisper repositories are pulled as they are published; what oMLX cannot do with them is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from omlx_registry import CreateError, Registry, RegistryError
from omlx_registry.hub.source import HubSource
from omlx_registry.quantize_model import quantize_model

from tests.support.hub import FakeHub
from tests.support.tiny_whisper import make_whisper

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    make_whisper(root / "org" / "mlx", "mlx", multilingual=False)
    make_whisper(root / "org" / "hf", "huggingface", multilingual=False)
    wrong = make_whisper(root / "org" / "wrong", "mlx", multilingual=False)
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "n_text_ctx": 10**9}))
    with FakeHub(root) as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.env.items():
            patch.setenv(name, value)
        patch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.mark.parametrize("layout", ["mlx", "hf"])
async def test_both_layouts_are_pulled(hub: FakeHub, tmp_path: Path, layout: str) -> None:
    registry = Registry(tmp_path, [HubSource(attempts=3)])
    assert [line.status async for line in registry.pull(f"hf.co/org/{layout}")][-1] == "success"
    spec = registry.resolve(f"hf.co/org/{layout}")
    assert spec.capabilities == ["transcription", "audio"]
    assert (spec.details.family, spec.context_length, spec.embedding_length) == ("whisper", 20, 16)


async def test_a_network_beyond_all_bounds_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    registry = Registry(tmp_path, [HubSource(attempts=3)])
    with pytest.raises(RegistryError, match="n_text_ctx of a Whisper model must be a number from 1 to 4,096"):
        async for _ in registry.pull("hf.co/org/wrong"):
            pass
    assert registry.list() == []


def test_quantizing_one_is_refused(tmp_path: Path) -> None:
    source = make_whisper(tmp_path / "source", multilingual=False)
    with pytest.raises(CreateError, match="speech models are not quantized here"):
        quantize_model(source, tmp_path / "made", "q8_0", lambda *report: None)
