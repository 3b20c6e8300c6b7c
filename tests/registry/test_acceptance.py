"""What is listed can be loaded: hostile, damaged and incomplete models are refused with a sentence."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omlx_registry import CreateError, CreateSpec, InvalidModel, Registry, RegistryError
from omlx_registry.hub.source import HubSource

from tests.registry.folders import files_below, write_safetensors
from tests.support.hub import FakeHub
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
Change = Callable[[Path], object]


def config(**entries: Any) -> Change:
    """Entries of config.json; `section__key` reaches into a section."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text())
        for name, value in entries.items():
            *sections, key = name.split("__")
            place = content
            for section in sections:
                place = place.setdefault(section, {})
            place[key] = value
        path.write_text(json.dumps(content))

    return change


def tokenizer(**entries: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | entries))

    return change


def write(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def remove(*names: str) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def rename(old: str, new: str) -> Change:
    return lambda folder: (folder / old).rename(folder / new)


def index(**weight_map: str) -> Change:
    return write("model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())


def cut(count: int) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-count])

    return change


def header(**entry: Any) -> Change:
    """A weights file of one tensor whose description is this."""
    described = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}
    encoded = json.dumps({"model.norm.weight": described}).encode()
    return write("model.safetensors", struct.pack("<Q", len(encoded)) + encoded + bytes(8))


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def character_map(text: bytes) -> dict[str, Any]:
    data = struct.pack("<I", 4) + bytes(4) + text + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


DOUBLE = replace({"String": "a"}, "aa")
REFUSED: list[tuple[Change, str]] = [
    (config(model_file="/tmp/x.py"), r"names a Python file \(model_file\)"),
    (config(model_file="../x.py"), r"names a Python file \(model_file\)"),
    (config(model_type="..utils"), "'..utils' is no model_type"),
    (config(text_config__model_type="a/b"), "'a/b' is no model_type"),
    (config(num_hidden_layers=10**9), "num_hidden_layers is 1,000,000,000, but they have 2 layers"),
    (config(text_config__num_hidden_layers=10**9), "text_config.num_hidden_layers is 1,000,000,000"),
    (config(vision_config__depth=10**7), "vision_config.depth is 10,000,000"),
    (config(n_layer=300), "n_layer is 300, but they have 2 layers"),
    (config(num_experts=10**8), "num_experts is 100,000,000"),
    (config(num_attention_heads=10**8), "num_attention_heads is 100,000,000"),
    (config(vocab_size=10**9), "vocab_size is 1,000,000,000"),
    (config(hidden_size=10**9), "hidden_size is 1,000,000,000"),
    (config(layer_types=["x"] * 5000), "layer_types has 5,000 entries"),
    (config(hybrid_override_pattern="M" * 5000), "hybrid_override_pattern has 5,000 entries"),
    (write("config.json", b'{"model_type": '), "config.json is no JSON object"),
    (write("config.json", b"[" * 200_000), "config.json is no JSON object"),
    (remove("config.json"), "no config.json"),
    (remove("tokenizer.json"), "the model has no tokenizer"),
    (write("tokenizer.json", b"{"), "tokenizer.json is damaged"),
    (tokenizer(normalizer=chain(*[DOUBLE] * 40)), "makes a text 1,099,511,627,776 times as long"),
    (tokenizer(normalizer=chain(chain(*[DOUBLE] * 4), chain(*[DOUBLE] * 4))), "makes a text 256 times as long"),
    (tokenizer(normalizer=replace({"String": "a"}, "a" * 2000)), "puts in 2,000 characters"),
    (tokenizer(normalizer=replace({"Regex": ""}, "a" * 100)), "makes a text 101 times as long"),
    (tokenizer(normalizer=chain(*[{"type": "ByteLevel"}] * 4)), "makes a text 256 times as long"),
    (tokenizer(normalizer=chain(*[{"type": "NFKD"}, replace({"String": "a"}, "x")] * 3)), "makes a text 324 times"),
    (tokenizer(normalizer=character_map(b"x" * 1000)), "a character map that puts in 1,000 bytes"),
    (tokenizer(normalizer=chain(*[{"type": "Lowercase"}] * 65)), "has 65 steps in its normalizer"),
    (tokenizer(decoder={"type": "Sequence", "decoders": [DOUBLE] * 7}), "makes a text 128 times as long"),
    (
        tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "a" * 20_000}, "behavior": "Isolated"}),
        "a pattern of 20,000 characters",
    ),
    (
        tokenizer(
            post_processor={
                "type": "TemplateProcessing",
                "single": [],
                "pair": [],
                "special_tokens": {"x": {"id": "x", "ids": [0] * 5000, "tokens": ["x"] * 5000}},
            }
        ),
        "puts 5,000 tokens around every text",
    ),
    (tokenizer(padding={"strategy": {"Fixed": 10**9}}), "pads every text"),
    (tokenizer(added_tokens=[{"content": "x" * 5000}]), "an added token of 5,000 characters"),
    (index(a="model-00002-of-00002.safetensors"), "names model-00002-of-00002.safetensors, which is not among"),
    (index(a="../model.safetensors"), "names a file outside the model"),
    (write("model.safetensors.index.json", b'{"weight_map": ["x"]}'), "is no index"),
    (cut(4), "model.safetensors is truncated: tensor"),
    (header(shape=[3]), "another number of bytes than its shape needs"),
    (header(shape=[-2]), "no valid place or shape"),
    (header(data_offsets=[8, 0]), "no valid place or shape"),
    (header(data_offsets=[8, 16]), "ends 8 bytes behind its end"),
    (rename("model.safetensors", "consolidated.safetensors"), "in Mistral's own format"),
]
TAKEN: list[Change] = [
    config(auto_map={"AutoModel": "modeling_x.X"}, custom_pipelines={"a": {"impl": "x.Y"}}),
    config(model_file=None),
    config(max_position_embeddings=10**9, sliding_window=2**62, attention_window_size=2**31),
    config(vision_config__hidden_size=4096, vision_config__num_hidden_layers=48, audio_config__vocab_size=262_144),
    lambda folder: write("config.json", b"\xef\xbb\xbf" + (folder / "config.json").read_bytes())(folder),
    config(time_step_limit=[0.0, float("inf")], partial=float("nan")),
    rename("model.safetensors", "weights.00.safetensors"),
    rename("model.safetensors", "ae.safetensors"),
    index(a="model.safetensors"),
    tokenizer(normalizer=chain(replace({"String": " "}, "▁"), {"type": "NFKC"}, {"type": "Prepend", "prepend": "▁"})),
    tokenizer(normalizer=chain(character_map("\ufdfa".encode() * 11), replace({"Regex": " {2,}"}, "▁"))),
    tokenizer(normalizer=None, post_processor=None, decoder=None, padding={"strategy": {"Fixed": 512}}),
]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models", [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("qwen3"), tmp_path / "folder"))


def uploaded(registry: Registry, folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data, name = path.read_bytes(), path.relative_to(folder).as_posix()
        found[name] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with registry.blob_writer(found[name]) as writer:
            writer.write(data)
    return found


async def create(registry: Registry, **fields: Any) -> str:
    """The last status."""
    lines = [line async for line in registry.create(CreateSpec(**fields))]
    return lines[-1].status


@pytest.mark.parametrize(("change", "sentence"), REFUSED)
async def test_import_refuses_with_a_sentence(change: Change, sentence: str, registry: Registry, folder: Path) -> None:
    change(folder)
    with pytest.raises(InvalidModel, match=sentence) as caught:
        registry.add_model_folder("guest", folder)
    assert str(folder) not in caught.value.message and "/models" not in caught.value.message
    assert registry.list() == [] and files_below(registry.store.root) == set()


@pytest.mark.parametrize("quantize", ["", "q8_0"])
@pytest.mark.parametrize(("change", "sentence"), REFUSED)
async def test_create_refuses_with_a_sentence(
    change: Change, sentence: str, quantize: str, registry: Registry, folder: Path
) -> None:
    change(folder)
    files = uploaded(registry, folder)
    with pytest.raises(CreateError, match=sentence):
        await create(registry, model="guest", files=files, quantize=quantize)
    assert registry.list() == []


@pytest.mark.parametrize("change", TAKEN)
async def test_what_real_repositories_have_is_taken(change: Change, registry: Registry, folder: Path) -> None:
    change(folder)
    assert await create(registry, model="guest", files=uploaded(registry, folder)) == "success"
    assert [spec.name for spec in registry.list()] == ["guest:latest"]
    assert registry.show("guest").spec.capabilities


DOES_NOT_LOAD: list[tuple[Change, str]] = [
    (config(num_hidden_layers=6), r"Missing 44 parameters: model\.layers\.2\.input_layernorm\.weight, "),
    (config(num_hidden_layers=1), r"Received 11 parameters not in model: model\.layers\.1\."),
    (config(intermediate_size=48), r"Expected shape \(48, 64\) but received shape \(256, 64\) for parameter model\."),
    (config(num_attention_heads=None), r"qwen3 model .* does not load: "),
]


@pytest.mark.parametrize(("change", "sentence"), DOES_NOT_LOAD)
async def test_names_and_shapes_of_weights_are_those_of_the_network(
    change: Change, sentence: str, registry: Registry, folder: Path
) -> None:
    change(folder)
    with pytest.raises(CreateError, match=sentence) as caught:
        await create(registry, model="guest", files=uploaded(registry, folder))
    assert caught.value.status == 400
    assert "/tmp" not in caught.value.message and len(caught.value.message) < 600
    assert registry.list() == []


async def test_what_does_not_load_is_not_imported(
    registry: Registry, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(num_hidden_layers=6)(folder)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    shutil.copytree(folder, tmp_path / ".lmstudio" / "models" / "org" / "broken")
    lines = [line.status async for line in registry.imports.import_found()]
    assert any(line.startswith("skipping hf.co/org/broken:latest: the ") for line in lines)
    assert registry.list() == []


async def test_a_hostile_draft_is_refused(registry: Registry, folder: Path) -> None:
    registry.add_model_folder("base", folder)
    config(num_hidden_layers=10**9)(folder)
    with pytest.raises(CreateError, match="does not match the weights"):
        await create(registry, model="guest", source="base", draft_files=uploaded(registry, folder))


async def test_a_pull_refuses_and_lists_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "hub"
    for name, change in (
        ("code", config(model_file="modeling_x.py")),
        ("layers", config(num_hidden_layers=10**9)),
        ("unlike", config(num_hidden_layers=6)),
        ("doubling", tokenizer(normalizer=chain(*[DOUBLE] * 40))),
    ):
        change(Path(shutil.copytree(tiny_model("qwen3"), root / "org" / name)))
    shutil.copytree(tiny_model("qwen3"), root / "org" / "mapped")
    config(auto_map={"AutoModel": "modeling_x.X"})(root / "org" / "mapped")
    with FakeHub(root) as hub:
        for name, value in hub.env.items():
            monkeypatch.setenv(name, value)
        registry = Registry(tmp_path / "models", [HubSource(attempts=1)])
        for name, sentence in (
            ("code", "names a Python file"),
            ("layers", "but they have 2 layers"),
            ("unlike", "does not load: Missing 44 parameters"),
            ("doubling", "times as long"),
        ):
            with pytest.raises(RegistryError, match=sentence):
                async for _ in registry.pull(f"hf.co/org/{name}"):
                    pass
        assert registry.list() == []
        statuses = [line.status async for line in registry.pull("hf.co/org/mapped")]
        assert statuses[-1] == "success"


async def test_numbers_that_json_does_not_have_are_not_shown(registry: Registry, folder: Path) -> None:
    config(rope_theta=float("inf"), rms_norm_eps=float("nan"))(folder)
    registry.add_model_folder("guest", folder)
    info = registry.show("guest").model_info
    assert info["qwen3.block_count"] == 2
    assert not {"qwen3.rope.freq_base", "qwen3.attention.layer_norm_rms_epsilon"} & set(info)


def test_a_weights_file_is_known_by_its_header_alone(tmp_path: Path) -> None:
    """A model of a hundred gigabytes is checked without reading its weights."""
    from omlx_registry.weights import read_header

    path = write_safetensors(tmp_path / "model.safetensors", {"a.weight": ("F32", (2, 2))})
    assert [(it.name, it.shape) for it in read_header(path)] == [("a.weight", (2, 2))]
