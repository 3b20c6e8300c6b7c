"""Every Modelfile of Modelfile.examples/ is built the way `omlx create` builds it, and does what it says."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from omlx_registry import CreateSpec, ModelSpec, Registry
from omlx_registry.modelfile import Meaning, interpret, parse_modelfile

from omlx.cli.create import model_files
from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.template import PromptTemplate
from tests.registry.test_lora import peft_adapter
from tests.registry.tiny_gguf import make_pair
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
EXAMPLES = Path(__file__).parents[2] / "Modelfile.examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/Modelfile"))
# The models the examples build on, in the shape of a tiny one; their real names need a network.
BASES = (
    "smollm2:135m", "qwen2.5-coder:0.5b", "hf.co/mlx-community/Qwen3-0.6B-4bit", "llama3.2:1b",
    "qwen3:8b", "qwen3:0.6b",
)  # fmt: skip


def upload(registry: Registry, path: Path) -> dict[str, str]:
    digests = {}
    for name, file in model_files(path).items():
        digests[name] = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
        with registry.blob_writer(digests[name]) as writer:
            writer.write(file.read_bytes())
    return digests


def request(registry: Registry, meaning: Meaning, folder: Path) -> CreateSpec:
    fields: dict[str, Any] = {"source": "", "files": {}, "adapters": {}}
    for base in meaning.bases:
        if (folder / base).exists():
            fields["files"] |= upload(registry, folder / base)
        else:
            fields["source"] = base
    if meaning.adapter is not None:
        fields["adapters"] = upload(registry, folder / meaning.adapter)
    for draft in meaning.drafts:
        fields["draft"] = draft
    return CreateSpec(
        model="example",
        template=meaning.template or "",
        system=meaning.system or "",
        license=meaning.licenses,
        parameters=meaning.parameters,
        messages=meaning.messages,
        **fields,
    )


async def build(name: str, tmp_path: Path) -> tuple[ModelSpec, Meaning]:
    """The example, built with what its folder and its base need put in place."""
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder)
    if name == "from-gguf":
        make_pair(tmp_path / "pair", "llama")[1].rename(folder / "model.gguf")
    elif name == "from-folder":
        shutil.copytree(tiny_model("qwen3"), folder / "model")
    elif name == "with-adapter":
        peft_adapter(folder / "adapter", tiny_model("llama"))
    registry = Registry(tmp_path / "models", [], check_template=PromptTemplate.from_go)
    for base in BASES:
        registry.add_model_folder(base, tiny_model("llama"))
    meaning = interpret(parse_modelfile((folder / "Modelfile").read_bytes()))
    assert meaning.warnings == []
    steps = [step.status async for step in registry.create(request(registry, meaning, folder))]
    assert steps[-1] == "success"
    return registry.resolve("example"), meaning


def test_there_are_examples_and_each_is_described() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    assert len(NAMES) >= 6
    for name in NAMES:
        assert f"[{name}]({name}/Modelfile)" in readme


@pytest.mark.parametrize("name", NAMES)
async def test_the_example_builds_and_keeps_what_it_says(name: str, tmp_path: Path) -> None:
    spec, meaning = await build(name, tmp_path)
    assert spec.parameters == meaning.parameters
    assert (spec.system, spec.template, spec.messages) == (meaning.system or "", meaning.template, meaning.messages)
    assert (spec.adapter_path is not None) == (name == "with-adapter")
    assert (spec.draft_path is not None) == (name == "with-draft")
    assert "completion" in spec.capabilities
    assert ("insert" in spec.capabilities) == (name == "fill-in-the-middle")


async def test_the_template_of_an_example_renders_a_conversation(tmp_path: Path) -> None:
    spec, _ = await build("chatml-template", tmp_path)
    assert spec.template is not None and "tools" in spec.capabilities
    template = PromptTemplate.from_go(spec.template)
    messages = [
        Message("system", spec.system),
        Message("user", "Hi"),
        Message("assistant", "Ho"),
        Message("user", "Why?"),
    ]
    assert template.render(GenerateRequest(id=1, messages=messages)).text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHo<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    text = template.render(GenerateRequest(id=1, messages=messages[1:2], tools=[tool])).text
    assert '"name":"f"' in text and text.startswith("<|im_start|>system\n")
