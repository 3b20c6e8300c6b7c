"""Model folders that servers can load: known shapes with random weights, and the bundled SmolLM2 as plain float32.

python -m bench.folders qwen3-0.6b FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from omlx.engine import blas

blas.prepare()

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from omlx_registry import bundled
from omlx_registry.gguf.importer import import_gguf

from bench.shapes import SHAPES, words
from omlx.engine.loader import device

SMOLLM2 = "smollm2"
TEMPLATE = (
    "{% set marks = {'system': 'w1 ', 'user': 'w2 ', 'assistant': 'w3 '} %}"
    "{% for message in messages %}{{ marks[message.role] + message.content + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'w3 ' }}{% endif %}"
)
"""A chat in which every token is a word, as in the vocabulary of `bench.shapes.words`."""


def write_model(folder: Path, shape: str) -> None:
    """A model folder with random weights and a tokenizer in which every token is a word."""
    from transformers import PreTrainedTokenizerFast

    config = SHAPES[shape] | {"architectures": ["Qwen3ForCausalLM"]}
    folder.mkdir(parents=True)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    model.set_dtype(mx.float32 if device() == "cpu" else mx.bfloat16)
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"}
    )
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words(config["vocab_size"]))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def write_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct without quantization: the form in which MLX on a CPU is fast."""
    import_gguf(bundled.path(), folder, "float32", lambda *_: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*SHAPES, SMOLLM2])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.shape == SMOLLM2:
        write_smollm2(options.folder)
    else:
        write_model(options.folder, options.shape)


if __name__ == "__main__":
    main()
