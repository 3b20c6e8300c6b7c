"""An adapter changes the model exactly as its authors meant, or is refused with the reason."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omlx_registry import CreateError, CreateSpec, Registry
from omlx_registry.lora import plan_conversion
from omlx_registry.weights import TensorHeader
from safetensors.numpy import load_file, save_file

from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
RANK, ALPHA = 4, 6.0
MODULES = ("self_attn.q_proj", "mlp.down_proj")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models", [])
    registry.add_model_folder("base", tiny_model("llama"))
    return registry


def peft_adapter(folder: Path, base: Path, **config: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A random PEFT adapter for two modules of every layer; its matrices (A, B) by weight name."""
    weights = load_file(base / "model.safetensors")
    random = np.random.default_rng(1)
    tensors: dict[str, np.ndarray] = {}
    pairs = {}
    for name, weight in weights.items():
        if not name.endswith(tuple(f"{module}.weight" for module in MODULES)):
            continue
        a = random.normal(0, 0.2, (RANK, weight.shape[1])).astype(np.float32)
        b = random.normal(0, 0.2, (weight.shape[0], RANK)).astype(np.float32)
        stem = "base_model.model." + name.removesuffix(".weight")
        tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        pairs[name] = (a, b)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj", "down_proj"]} | config
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return pairs


def upload(registry: Registry, folder: Path) -> dict[str, str]:
    digests = {}
    for path in folder.iterdir():
        digests[path.name] = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        with registry.blob_writer(digests[path.name]) as writer:
            writer.write(path.read_bytes())
    return digests


async def create(registry: Registry, **fields: Any) -> list[str]:
    return [line.status async for line in registry.create(CreateSpec(**fields))]


def logits(folder: str, adapter: str | None = None) -> Any:
    import mlx.core as mx
    from mlx_lm import load

    model = load(folder, adapter_path=adapter)[0]
    return np.array(model(mx.array([[5, 9, 33, 71]])))


@pytest.mark.parametrize(("config", "scale"), [({}, ALPHA / RANK), ({"use_rslora": True}, ALPHA / RANK**0.5)])
async def test_a_peft_adapter_adds_its_product_to_the_weights(
    registry: Registry, tmp_path: Path, config: dict[str, Any], scale: float
) -> None:
    base = registry.resolve("base")
    pairs = peft_adapter(tmp_path / "peft", Path(base.path), **config)
    lines = await create(registry, model="tuned", source="base", adapters=upload(registry, tmp_path / "peft"))
    assert lines[0] == "converting adapter"
    tuned = registry.resolve("tuned")
    assert tuned.adapter_path is not None and tuned.fingerprint != base.fingerprint
    assert tuned.details.parameter_size == base.details.parameter_size

    merged = tmp_path / "merged"
    merged.mkdir()
    for path in Path(base.path).iterdir():
        (merged / path.name).write_bytes(path.read_bytes())
    weights = load_file(merged / "model.safetensors")
    for name, (a, b) in pairs.items():
        weights[name] = (weights[name] + scale * (b @ a)).astype(weights[name].dtype)
    save_file(weights, merged / "model.safetensors", {"format": "mlx"})

    expected = logits(str(merged))
    np.testing.assert_allclose(logits(tuned.path, tuned.adapter_path), expected, rtol=1e-3, atol=1e-4)
    assert np.abs(logits(base.path) - expected).max() > 0.01


async def test_an_mlx_adapter_is_taken_as_it_is_and_inherited(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "mlx"
    folder.mkdir()
    save_file({"model.layers.1.self_attn.q_proj.lora_a": np.ones((64, 2), np.float32)}, folder / "adapters.safetensors")
    told = {"num_layers": 1, "lora_parameters": {"rank": 2, "scale": 20.0, "dropout": 0.0}}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    await create(registry, model="tuned", source="base", adapters=upload(registry, folder))
    await create(registry, model="grandchild", source="tuned", system="hi")
    spec = registry.resolve("grandchild")
    assert spec.adapter_path is not None
    for name in ("adapters.safetensors", "adapter_config.json"):
        assert (Path(spec.adapter_path) / name).read_bytes() == (folder / name).read_bytes()
    assert spec.fingerprint == registry.resolve("tuned").fingerprint
    with pytest.raises(CreateError, match="a model with an adapter cannot be quantized"):
        await create(registry, model="q", source="tuned", quantize="q4_0")


@pytest.mark.parametrize(
    ("module", "a", "b", "rank", "reason"),
    [
        ("model.layers.7.self_attn.q_proj", (64, 2), (2, 128), 2, "it changes layer 7, but this one has 2 layers"),
        ("model.layers.1.self_attn.q_proj", (65, 2), (2, 128), 2, "lora_a has width 65, but this one needs 64"),
        ("model.layers.1.self_attn.q_proj", (64, 2), (2, 96), 2, "lora_b has width 96, but this one needs 128"),
        ("model.layers.1.self_attn.q_proj", (64, 2), (2, 128), 10**9, "whole number from 1 to 8,192"),
        ("model.layers.1.self_attn.q_proj", (64, 2), (2, 128), 2.0, "whole number from 1 to 8,192"),
        ("model.layers.1.self_attn.q_proj", (64, 2), (2, 128), 8000, "states rank 8,000, but .* has rank 2"),
        ("model.layers.1.self_attn.q_proj", (64, 2), (2, 128), 2, None),
        ("model.embed_tokens", (640, 2), (2, 64), 2, None),
        ("model.embed_tokens", (64, 2), (2, 640), 2, None),
        ("model.layers.1.something_unknown", (5, 2), (2, 5), 2, None),
    ],
)
async def test_an_adapter_of_another_model_is_refused(
    registry: Registry, tmp_path: Path, module: str, a: tuple[int, int], b: tuple[int, int], rank: float,
    reason: str | None,
) -> None:  # fmt: skip
    folder = tmp_path / "mlx"
    folder.mkdir()
    matrices = {f"{module}.lora_a": np.ones(a, np.float32), f"{module}.lora_b": np.ones(b, np.float32)}
    save_file(matrices, folder / "adapters.safetensors")
    told = {"num_layers": 16, "lora_parameters": {"rank": rank, "scale": 20.0, "dropout": 0.0}}
    (folder / "adapter_config.json").write_text(json.dumps(told))
    fields = {"model": "tuned", "source": "base", "adapters": upload(registry, folder)}
    if reason is None:
        assert (await create(registry, **fields))[-1] == "success"
        return
    with pytest.raises(CreateError, match=reason):
        await create(registry, **fields)
    assert [spec.name for spec in registry.list()] == ["base:latest"]


A, B = TensorHeader("base_model.model.model.layers.0.q.lora_A.weight", "F32", (4, 8)), TensorHeader(
    "base_model.model.model.layers.0.q.lora_B.weight", "F32", (8, 4)
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "tensors", "reason"),
    [
        ({"peft_type": "IA3"}, [A, B], "adapters of type IA3 are not supported"),
        ({"use_dora": True}, [A, B], "adapters of type DoRA are not supported"),
        ({"rank_pattern": {"q": 8}}, [A, B], "different ranks"),
        ({}, [A], "lacks one of the two matrices"),
        ({}, [], "lacks one of the two matrices"),
        ({"lora_alpha": "x"}, [A, B], "lora_alpha"),
        ({}, [A, B, TensorHeader("base_model.model.lm_head.weight", "F32", (8, 8))],
         r"changes base_model\.model\.lm_head"),
        ({}, [A, B, TensorHeader("base_model.model.model.layers.1.q.lora_A.weight", "F32", (2, 8)),
              TensorHeader("base_model.model.model.layers.1.q.lora_B.weight", "F32", (8, 2))], "different ranks"),
    ],
)  # fmt: skip
def test_what_mlx_cannot_express_is_refused(config: dict[str, Any], tensors: list[TensorHeader], reason: str) -> None:
    with pytest.raises(CreateError, match=reason):
        plan_conversion(config, tensors, 2)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["adapter.gguf"], "supplied file was not in GGUF format"),
        (["adapter_config.json"], "no safetensors adapter"),
        (["adapter_model.safetensors"], r"adapter_config\.json is missing"),
        (["a.safetensors", "b.safetensors", "adapter_config.json"], "only one adapter"),
    ],
)
async def test_an_incomplete_adapter_is_refused(registry: Registry, files: list[str], reason: str) -> None:
    digest = f"sha256:{hashlib.sha256(b'{}').hexdigest()}"
    with registry.blob_writer(digest) as writer:
        writer.write(b"{}")
    with pytest.raises(CreateError, match=reason):
        await create(registry, model="tuned", source="base", adapters=dict.fromkeys(files, digest))
    assert [spec.name for spec in registry.list()] == ["base:latest"]


async def test_a_draft_model_gets_a_folder_of_its_own(registry: Registry, tmp_path: Path) -> None:
    draft = {path.name: path for path in tiny_model("qwen3").iterdir() if path.is_file()}
    digests = {}
    for name, path in draft.items():
        digests[name] = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        with registry.blob_writer(digests[name]) as writer:
            writer.write(path.read_bytes())
    await create(registry, model="fast", source="base", draft_files=digests)
    spec = registry.resolve("fast")
    assert spec.draft_path is not None
    assert json.loads((Path(spec.draft_path) / "config.json").read_text())["model_type"] == "qwen3"
    assert json.loads((Path(spec.path) / "config.json").read_text())["model_type"] == "llama"
    assert spec.parameter_count == registry.resolve("base").parameter_count
    await create(registry, model="fast8", source="base", draft_files=digests, draft_quantize="q8_0")
    config = json.loads((Path(str(registry.resolve("fast8").draft_path)) / "config.json").read_text())
    assert config["quantization"]["bits"] == 8
