"""What leaves as GGUF is what came: the same codes, names and tokens; what cannot be written is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from omlx_registry.gguf.blocks import unpack_codes
from omlx_registry.gguf.container import GgufError
from omlx_registry.gguf.exporter import export_gguf
from omlx_registry.gguf.importer import import_gguf

from tests.registry.test_gguf_import import convert, dense_weights
from tests.registry.tiny_gguf import make_pair
from tests.support.tiny import tiny_model


def nothing(done: int, total: int) -> None:
    pass


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        it.name: (it.tensor_type.name, tuple(int(size) for size in it.shape), it.data.tobytes())
        for it in GGUFReader(path).tensors
    }


KINDS = ("F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")


@pytest.mark.parametrize(
    ("family", "kind"),
    [*(("llama", kind) for kind in KINDS), *((family, "Q4_0") for family in ("mistral", "llama3", "qwen2", "qwen3"))],
)
def test_a_gguf_file_comes_back_bit_for_bit(family: str, kind: str, tmp_path: Path) -> None:
    _, path = make_pair(tmp_path, family, lambda name: kind)
    convert(path, tmp_path / "mlx-out")
    result = export_gguf(tmp_path / "mlx-out", tmp_path / "again.gguf", nothing)
    assert result["notes"] == []
    before, after = tensors(path), tensors(tmp_path / "again.gguf")
    assert before.keys() == after.keys()
    for name, told in before.items():
        if name == "rope_freqs.weight":
            mine, theirs = (np.frombuffer(it[name][2], np.float32) for it in (after, before))
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
        elif told[0] == "F32" and kind != "F32":
            # Norms came as 16 bits and go back widened.
            mine, theirs = (np.frombuffer(it[name][2], np.float32) for it in (after, before))
            np.testing.assert_allclose(mine, theirs, rtol=1e-3)
        else:
            assert after[name] == told, name
    keys = {field.name: field.contents() for field in GGUFReader(tmp_path / "again.gguf").fields.values()}
    for field in GGUFReader(path).fields.values():
        if field.name.startswith(("tokenizer.", f"{result['architecture']}.")):
            assert keys[field.name] == pytest.approx(field.contents()), field.name


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_models_keep_their_codes_where_ggml_has_room(bits: int, tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.utils import quantize_model, save_model

    source = tiny_model("qwen3")
    model, _ = load(str(source))
    config = json.loads((source / "config.json").read_text())
    model, config = quantize_model(model, config, 32 if bits == 5 else 64, bits)
    folder = tmp_path / "mlx"
    shutil.copytree(source, folder)
    (folder / "model.safetensors").unlink()
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))
    result = export_gguf(folder, tmp_path / "out.gguf", nothing)
    assert bool(result["notes"]) == (bits in (6, 8))
    convert(tmp_path / "out.gguf", tmp_path / "back")
    ours, theirs = dense_weights(tmp_path / "back"), dense_weights(folder)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        if name.endswith((".scales", ".biases")):
            continue
        limit = 0.01 * float(mx.abs(values).max()) if bits in (6, 8) else 2e-3 * float(mx.abs(values).max())
        assert float(mx.abs(ours[name] - values).max()) <= limit, name


def test_tokens_and_template_go_along(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = tiny_model("llama")
    export_gguf(source, tmp_path / "out.gguf", nothing)
    import_gguf(tmp_path / "out.gguf", tmp_path / "back", "keep", nothing)
    ours, theirs = (AutoTokenizer.from_pretrained(str(it)) for it in (tmp_path / "back", source))
    for text in ("Hello there", "<|im_start|>user\n12 3", "naïve 日本"):
        assert ours.encode(text) == theirs.encode(text)
    turns = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(turns, tokenize=False) == theirs.apply_chat_template(turns, tokenize=False)


def changed(folder: Path, target: Path, **config: Any) -> Path:
    shutil.copytree(folder, target)
    told = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(told | config))
    return target


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "gemma3_text"}, "models of type 'gemma3_text' cannot be written as GGUF; those of type llama"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling of kind 'yarn'"),
        ({"rms_norm_eps": None}, "lacks a value that a GGUF file needs"),
    ],
)
def test_what_cannot_be_written_is_refused(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = changed(tiny_model("llama"), tmp_path / "mlx", **config)
    with pytest.raises(GgufError, match=reason):
        export_gguf(folder, tmp_path / "out.gguf", nothing)


def test_a_tokenizer_without_a_name_is_refused(tmp_path: Path) -> None:
    folder = changed(tiny_model("llama"), tmp_path / "mlx")
    told = json.loads((folder / "tokenizer.json").read_text())
    told["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(GgufError, match="cuts text in a way that GGUF has no name for"):
        export_gguf(folder, tmp_path / "out.gguf", nothing)
    told["model"]["byte_fallback"] = True
    (folder / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(GgufError, match="only byte-level BPE"):
        export_gguf(folder, tmp_path / "out.gguf", nothing)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_unpacked_as_mlx_packs_them(bits: int) -> None:
    from omlx_registry.gguf.tensors import pack

    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 64), dtype=np.uint8)
    np.testing.assert_array_equal(unpack_codes(pack(codes, bits), bits), codes)
