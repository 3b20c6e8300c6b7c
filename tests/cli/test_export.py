"""A model leaves as it came: `omlx export` makes a folder that mlx-lm opens and `omlx create` takes back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import Omlx, make_model
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model

SYSTEM = "You are a pirate."


def ask(real: Omlx, model: str) -> str:
    return real("run", model, "Hello").out


def test_an_exported_model_answers_the_same_when_it_comes_back(
    real: Omlx, server: ServerProcess, tmp_path: Path
) -> None:
    lines = (
        f"SYSTEM {SYSTEM}",
        'PARAMETER stop "<never>"',
        "LICENSE mine",
        "MESSAGE user Hi",
        "MESSAGE assistant Ahoy",
    )
    make_model("leaver", tiny_model("llama", taught=True), tmp_path, server.url, *lines)
    out = tmp_path / "out"
    ran = real("export", "leaver", str(out))
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"exported leaver to {out}: ")
    assert not list(out.rglob(".*")), "no partial file is left"

    import mlx.core as mx
    from mlx_lm import load

    model, tokenizer = load(str(out))
    original, _ = load(str(tiny_model("llama", taught=True)))
    ids = mx.array([tokenizer.encode("Hello")])
    assert mx.array_equal(model(ids), original(ids))

    assert real("create", "back", "-f", str(out / "Modelfile")).code == 0
    assert ask(real, "back") == ask(real, "leaver") != ""
    for part in ("system", "parameters", "template", "license"):
        assert real("show", "back", f"--{part}").out == real("show", "leaver", f"--{part}").out
    shown = real("show", "back", "--modelfile").out
    assert shown.replace("back:latest", "leaver:latest") == real("show", "leaver", "--modelfile").out

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix}
    assert real("export", "leaver", str(out)).code == 0, "what is there is compared and kept"
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix} == before
    (out / "config.json").write_text("{}")
    refused = real("export", "leaver", str(out))
    assert (refused.code, "already exists and differs" in refused.err) == (1, True)
    assert (out / "config.json").read_text() == "{}"
    real("rm", "back", "leaver")


def test_an_adapter_goes_along(real: Omlx, server: ServerProcess, tmp_path: Path) -> None:
    adapter = tmp_path / "lora"
    adapter.mkdir()
    random = np.random.default_rng(0)
    name = "model.layers.1.self_attn.q_proj"
    rows, columns = load_file(tiny_model("llama", taught=True) / "model.safetensors")[f"{name}.weight"].shape
    save_file(
        {f"{name}.lora_a": random.normal(size=(columns, 2)).astype(np.float32),
         f"{name}.lora_b": random.normal(size=(2, rows)).astype(np.float32)},
        adapter / "adapters.safetensors",
    )  # fmt: skip
    told = {"num_layers": 1, "lora_parameters": {"rank": 2, "scale": 4.0, "dropout": 0.0}}
    (adapter / "adapter_config.json").write_text(json.dumps(told))
    make_model("tuned", tiny_model("llama", taught=True), tmp_path, server.url, f"ADAPTER {adapter}")
    assert real("export", "tuned", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out" / "adapter" / "adapters.safetensors").is_file()
    assert real("create", "tuned2", "-f", str(tmp_path / "out" / "Modelfile")).code == 0
    assert ask(real, "tuned2") == ask(real, "tuned")
    real("rm", "tuned", "tuned2")


def test_a_gguf_file_answers_the_same_when_it_comes_back(real: Omlx, server: ServerProcess, tmp_path: Path) -> None:
    make_model("leaver2", tiny_model("llama", taught=True), tmp_path, server.url, f"SYSTEM {SYSTEM}")
    out = tmp_path / "out"
    ran = real("export", "leaver2", str(out), "--gguf")
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in out.iterdir()) == ["Modelfile", "model.gguf"]
    assert real("create", "back2", "-f", str(out / "Modelfile")).code == 0
    assert ask(real, "back2") == ask(real, "leaver2") != ""
    assert real("show", "back2", "--system").out == SYSTEM
    again = real("export", "leaver2", str(out), "--gguf")
    assert (again.code, "model.gguf already exists" in again.err) == (1, True)
    real("rm", "back2", "leaver2")


def test_mistakes_are_answered_with_a_sentence(real: Omlx, tmp_path: Path) -> None:
    missing = real("export", "nobody", str(tmp_path / "out"))
    assert (missing.code, missing.err) == (1, "Error: model 'nobody' not found\n")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    assert "cannot be written" in real("export", "tiny", str(tmp_path / "file" / "out")).err
    assert real("export", "tiny").err == "Error: accepts 2 arg(s), received 1\n"


@pytest.mark.parametrize("flags", [(), ("--gguf",)])
def test_another_modelfile_is_kept_and_nothing_is_written_beside_it(
    real: Omlx, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    (tmp_path / "Modelfile").write_text("FROM mine\n")
    ran = real("export", "tiny", str(tmp_path), *flags)
    assert (ran.code, "Modelfile already exists and differs: choose another folder" in ran.err) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["Modelfile"]
    assert (tmp_path / "Modelfile").read_text() == "FROM mine\n"


def test_only_files_of_the_model_are_given(server: ServerProcess) -> None:
    import httpx

    for path in ("../../../config.toml", "/etc/passwd", "nothing.json", ""):
        answer = httpx.get(
            f"{server.url}/api/omlx/export/file", params={"model": "tiny", "path": path}, trust_env=False
        )
        assert answer.status_code == 404, path
    assert os.listdir(server.models)
