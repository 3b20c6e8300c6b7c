"""Models of an Ollama move in: all that can be converted, under their names, and Ollama's own files stay untouched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter
from omlx_registry import CreateSpec, ImportSpec, ImportStep, Registry
from omlx_registry.errors import CreateError, PullError
from omlx_registry.ollama import importer
from omlx_registry.spec import Progress
from safetensors.numpy import load_file, save

from tests.registry.tiny_gguf import make_pair
from tests.support.ollama_store import OllamaFolder
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio

TEMPLATE = "{{ .System }} {{ .Prompt }}"
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 32, "num_attention_heads": 8}
RANK, ALPHA = 4, 6.0


def q4_k_m(name: str) -> str:
    """The mixture that such files have."""
    return "Q6_K" if "ffn_down" in name or "attn_v" in name or "token_embd" in name else "Q4_K"


KINDS = {"q4_0": "Q4_0", "q6_k": "Q6_K", "q8_0": "Q8_0", "f16": "F16"}


def gguf(folder: Path, kind: Any, family: str = "llama", **changes: Any) -> bytes:
    folder.mkdir(parents=True)
    _, path = make_pair(folder, family, kind if callable(kind) else lambda name: kind, **(WIDE | changes))
    return path.read_bytes()


def lora(path: Path, base: Path, arch: str = "llama") -> dict[str, np.ndarray]:
    """A GGUF adapter for q and down of every layer, as llama.cpp writes it; for each weight of `base` what it adds."""
    config = json.loads((base / "config.json").read_text())
    random = np.random.default_rng(2)
    writer = GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_key_value("adapter.lora.alpha", ALPHA, GGUFValueType.FLOAT32)
    added = {}
    for name, weight in load_file(base / "model.safetensors").items():
        part = {"q_proj.weight": "attn_q", "down_proj.weight": "ffn_down"}.get(".".join(name.split(".")[-2:]))
        if part is None:
            continue
        a = random.normal(0, 0.2, (RANK, weight.shape[1])).astype(np.float32)
        b = random.normal(0, 0.2, (weight.shape[0], RANK)).astype(np.float32)
        added[name] = ALPHA / RANK * (b @ a)
        if part == "attn_q":
            heads = config["num_attention_heads"]
            b = b.reshape(heads, 2, -1, RANK).swapaxes(1, 2).reshape(b.shape)
        stem = f"blk.{name.split('.')[2]}.{part}.weight"
        writer.add_tensor(f"{stem}.lora_a", a)
        writer.add_tensor(f"{stem}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return added


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """GGUF files by the name of the model that gets them; a split one has several."""
    root = tmp_path_factory.mktemp("gguf")
    found = {name: [gguf(root / name, kind)] for name, kind in KINDS.items()}
    found["q4_k_m"] = [gguf(root / "q4_k_m", q4_k_m)]
    found["mxfp4"] = [gguf(root / "mxfp4", "MXFP4", "llama")]
    (root / "split").mkdir()
    make_pair(root / "split", "llama", lambda name: "Q8_0", split=8)
    found["split"] = [path.read_bytes() for path in sorted((root / "split").glob("*-of-*.gguf"))]
    assert len(found["split"]) > 1
    (root / "tuned").mkdir()
    base, path = make_pair(root / "tuned", "llama", lambda name: "F16")
    lora(root / "adapter.gguf", base)
    found["tuned"] = [path.read_bytes(), (root / "adapter.gguf").read_bytes()]
    return found


@pytest.fixture
def ollama(tmp_path: Path, files: dict[str, list[bytes]]) -> OllamaFolder:
    """Ten models: eight that run, one with a broken layer and one whose layer is gone."""
    folder = OllamaFolder(tmp_path / "ollama")
    texts = [
        ("template", TEMPLATE.encode()),
        ("system", b"Be brief."),
        ("params", json.dumps({"temperature": 0.5, "stop": ["END"]}).encode()),
        ("messages", json.dumps([{"role": "user", "content": "hi"}]).encode()),
        ("license", b"licence one"),
        ("license", b"licence two"),
    ]
    for name in (*KINDS, "q4_k_m", "mxfp4"):
        extra = [("projector", b"GGUF of an encoder")] if name == "f16" else []
        folder.add(f"{name}:1b", [("model", files[name][0]), *extra, *texts])
    folder.add("split:1b", [("model", part) for part in files["split"]])
    folder.add("someone/tuned:1b", [("model", files["tuned"][0]), ("adapter", files["tuned"][1])])
    (digest,) = folder.add("broken:1b", [("model", files["q8_0"][0] + b"more")])
    data = bytearray(folder.path(digest).read_bytes())
    data[-100] ^= 1
    folder.path(digest).write_bytes(data)
    (digest,) = folder.add("dangling:1b", [("model", files["q8_0"][0] + b"gone")])
    folder.path(digest).unlink()
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models", [])


async def run(registry: Registry, ollama: OllamaFolder, **request: Any) -> list[ImportStep]:
    return [step async for step in registry.imports.import_ollama(ImportSpec(**request), str(ollama.root))]


def outcomes(steps: list[ImportStep]) -> dict[str, str]:
    return {step.model: step.outcome for step in steps if step.outcome}


def logits(folder: str, adapter: str | None = None) -> Any:
    import mlx.core as mx
    from mlx_lm import load

    return np.array(load(folder, adapter_path=adapter)[0](mx.array([[5, 9, 33, 71]])).astype(mx.float32))


RUN = {"f16:1b", "mxfp4:1b", "q4_0:1b", "q4_k_m:1b", "q6_k:1b", "q8_0:1b", "split:1b", "someone/tuned:1b"}


async def test_a_store_of_ten_models_moves_in(ollama: OllamaFolder, registry: Registry) -> None:
    before = ollama.state()
    steps = await run(registry, ollama)
    assert steps[-1].status == "success"
    found = outcomes(steps)
    assert {name for name, outcome in found.items() if outcome == "imported"} == RUN
    refused = {step.model: step.status for step in steps if step.outcome == "refused"}
    assert set(refused) == {"broken:1b", "dangling:1b"}
    assert "is damaged: restore it with `ollama rm` and `ollama pull`" in refused["broken:1b"]
    assert "is missing from Ollama's store: restore it with `ollama pull`" in refused["dangling:1b"]
    assert any("f16:1b: its encoder for images cannot be converted" in step.status for step in steps)
    assert {spec.name for spec in registry.list()} == RUN
    for spec in registry.list():
        spec = registry.resolve(spec.name)
        assert np.isfinite(logits(spec.path, spec.adapter_path)).all(), spec.name
    spec = registry.resolve("q8_0:1b")
    assert (spec.template, spec.system, spec.parameters) == (
        TEMPLATE,
        "Be brief.",
        {"temperature": 0.5, "stop": ["END"]},
    )
    assert spec.messages == [{"role": "user", "content": "hi"}]
    assert spec.licenses == ["licence one", "licence two"]
    assert spec.details.quantization_level == "Q8_0"
    assert ollama.state() == before

    again = await run(registry, ollama)
    assert {name for name, outcome in outcomes(again).items() if outcome == "present"} == RUN
    assert not any(step.total for step in again if step.model in RUN), "a second import does no work"
    assert registry.prune(now=True).removed == 0, "nothing is left over"


async def test_an_adapter_adds_its_product(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "base").mkdir()
    base, path = make_pair(tmp_path / "base", "llama", lambda name: "F32")
    added = lora(tmp_path / "adapter.gguf", base)
    folder = OllamaFolder(tmp_path / "ollama")
    folder.add("tuned:1b", [("model", path.read_bytes()), ("adapter", (tmp_path / "adapter.gguf").read_bytes())])
    assert outcomes(await run(registry, folder)) == {"tuned:1b": "imported"}
    tuned = registry.resolve("tuned:1b")
    weights = load_file(Path(tuned.path) / "model.safetensors")
    for name, values in added.items():
        weights[name] = weights[name] + values
    merged = tmp_path / "merged"
    merged.mkdir()
    for file in Path(tuned.path).glob("*.json"):
        (merged / file.name).write_bytes(file.read_bytes())
    (merged / "model.safetensors").write_bytes(save(weights, {"format": "mlx"}))
    expected = logits(str(merged))
    np.testing.assert_allclose(logits(tuned.path, tuned.adapter_path), expected, rtol=1e-3, atol=1e-4)
    assert np.abs(logits(tuned.path) - expected).max() > 0.01


async def test_a_gguf_adapter_of_another_model_is_refused(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "base").mkdir()
    base, _ = make_pair(tmp_path / "base", "llama")
    lora(tmp_path / "adapter.gguf", base)
    folder = OllamaFolder(tmp_path / "ollama")
    other = gguf(tmp_path / "other", "F16")
    folder.add("tuned:1b", [("model", other), ("adapter", (tmp_path / "adapter.gguf").read_bytes())])
    folder.add("odd:1b", [("model", other), ("adapter", other)])
    steps = await run(registry, folder)
    refused = {step.model: step.status for step in steps if step.outcome == "refused"}
    assert "the adapter is for another model" in refused["tuned:1b"]
    assert "is not a LoRA adapter" in refused["odd:1b"]
    assert registry.list() == []


async def test_a_gguf_adapter_can_be_created_from(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "base").mkdir()
    base, _ = make_pair(tmp_path / "base", "llama")
    lora(tmp_path / "adapter.gguf", base)
    registry.add_model_folder("base", base)
    with registry.blob_writer() as writer:
        writer.write((tmp_path / "adapter.gguf").read_bytes())
    request = CreateSpec(model="tuned", source="base", adapters={"adapter.gguf": writer.digest})
    async for _ in registry.create(request):
        pass
    tuned = registry.resolve("tuned")
    assert np.abs(logits(tuned.path, tuned.adapter_path) - logits(tuned.path)).max() > 0.01


async def test_names_of_the_same_weights_convert_them_once(
    tmp_path: Path, files: dict[str, list[bytes]], registry: Registry
) -> None:
    folder = OllamaFolder(tmp_path / "ollama")
    folder.add("a:1b", [("model", files["q8_0"][0])])
    folder.add("b:latest", [("model", files["q8_0"][0]), ("system", b"Arr")])
    steps = await run(registry, folder)
    assert outcomes(steps) == {"a:1b": "imported", "b:latest": "imported"}
    assert any(step.status == "b:latest: its weights are already here" for step in steps)
    assert registry.resolve("b").system == "Arr" and registry.resolve("a:1b").system == ""
    assert registry.resolve("b").details.quantization_level == "Q8_0"
    folder.add("b:latest", [("model", files["q8_0"][0]), ("system", b"Ahoy")])
    assert outcomes(await run(registry, folder)) == {"a:1b": "present", "b:latest": "imported"}
    assert registry.resolve("b").system == "Ahoy", "what changed in Ollama is imported again"


async def test_a_model_that_is_not_from_ollama_stays(
    tmp_path: Path, files: dict[str, list[bytes]], registry: Registry
) -> None:
    registry.add_model_folder("a:1b", tiny_model("llama"))
    folder = OllamaFolder(tmp_path / "ollama")
    folder.add("a:1b", [("model", files["q8_0"][0])])
    digest = registry.resolve("a:1b").digest
    steps = await run(registry, folder)
    assert [step.status for step in steps if step.outcome] == [
        "a:1b already exists here and was not imported from Ollama: it is kept"
    ]
    assert registry.resolve("a:1b").digest == digest


async def test_a_dry_run_tells_sizes_and_changes_nothing(ollama: OllamaFolder, registry: Registry) -> None:
    steps = await run(registry, ollama, dry_run=True, verbose=True)
    planned = {step.model: step for step in steps if step.outcome == "planned"}
    # Damage within a file shows only when all of it is read.
    assert set(planned) == RUN | {"broken:1b"}
    assert planned["q8_0:1b"].bytes > 0 and "of Q8_0 become" in planned["q8_0:1b"].status
    lines = {step.status for step in steps}
    assert "q8_0:1b: blk.0.attn_q.weight: Q8_0 → 8 bits in groups of 32, codes kept" in lines
    assert "q6_k:1b: blk.0.attn_q.weight: Q6_K → 8 bits in groups of 32, quantized anew" in lines
    assert "mxfp4:1b: blk.0.attn_q.weight: MXFP4 → mxfp4, codes kept" in lines
    assert "f16:1b: blk.0.attn_q.weight: F16 → float16" in lines
    assert registry.list() == [] and registry.prune(now=True).removed == 0
    assert outcomes(await run(registry, ollama, dry_run=True, models=["q8_0:1b", "none"])) == {
        "q8_0:1b": "planned",
        "none": "refused",
    }


def quantized(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Ollama's three tensors of an MLX weight of 8 bits."""
    import mlx.core as mx

    parts = mx.quantize(mx.array(weight), group_size=64, bits=8)
    return dict(zip(("", ".scale", ".bias"), (np.array(part) for part in parts), strict=True))


def mlx_layers(base: Path, *, quantize: bool) -> list[tuple[str, bytes]]:
    """The layers of an Ollama for MLX models: a safetensors file for each tensor, and the JSON files."""
    layers = []
    for name, values in load_file(base / "model.safetensors").items():
        if quantize and name.endswith("_proj.weight"):
            told = {"quant_type": "int8", "group_size": "64"}
            data = save({f"{name}{end}": part for end, part in quantized(values).items()}, told)
        else:
            data = save({name: values})
        layers.append((f"tensor:{name}", data))
    return layers + [(f"json:{path.name}", path.read_bytes()) for path in sorted(base.glob("*.json"))]


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("link", [False, True])
async def test_ollamas_mlx_models_keep_their_weights(
    tmp_path: Path, registry: Registry, quantize: bool, link: bool
) -> None:
    import mlx.core as mx

    base = tiny_model("llama")
    folder = OllamaFolder(tmp_path / "ollama")
    digests = folder.add("m:1b", mlx_layers(base, quantize=quantize), config={"model_format": "safetensors"})
    before = folder.state()
    assert outcomes(await run(registry, folder, link=link)) == {"m:1b": "imported"}
    assert folder.state() == before
    spec = registry.resolve("m:1b")
    ours = logits(spec.path)
    if not quantize:
        np.testing.assert_array_equal(ours, logits(str(base)))
    else:
        from mlx_lm import load

        model, _ = load(spec.path)
        layer = model.layers[0].self_attn.q_proj
        weight = load_file(base / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
        expected = mx.quantize(mx.array(weight), group_size=64, bits=8)
        assert (layer.bits, layer.group_size) == (8, 64)
        assert mx.array_equal(layer.weight, expected[0])
        np.testing.assert_allclose(ours, logits(str(base)), atol=0.3)
    shared = {path.stat().st_ino for path in Path(spec.path).glob("*.safetensors")}
    originals = {folder.path(digest).stat().st_ino for digest in digests}
    assert bool(shared & originals) == link
    assert outcomes(await run(registry, folder, link=link)) == {"m:1b": "present"}


async def test_nothing_in_the_store_is_trusted(
    tmp_path: Path, files: dict[str, list[bytes]], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OllamaFolder(tmp_path / "ollama")
    q8_0 = files["q8_0"][0]
    (tmp_path / "secret").write_text("a secret of the server")
    (digest,) = folder.add("link:1b", [("system", b"x" * 22)])
    folder.path(digest).unlink()
    folder.path(digest).symlink_to(tmp_path / "secret")
    folder.manifest("link:1b").write_text(
        folder.manifest("link:1b").read_text().replace('"layers": [', f'"layers": [{layer(folder, "model", q8_0)}, ')
    )
    folder.add("climb:1b", [("model", q8_0)])
    told = folder.manifest("climb:1b").read_text()
    folder.manifest("climb:1b").write_text(told.replace(json.loads(told)["layers"][0]["digest"], "sha256:../../secret"))
    folder.add("size:1b", [("model", q8_0[:-64])])
    told = folder.manifest("size:1b").read_text()
    folder.manifest("size:1b").write_text(told.replace(f'"size": {len(q8_0) - 64}', f'"size": {len(q8_0)}'))
    folder.add("json:1b", [*mlx_layers(tiny_model("llama"), quantize=False), ("json:../../evil.json", b"{}")])
    folder.add("params:1b", [("model", q8_0), ("params", b"[1]")])
    folder.add("cloud:1b", [], config={"remote_host": "https://ollama.com", "remote_model": "big"})
    folder.add("empty:1b", [])
    folder.add("garbage:1b", [("model", struct.pack("<4sI", b"GGUF", 3) + os.urandom(1000))])
    folder.manifest("torn:1b").parent.mkdir(parents=True)
    folder.manifest("torn:1b").write_text('{"schemaVersion": 2')
    fifo = folder.manifest("fifo:1b")
    fifo.parent.mkdir(parents=True)
    os.mkfifo(fifo)
    (folder.root / "manifests" / "registry.ollama.ai" / "library" / "-odd" / "x").mkdir(parents=True)
    folder.add("good:1b", [("model", q8_0)])
    steps = await run(registry, folder)
    refused = {step.model: step.status for step in steps if step.outcome == "refused"}
    assert set(refused) == {
        "link:1b", "climb:1b", "size:1b", "json:1b", "params:1b", "cloud:1b", "empty:1b", "garbage:1b", "torn:1b",
        "fifo:1b",
    }  # fmt: skip
    assert "is not a digest" in refused["climb:1b"]
    assert "is damaged" in refused["link:1b"]
    assert "bytes instead of" in refused["size:1b"]
    assert "unsafe path" in refused["json:1b"]
    assert "runs on Ollama's servers only" in refused["cloud:1b"]
    assert "no weights" in refused["empty:1b"]
    assert [spec.name for spec in registry.list()] == ["good:1b"]
    assert not any(str(tmp_path) in step.status for step in steps), "no path of the server"
    assert registry.prune(now=True).removed == 0


def layer(folder: OllamaFolder, kind: str, data: bytes) -> str:
    entry = {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": folder.blob(data), "size": len(data)}
    return json.dumps(entry)


async def test_names_of_the_catalog_can_be_pulled_instead(
    tmp_path: Path, files: dict[str, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OllamaFolder(tmp_path / "ollama")
    for name in ("qwen3:8b", "llama3.2:1b", "mine:1b"):
        folder.add(name, [("model", files["q8_0"][0])])
    registry = Registry(tmp_path / "models", [])
    pulled = []

    async def pull(name: str, *, insecure: bool = False) -> AsyncGenerator[Progress]:
        pulled.append(name)
        if name == "llama3.2:1b":
            raise PullError("huggingface.co cannot be reached")
        yield Progress("pulling model.safetensors", "sha256:1", 10, 10)

    monkeypatch.setattr(registry.imports, "_pull", pull)
    steps = await run(registry, folder, pull=True)
    assert pulled == ["llama3.2:1b", "qwen3:8b"]
    assert "note: llama3.2:1b cannot be pulled and is converted: huggingface.co cannot be reached" in [
        it.status for it in steps
    ]
    assert {spec.name for spec in registry.list()} == {"llama3.2:1b", "mine:1b"}
    assert outcomes(steps) == dict.fromkeys(("qwen3:8b", "llama3.2:1b", "mine:1b"), "imported")


async def test_what_cannot_be_imported_can_perhaps_be_pulled(tmp_path: Path, registry: Registry) -> None:
    folder = OllamaFolder(tmp_path / "ollama")
    folder.add("qwen3:8b", [("model", b"GGUF of something else")])
    (step,) = [step for step in await run(registry, folder) if step.outcome]
    assert step.status.endswith("; `omlx pull qwen3:8b` fetches its MLX repository")


async def test_a_folder_that_both_share_is_refused(tmp_path: Path, files: dict[str, list[bytes]]) -> None:
    folder = OllamaFolder(tmp_path / "ollama")
    folder.add("a:1b", [("model", files["q8_0"][0])])
    before = folder.state()
    registry = Registry(folder.root, [])
    with pytest.raises(CreateError, match="give oMLX a folder of its own with OMLX_MODELS"):
        await run(registry, folder)
    with pytest.raises(CreateError, match="there are no models of an Ollama here"):
        await anext(registry.imports.import_ollama(ImportSpec(), str(tmp_path / "nowhere")))
    assert folder.state() == before


async def test_an_ollama_is_found_where_it_usually_is(
    tmp_path: Path, files: dict[str, list[bytes]], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert _root(registry) in (None, Path("/usr/share/ollama/.ollama/models"))
    folder = OllamaFolder(tmp_path / "home" / ".ollama" / "models")
    folder.add("a:1b", [("model", files["q8_0"][0])])
    assert _root(registry) == folder.root
    assert registry.imports.count_ollama()[0] == 1
    other = OllamaFolder(tmp_path / "elsewhere")
    monkeypatch.setenv("OLLAMA_MODELS", f'"{other.root}"')
    assert _root(registry) == other.root


def _root(registry: Registry) -> Path | None:
    found = registry.imports.find_ollama()
    return found.root if found else None


_DRIVER = """
import asyncio, sys
from pathlib import Path
from omlx_registry import ImportSpec, Registry

async def main():
    async for step in Registry(Path(sys.argv[1]), []).imports.import_ollama(ImportSpec(), sys.argv[2]):
        print(step.status, flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_an_import_that_was_killed_goes_on(ollama: OllamaFolder, registry: Registry, tmp_path: Path) -> None:
    """kill -9 while the fourth model is converted: the first three stay, and the rest follows."""
    before = ollama.state()
    command = [sys.executable, "-c", _DRIVER, str(registry.store.root), str(ollama.root)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        done = 0
        for line in process.stdout:
            done += line.rstrip().endswith("is imported")
            if done == 3 and "converting" in line:
                process.send_signal(signal.SIGKILL)
                break
    workers = time.monotonic() + 30
    while (registry.store.workplaces).exists() and time.monotonic() < workers:
        if not registry.prune(now=True).busy:
            break
        await asyncio.sleep(0.1)  # The worker ends when its stdin closes.
    assert len(registry.list()) == 3
    steps = await run(registry, ollama)
    found = outcomes(steps)
    assert {name for name, outcome in found.items() if outcome == "present"} == {it.name for it in registry.list()} - {
        name for name, outcome in found.items() if outcome == "imported"
    }
    assert list(found.values()).count("present") == 3
    assert {spec.name for spec in registry.list()} == RUN
    assert ollama.state() == before
    assert registry.prune(now=True).removed == 0


def test_times_and_sizes_are_told_for_people() -> None:
    assert [importer._size(value) for value in (5e8, 4.66e9)] == ["500.0 MB", "4.7 GB"]
    assert [importer._time(value) for value in (0.2, 45, 600)] == ["1 s", "45 s", "10 minutes"]
