"""What the loader does to a model changes how fast it is, not what it says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model as mlx_load_model

from omlx.engine.fuse import fuse
from omlx.engine.loader import load_model
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import EngineConfig, LoadSpec
from tests.engine.support import engine, loaded, prompt, run, spec
from tests.support.precision import on_gpu
from tests.support.tiny import ARCHITECTURES, tiny_model


def load_spec(path: Path, **other: object) -> LoadSpec:
    config = EngineConfig(context_length=2048)
    return LoadSpec(name="tiny", path=str(path), fingerprint="x", engine=config, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_fused_projections_compute_what_the_model_computed(architecture: str) -> None:
    model, _ = mlx_load_model(tiny_model(architecture))
    tokens = mx.array([prompt(12)])
    before, size = model(tokens), sum(value.size for _, value in tree_flatten(model.parameters()))
    mx.eval(before)
    made = fuse(model)
    assert made > 0 or architecture in {"mamba", "mamba2"}
    assert sum(value.size for _, value in tree_flatten(model.parameters())) == size
    assert mx.allclose(before, model(tokens), atol=1e-3)


def test_quantized_projections_are_fused_as_well() -> None:
    import mlx.nn as nn

    model, _ = mlx_load_model(tiny_model("qwen3"))
    nn.quantize(model, group_size=32, bits=4)
    tokens = mx.array([prompt(12)])
    before = model(tokens)
    mx.eval(before)
    assert fuse(model) == 4
    assert mx.allclose(before, model(tokens), atol=1e-3)


def test_a_model_is_measured_and_its_load_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    model = load_model(load_spec(tiny_model("gemma3_text")), lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0 and seen[-1][0] == seen[-1][1] == model.weight_bytes > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (model.vocabulary, model.max_context, model.can_batch) == (640, 4096, True)
    assert model.kv_bytes_per_token > 0 and model.step_s > 0 and model.token_s > 0
    assert model.weights.startswith("as stored" if on_gpu() else "float32")
    assert model.end_tokens == {0, 2}


def test_a_model_whose_caches_cannot_be_joined_says_so() -> None:
    assert not loaded("llama4").can_batch


def test_a_folder_without_a_model_is_an_error_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="tiny cannot be loaded"):
        load_model(load_spec(tmp_path))


def test_an_unknown_architecture_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "never_heard_of"}))
    with pytest.raises(LoadError, match="never_heard_of"):
        load_model(load_spec(folder))


def test_warming_up_leaves_no_trace() -> None:
    machine = engine(endless=True, warm_up=True)
    assert (machine.steps, machine.max_batch, machine.has_work) == (0, 0, False)
    fresh = run(engine(endless=True), [spec(0, prompt(20), new=8)])
    assert run(machine, [spec(0, prompt(20), new=8)]).tokens == fresh.tokens


def test_an_engine_warms_up_within_a_context_shorter_than_its_made_up_prompts() -> None:
    assert not engine(endless=True, warm_up=True, context_length=16).has_work


@pytest.mark.skipif(on_gpu(), reason="a GPU holds weights of full width as they are")
def test_weights_are_held_in_the_form_that_fits_what_the_runner_may_take() -> None:
    folder = tiny_model("qwen3", taught=True)
    size = (folder / "model.safetensors").stat().st_size
    roomy, tight = (load_model(load_spec(folder, memory_bytes=most), measure=False) for most in (100 * size, size))
    assert "kept" not in roomy.weights
    assert "kept: float32 would take" in tight.weights
