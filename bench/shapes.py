"""Models of known shapes with random weights, and prompts: what the benchmarks run.

A model of the right shape with random weights is as fast as a trained one. Import `omlx.engine.blas` and prepare it
before this module: it imports MLX.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import Tokenizer, models, pre_tokenizers

from omlx.engine.fuse import fuse
from omlx.engine.loader import LoadedModel, device, wrap

_COMMON: dict[str, Any] = {
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _COMMON
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": _COMMON
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "smollm2-135m": _COMMON
    | {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "small": _COMMON
    | {
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "intermediate_size": 768,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
    },
}
SHAPES["tiny"] = SHAPES["small"] | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
}


def words(vocabulary: int) -> Tokenizer:
    """Token 5 is "w5"; a prompt is such words with blanks between them."""
    tokenizer = Tokenizer(models.WordLevel({f"w{at}": at for at in range(vocabulary)}, "w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


class WordTokenizer:
    """What the engine asks of a tokenizer, for models that were never given one."""

    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, vocabulary: int) -> None:
        self.backend_tokenizer = words(vocabulary)


class Subject(NamedTuple):
    """The same weights as the engine holds them and as mlx-lm built them."""

    ours: LoadedModel
    plain: Any


def random_model(shape: str, *, vocabulary: int = 0) -> Subject:
    """A model with random weights: bfloat16 on an accelerator, float32 on a CPU. `vocabulary` replaces its own."""
    config = SHAPES[shape] | ({"vocab_size": vocabulary} if vocabulary else {})
    plain, model = (qwen3.Model(qwen3.ModelArgs.from_dict(config)) for _ in range(2))
    plain.set_dtype(mx.float32 if device() == "cpu" else mx.bfloat16)
    mx.eval(plain.parameters())
    model.update(plain.parameters())
    fuse(model)
    mx.eval(model.parameters())
    size = sum(value.nbytes for _, value in tree_flatten(model.parameters()))
    tokenizer = WordTokenizer(config["vocab_size"])
    return Subject(wrap(model, tokenizer, max_context=40960, weights="random", weight_bytes=size), plain)


def prompts(count: int, length: int, *, uneven: bool) -> list[list[int]]:
    """`count` prompts of about `length` tokens; `uneven`: from half to one and a half times as long."""
    spread = [length // 2 + length * at // max(count - 1, 1) if uneven and count > 1 else length for at in range(count)]
    return [[(at * 131 + place * 7) % 53 + 10 for place in range(size)] for at, size in enumerate(spread)]
