"""Model folders from anybody: nothing in them is run, whichever loader opens them, and real ones load all the same.

A payload is a Python file or a pickle that leaves a file behind when it is run. That it works is shown first, with a
loader that runs it; then our way to each loader must leave nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
from mlx_vlm.utils import load_model as load_with_mlx_vlm
from omlx_registry import InvalidModel
from omlx_registry.quantize_model import quantize_model
from omlx_registry.sanitized_folder import inert_folder

from omlx.engine.draft.draft_model import open_draft
from omlx.engine.encode.embed import load_embedder
from omlx.engine.encode.rerank import load_reranker
from omlx.engine.loader import load_model
from omlx.engine.speech.network import load_speech
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.engine.support import loaded
from tests.support.tiny import tiny_model
from tests.support.tiny_encoder import make_encoder
from tests.support.tiny_vlm import tiny_vlm
from tests.support.tiny_whisper import make_whisper

ROOT = Path(__file__).parents[2]
CODE = "import pathlib\npathlib.Path({mark!r}).touch()\n"


def load_spec(path: Path, **other: Any) -> LoadSpec:
    return LoadSpec(name="guest", path=str(path), fingerprint="x", engine=EngineConfig(context_length=512), **other)


def change(path: Path, **entries: Any) -> None:
    content = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | entries))


def text_folder(place: Path) -> Path:
    return Path(shutil.copytree(tiny_model("qwen3"), place))


def vision_folder(place: Path) -> Path:
    return Path(shutil.copytree(tiny_vlm("qwen2_5_vl"), place))


def encoder_folder(place: Path) -> Path:
    place.mkdir()
    make_encoder(place, "bert")
    return place


def reranker_folder(place: Path) -> Path:
    place.mkdir()
    make_encoder(place, "bert", ranks=True)
    return place


def speech_folder(place: Path) -> Path:
    return make_whisper(place)


def as_speech(folder: Path, made: Path) -> None:
    load_speech(load_spec(folder), lambda done, total: None)


def as_text(folder: Path, made: Path) -> None:
    load_model(load_spec(folder), measure=False)


def as_embedder(folder: Path, made: Path) -> None:
    load_embedder(load_spec(folder), lambda done, total: None)


def as_reranker(folder: Path, made: Path) -> None:
    load_reranker(load_spec(folder), lambda done, total: None)


def as_source(folder: Path, made: Path) -> None:
    quantize_model(folder, made, "q8_0", lambda *_: None)


def as_draft(folder: Path, made: Path) -> None:
    assert open_draft(load_spec(tiny_model("qwen3"), draft_path=str(folder)), loaded("qwen3"), measure=False)


Make, Load = Callable[[Path], Path], Callable[[Path, Path], None]
WAYS: list[tuple[Make, Load]] = [
    (text_folder, as_text),
    (text_folder, as_source),
    (text_folder, as_draft),
    (vision_folder, as_text),
    (vision_folder, as_source),
    (encoder_folder, as_embedder),
    (reranker_folder, as_reranker),
    (speech_folder, as_speech),
]
IDS = [f"{make.__name__}-{load.__name__}" for make, load in WAYS]


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The file that a payload leaves when it is run."""
    return tmp_path / "was-run"


@pytest.fixture
def payload(tmp_path: Path, mark: Path) -> Path:
    """A Python file outside the model's folder."""
    path = tmp_path / "outside.py"
    path.write_text(CODE.format(mark=str(mark)))
    return path


def test_the_payload_is_one(tmp_path: Path, payload: Path, mark: Path) -> None:
    folder = vision_folder(tmp_path / "model")
    change(folder / "config.json", model_file="../outside.py")
    with pytest.raises(AttributeError):
        load_with_mlx_vlm(folder, lazy=True)
    assert mark.exists()


@pytest.mark.parametrize("where", ["absolute", "../outside.py", "inside.py"])
@pytest.mark.parametrize(("make", "load"), WAYS, ids=IDS)
def test_a_model_file_is_refused_before_any_loader(
    make: Make, load: Load, where: str, tmp_path: Path, payload: Path, mark: Path
) -> None:
    folder = make(tmp_path / "model")
    shutil.copy(payload, folder / "inside.py")
    change(folder / "config.json", model_file=str(payload) if where == "absolute" else where)
    with pytest.raises((LoadError, InvalidModel), match=r"names a Python file \(model_file\)"):
        load(folder, tmp_path / "made")
    assert not mark.exists()


@pytest.mark.parametrize(("make", "load"), WAYS, ids=IDS)
def test_what_would_import_code_is_dropped_and_the_model_loads(
    make: Make, load: Load, tmp_path: Path, payload: Path, mark: Path
) -> None:
    folder = make(tmp_path / "model")
    for name in ("modeling_guest.py", "tokenization_guest.py", "configuration_guest.py"):
        shutil.copy(payload, folder / name)
    auto = {
        "AutoConfig": "configuration_guest.Guest",
        "AutoModel": "modeling_guest.Guest",
        "AutoModelForCausalLM": "modeling_guest.Guest",
        "AutoTokenizer": ["tokenization_guest.Guest", None],
        "AutoProcessor": "tokenization_guest.Guest",
        "AutoImageProcessor": "tokenization_guest.Guest",
    }
    acting = {"auto_map": auto, "trust_remote_code": True, "custom_pipelines": {"x": {"impl": "modeling_guest.Guest"}}}
    config = json.loads((folder / "config.json").read_text())
    nested = {
        key: config[key] | acting | {"model_file": str(payload)}
        for key in ("text_config", "vision_config")
        if config.get(key)
    }
    change(folder / "config.json", **acting, **nested)
    change(folder / "tokenizer_config.json", **acting)
    for name in ("generation_config.json", "processor_config.json", "video_preprocessor_config.json"):
        change(folder / name, **acting)
    if (folder / "preprocessor_config.json").exists():
        change(folder / "preprocessor_config.json", **acting)
    load(folder, tmp_path / "made")
    assert not mark.exists()


class Pickled:
    """Leaves the mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize(("make", "load"), WAYS, ids=IDS)
def test_pickles_are_never_opened(make: Make, load: Load, tmp_path: Path, mark: Path) -> None:
    data = pickle.dumps(Pickled(mark))
    folder = make(tmp_path / "model")
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "weights.npy", "mm_projector.bin", "x.pkl"):
        (folder / name).write_bytes(data)
    load(folder, tmp_path / "made")
    assert not mark.exists()
    pickle.loads(data)
    assert mark.exists()


def test_nothing_of_an_adapter_is_run(tmp_path: Path, payload: Path, mark: Path) -> None:
    """mlx-lm opens two of its files."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    matrices = {"model.layers.0.self_attn.q_proj.lora_a": mx.zeros((64, 2))}
    mx.save_safetensors(str(adapter / "adapters.safetensors"), matrices)
    parameters = {
        "rank": 2,
        "scale": 20.0,
        "dropout": 0.0,
        "keys": ["self_attn.q_proj"],
        "auto_map": {"AutoModel": "a.B"},
    }
    acting = {"model_file": str(payload), "trust_remote_code": True, "auto_map": {"AutoModel": "inside.Guest"}}
    change(adapter / "adapter_config.json", num_layers=2, lora_parameters=parameters, model=str(payload), **acting)
    shutil.copy(payload, adapter / "inside.py")
    for name in ("adapter_model.bin", "adapters.npz", "training_args.bin"):
        (adapter / name).write_bytes(pickle.dumps(Pickled(mark)))
    load_model(load_spec(text_folder(tmp_path / "model"), adapter_path=str(adapter)), measure=False)
    assert not mark.exists()


def test_an_adapter_that_is_a_pickle_is_refused(tmp_path: Path, mark: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapters.safetensors").write_bytes(pickle.dumps(Pickled(mark)))
    change(adapter / "adapter_config.json", num_layers=2, lora_parameters={"rank": 2, "scale": 20.0, "dropout": 0.0})
    with pytest.raises((LoadError, RuntimeError)):
        load_model(load_spec(text_folder(tmp_path / "model"), adapter_path=str(adapter)), measure=False)
    assert not mark.exists()


def test_each_library_that_opens_model_folders_is_among_the_ways() -> None:
    imports = re.compile(r"^\s*(?:from|import) (mlx_\w+|transformers|diffusers)\b", re.MULTILINE)
    sources = [path.read_text("utf-8") for top in ("omlx", "registry") for path in (ROOT / top).rglob("*.py")]
    found = {name for source in sources for name in imports.findall(source)}
    assert found == {"mlx_lm", "mlx_vlm", "mlx_audio", "transformers"}


@pytest.mark.parametrize("shard", ["../other.safetensors", "/other.safetensors", "sub/x.safetensors", "model.npy"])
@pytest.mark.parametrize(("make", "load"), WAYS, ids=IDS)
def test_an_index_that_leaves_the_folder_is_refused(make: Make, load: Load, shard: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "model")
    name = str(tmp_path / "other.safetensors") if shard.startswith("/") else shard
    (tmp_path / "other.safetensors").write_bytes(b"not to be touched")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a.weight": name}}))
    with pytest.raises((LoadError, InvalidModel), match="names a file outside the model"):
        load(folder, tmp_path / "made")
    assert (tmp_path / "other.safetensors").read_bytes() == b"not to be touched"


@pytest.mark.parametrize(
    ("file", "entries"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "AutoModelForCausalLM"}),
        ("tokenizer_config.json", {"tokenizer_class": "../../outside.Guest"}),
        ("tokenizer_config.json", {"tokenizer_file": "/etc/passwd", "vocab_file": "/etc/passwd"}),
        ("tokenizer_config.json", {"chat_template_type": "..cli", "tool_parser_type": "..server"}),
        ("special_tokens_map.json", {"tokenizer_file": "/etc/passwd", "auto_map": {"AutoTokenizer": ["a.B", None]}}),
        ("config.json", {"tokenizer_class": "Pipeline", "_name_or_path": "/etc"}),
        ("preprocessor_config.json", {"image_processor_type": "AutoModel"}),
        ("config.json", {"text_config": {"ple_storage": {"manifest": "/etc/passwd"}}}),
        ("offload_index.json", {"files": ["/etc/passwd"]}),
    ],
)
def test_classes_modules_and_paths_that_are_none_never_reach_a_loader(
    file: str, entries: dict[str, Any], tmp_path: Path
) -> None:
    folder = text_folder(tmp_path / "model")
    change(folder / file, **entries)
    with inert_folder(folder) as inert:
        seen = "".join(path.read_text() for path in inert.glob("*.json") if path.name != "tokenizer.json")
        assert not any(value in seen for value in ("passwd", "AutoModel", "Guest", "Pipeline", "..cli", "a.B", '"/etc'))
    as_text(folder, tmp_path)


@pytest.mark.parametrize("kind", ["..utils", "a/b", "models.llama", 7, "x" * 101])
def test_a_model_type_is_the_name_of_one_module(kind: Any, tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "model")
    change(folder / "config.json", model_type=kind)
    with pytest.raises(LoadError, match="is no model_type"):
        as_text(folder, tmp_path)


def test_an_inert_folder_is_gone_afterwards_even_of_a_process_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("qwen3")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stale, own = tmp_path / "omlx-model-4194304-x", tmp_path / f"omlx-model-{os.getpid()}-x"
    stale.mkdir()
    own.mkdir()
    with inert_folder(model) as folder:
        assert folder.is_dir() and own.exists() and not stale.exists()
        assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert sorted(tmp_path.iterdir()) == [own]


def test_a_byte_order_mark_and_infinity_are_read(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model("mamba2"), tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text()) | {"time_step_limit": [0.0, float("inf")]}
    (folder / "config.json").write_text("\ufeff" + json.dumps(config), "utf-8")
    model = load_model(load_spec(folder), measure=False)
    assert list(model.model.args.time_step_limit) == [0.0, float("inf")]


def test_weights_under_another_name_are_loaded(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "weights.00.safetensors")
    assert load_model(load_spec(folder), measure=False).vocabulary == 640
