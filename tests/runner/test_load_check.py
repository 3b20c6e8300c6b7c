"""A new model is opened as a runner would open it before it is listed: whatever it can be asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from omlx_registry import CreateError, Registry, RegistryError
from omlx_registry.hub.source import HubSource
from safetensors.numpy import load_file, save_file

from tests.registry.test_acceptance import Change, config, create, remove, uploaded, write
from tests.support.hub import FakeHub
from tests.support.tiny import DATA, tiny_model
from tests.support.tiny_encoder import make_encoder
from tests.support.tiny_vlm import tiny_vlm
from tests.support.tiny_whisper import make_whisper

pytestmark = pytest.mark.anyio
CHECKER = "omlx.runner.load_check"


def vlm(kind: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(tiny_vlm(kind), folder)


def text(kind: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copytree(tiny_model(kind), folder)


def encoder(kind: str, *, ranks: bool = False) -> Callable[[Path], object]:
    return lambda folder: make_encoder(folder, kind, ranks=ranks, pooling={"pooling_mode": "cls"})


def without_tensor(part: str) -> Change:
    """The weights without the first tensor whose name has this part."""

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        del tensors[next(name for name in sorted(tensors) if part in name)]
        save_file(tensors, path, {"format": "mlx"})

    return change


LOADED = {
    "taught": lambda folder: shutil.copytree(DATA / "taught-qwen3", folder),
    "qwen3_vl": vlm("qwen3_vl"),
    "gemma3": vlm("gemma3"),
    "smolvlm": vlm("smolvlm"),
    "bert": encoder("bert"),
    "modernbert": encoder("modernbert"),
    "xlm-roberta": encoder("xlm-roberta"),
    "qwen3 embedder": encoder("qwen3"),
    "reranker": encoder("bert", ranks=True),
    "whisper": make_whisper,
}
REFUSED: list[tuple[Callable[[Path], object], Change, str]] = [
    (vlm("qwen3_vl"), config(vision_config__intermediate_size=96), "qwen3_vl model .* does not load: .*[Ss]hape"),
    (vlm("qwen3_vl"), without_tensor("vision_tower.blocks.1"), "qwen3_vl model .* does not load: .*vision_tower"),
    (vlm("gemma3"), remove("preprocessor_config.json"), "gemma3 model .* does not load: Can't load image processor"),
    (vlm("gemma3"), without_tensor("language_model.model.layers.1"), "gemma3 model .* does not load: .*layers.1"),
    (encoder("bert"), without_tensor("encoder.layer"), "bert model .* does not load: .*encoder"),
    (encoder("bert"), config(intermediate_size=96), "bert model .* does not load: .*shape"),
    (encoder("bert"), config(hidden_act="swish"), "activation 'swish' is not supported"),
    (encoder("bert"), write("1_Pooling/config.json", b'{"pooling_mode": "odd"}'), r"pooling \(odd\) is not supported"),
    (encoder("bert", ranks=True), without_tensor("encoder.layer"), "bert model .* does not load: .*encoder"),
    (make_whisper, without_tensor("encoder.blocks"), "whisper model .* does not load: .*encoder"),
    (text("qwen3"), config(model_type="unheard_of"), "unheard_of model .* does not load: Model type unheard_of"),
    (text("qwen3"), write("tokenizer.json", b'{"model": {"type": "Odd"}}'), "qwen3 model .* does not load: .*"),
]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models", [], load_checker=CHECKER)


@pytest.mark.parametrize("kind", LOADED)
async def test_what_a_runner_can_open_is_taken(kind: str, registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    LOADED[kind](folder)
    assert await create(registry, model="guest", files=uploaded(registry, folder)) == "success"


@pytest.mark.parametrize(("make", "change", "sentence"), REFUSED)
async def test_what_a_runner_cannot_open_is_refused(
    make: Callable[[Path], object], change: Change, sentence: str, registry: Registry, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    make(folder)
    change(folder)
    with pytest.raises(CreateError, match=sentence) as caught:
        await create(registry, model="guest", files=uploaded(registry, folder))
    assert caught.value.status == 400
    assert "/tmp" not in caught.value.message and "omlx-model" not in caught.value.message
    assert registry.list() == []


async def test_the_chat_template_of_a_pulled_model_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was made here may have a TEMPLATE in its place; what is pulled has nothing else."""
    root = tmp_path / "hub"
    shutil.copytree(DATA / "taught-qwen3", root / "org" / "good")
    bad = root / "org" / "bad"
    shutil.copytree(DATA / "taught-qwen3", bad)
    (bad / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content | nobody }}{% endfor %}")
    with FakeHub(root) as hub:
        for name, value in hub.env.items():
            monkeypatch.setenv(name, value)
        registry = Registry(tmp_path / "models", [HubSource(attempts=1)], load_checker=CHECKER)
        assert [line.status async for line in registry.pull("hf.co/org/good")][-1] == "success"
        with pytest.raises(RegistryError, match="nobody"):
            async for _ in registry.pull("hf.co/org/bad"):
                pass
    assert [spec.name for spec in registry.list()] == ["hf.co/org/good:latest"]


async def test_a_model_without_its_pictures_settings_is_a_text_model(registry: Registry, tmp_path: Path) -> None:
    """As it is when it is loaded."""
    folder = tmp_path / "folder"
    shutil.copytree(tiny_vlm("gemma3"), folder)
    remove("preprocessor_config.json", "processor_config.json")(folder)
    assert await create(registry, model="guest", files=uploaded(registry, folder)) == "success"
