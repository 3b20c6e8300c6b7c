"""What the Hugging Face cache and LM Studio have on a machine is found wherever it lies, GGUF files included."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omlx_registry import Registry
from omlx_registry.local_models import FoundModel, PassedOver, find

from tests.registry.tiny_gguf import make_pair
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    folder = tmp_path / ".lmstudio" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pair(tmp_path_factory.mktemp("gguf"), "llama")[1]


def place(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, target)


async def imported(registry: Registry) -> list[str]:
    return [line.status async for line in registry.imports.import_found()]


async def test_gguf_files_become_models_and_stay(studio: Path, gguf: Path, tmp_path: Path) -> None:
    place(gguf, studio / "org" / "Tiny-GGUF" / "Tiny-F32.gguf")
    place(gguf, studio / "org" / "Tiny-GGUF" / "Tiny-Q4_K_M.gguf")
    place(gguf, studio / "org" / "Tiny-GGUF" / "mmproj-F16.gguf")
    registry = Registry(tmp_path / "models", [])
    lines = await imported(registry)
    assert lines[-1] == "success"
    assert "hf.co/org/Tiny-GGUF:F32: converting model" in lines
    names = {"hf.co/org/Tiny-GGUF:F32", "hf.co/org/Tiny-GGUF:Q4_K_M"}
    assert {spec.name for spec in registry.list()} == names
    assert registry.resolve("hf.co/org/Tiny-GGUF:F32").capabilities[0] == "completion"
    assert len(list((studio / "org" / "Tiny-GGUF").iterdir())) == 3
    assert await imported(registry) == [*(f"{name} is already here" for name in sorted(names)), "success"]


async def test_what_cannot_be_taken_is_named_with_the_reason(studio: Path, gguf: Path, tmp_path: Path) -> None:
    (studio / "org" / "torch").mkdir(parents=True)
    (studio / "org" / "torch" / "config.json").write_text("{}")
    (studio / "org" / "torch" / "pytorch_model.bin").write_bytes(b"x")
    place(gguf, studio / "org" / "Part" / "Part-F32-00001-of-00002.gguf")
    place(gguf, studio / "org" / "Eyes" / "mmproj-F16.gguf")
    (studio / "org" / "Bad").mkdir()
    (studio / "org" / "Bad" / "Bad-F32.gguf").write_bytes(b"GGUF")
    lines = await imported(Registry(tmp_path / "models", []))
    assert "skipping org/torch: it has no weights as safetensors or GGUF" in lines
    assert "skipping org/Part/Part-F32: 1 of its 2 parts are there" in lines
    assert "skipping org/Eyes: its GGUF files only go with a model: projectors or drafts" in lines
    assert any(line.startswith("skipping hf.co/org/Bad:F32: Bad-F32.gguf is ") for line in lines), lines
    assert lines[-1] == "success"


def test_folders_may_have_blanks_and_any_depth(studio: Path, gguf: Path) -> None:
    shutil.copytree(tiny_model("llama"), studio / "My Models" / "a family" / "Tiny (v2)")
    place(gguf, studio / "alone" / "Tiny one-Q8_0.gguf")
    place(gguf, studio / "Loose file-Q4_0.gguf")
    shutil.copytree(tiny_model("llama"), studio / ".hidden" / "org" / "tiny")
    found = find(studio)
    assert not [it for it in found if isinstance(it, PassedOver)]
    names = {it.name.short: it.gguf is not None for it in found if isinstance(it, FoundModel)}
    assert names == {
        "hf.co/My-Models/a-family-Tiny-v2:latest": False,
        "hf.co/local/alone:Q8_0": True,
        "hf.co/local/Loose-file-Q4_0:Q4_0": True,
    }


async def test_ggufs_of_the_hugging_face_cache_are_found(studio: Path, gguf: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hf" / "hub" / "models--org--Cached-GGUF"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    place(gguf, cache / "snapshots" / "abc" / "Cached-F32.gguf")
    registry = Registry(tmp_path / "models", [])
    await imported(registry)
    assert [spec.name for spec in registry.list()] == ["hf.co/org/Cached-GGUF:F32"]
