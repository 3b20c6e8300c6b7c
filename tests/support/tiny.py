"""Tiny models in a folder that mlx-lm opens, made on the spot or, where taught, kept as small files beside the tests.

A *tiny model* has hidden size 64 and a vocabulary of 640. With random weights it checks that two ways of computing the
same thing agree; a *taught* one answers the lessons of `tests.support.lessons` word for word under greedy decoding.

    tiny_model("gemma3_text")          random weights, any name of ARCHITECTURES; made once per machine and source
    tiny_model("qwen3", taught=True)   committed under tests/data; remade by `python -m tests.support.tiny --make`
"""

from __future__ import annotations

import argparse
import getpass
import hashlib
import json
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.lessons import LESSONS, STORY
from tests.support.tiny_template import CHATML, CHATML_MARKERS, CHATML_SPECIAL

HIDDEN, VOCABULARY = 64, 640
DATA = Path(__file__).parents[1] / "data"
TAUGHT = ("llama", "qwen3")

_DENSE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
_LLAMA4_TEXT: dict[str, Any] = _DENSE | {
    "model_type": "llama4_text",
    "num_hidden_layers": 4,
    "attention_bias": False,
    "attention_chunk_size": 64,
    "interleave_moe_layer_step": 1,
    "intermediate_size_mlp": 128,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "rope_scaling": None,
    "use_qk_norm": True,
}
_GEMMA3N_TEXT: dict[str, Any] = _DENSE | {
    "model_type": "gemma3n_text",
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16,
    "sliding_window": 64,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": 30.0,
    "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0, 0.0],
    "altup_num_inputs": 2,
    "altup_coef_clip": 120.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 16,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _DENSE,
    "qwen2": _DENSE,
    "qwen3": _DENSE,
    "qwen3_moe": _DENSE | _EXPERTS,
    "gemma3_text": _DENSE
    | {
        "num_hidden_layers": 6,
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 32,
        "sliding_window": 64,
        "sliding_window_pattern": 3,
    },
    # Its last layers look into the caches of earlier ones and have none of their own.
    "gemma3n": {"text_config": _GEMMA3N_TEXT, "vocab_size": VOCABULARY, "max_position_embeddings": 4096},
    "gpt_oss": _DENSE
    | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "sliding_window": 64,
        "rope_theta": 150000,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 2.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 2048,
        },
    },
    "qwen3_next": _DENSE
    | _EXPERTS
    | {
        "num_hidden_layers": 4,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "shared_expert_intermediate_size": 64,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
    "mamba": {
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 2,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
        "tie_word_embeddings": True,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
    },
    "mamba2": {
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, 1e9],
        "time_step_rank": 4,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
    },
    "falcon_h1": _DENSE
    | {
        "mamba_d_ssm": 128,
        "mamba_d_state": 16,
        "mamba_d_head": 32,
        "mamba_n_heads": 4,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 64,
        "lm_head_multiplier": 1.0,
    },
    "deepseek_v3": _DENSE
    | {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "qk_nope_head_dim": 32,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "rope_scaling": None,
    },
    "lfm2": {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": HIDDEN,
        "block_ff_dim": 192,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
    "nemotron_h": {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "max_position_embeddings": 4096,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "attention_bias": False,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "mamba_proj_bias": False,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": ["M", "*", "-", "M"],
    },
    "jamba": {
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
        "vocab_size": VOCABULARY,
    },
    # Its chunked attention cache cannot be merged: the model that must run alone.
    "llama4": {"text_config": _LLAMA4_TEXT, "vocab_size": VOCABULARY, "max_position_embeddings": 4096},
}


def tiny_model(architecture: str, *, taught: bool = False) -> Path:
    """The folder of a tiny model: config.json, model.safetensors, tokenizer files. KeyError for an unknown name.

    Do not write into it: every test of the machine shares it.
    """
    if taught:
        folder = DATA / f"taught-{architecture}"
        if not (folder / "model.safetensors").exists():
            raise KeyError(f"no taught {architecture}: known are {', '.join(TAUGHT)}")
        return folder
    folder = _machine_cache() / architecture
    if not folder.exists():
        config = ARCHITECTURES[architecture]
        staging = Path(tempfile.mkdtemp(dir=_machine_cache()))
        make(staging, architecture, config, taught=False)
        try:
            staging.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def _machine_cache() -> Path:
    """One folder per source of this maker, so that a change remakes every model."""
    digest = hashlib.sha256()
    for name in ("tiny.py", "lessons.py", "tiny_template.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    folder = Path(tempfile.gettempdir()) / f"omlx-tiny-{getpass.getuser()}-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make(folder: Path, architecture: str, config: dict[str, Any], *, taught: bool, seed: int = 0) -> None:
    """Write a model folder; about a second, or 15 to 30 where it is taught."""
    from omlx.engine import blas

    blas.prepare()
    import mlx.core as mx
    from mlx.utils import tree_flatten

    folder.mkdir(parents=True, exist_ok=True)
    end_tokens = _write_tokenizer(folder)
    config = {"model_type": architecture, "architectures": [architecture], **config}
    config |= {"eos_token_id": end_tokens, "torch_dtype": "float32"}
    mx.random.seed(seed)
    module = import_module(f"mlx_lm.models.{architecture}")
    model = module.Model(module.ModelArgs.from_dict(config))
    if taught:
        _teach(model, _lesson_tokens(folder))
    else:
        enliven(model)
    mx.eval(model.parameters())
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end_tokens}) + "\n")


def enliven(model: Any) -> None:
    """Make random weights sensitive to the whole context, so that a mistake changes the answer.

    Parameters that start as all zeros or ones hide mistakes (a conv of zeros forgets its state): they get noise. Fresh
    layers hardly move the residual, and a model that repeats its last token tests nothing: matrices are scaled up.
    """
    import mlx.core as mx
    from mlx.utils import tree_map_with_path

    def enliven(path: str, value: Any) -> Any:
        flat = value.reshape(-1)
        if not mx.issubdtype(value.dtype, mx.floating):  # packed weights
            return mx.random.randint(0, 256, value.shape).astype(value.dtype)
        if flat.size > 1 and mx.all(flat == flat[0]).item():
            return value + 0.1 * mx.random.normal(value.shape, dtype=value.dtype)
        return value * 2.5 if value.ndim >= 2 and "embed" not in path else value

    model.update(tree_map_with_path(enliven, model.parameters()))


def _write_tokenizer(folder: Path) -> list[int]:
    """Train a byte-level BPE on the lessons; returns the ids that end a reply."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = [str(lesson) for lesson in LESSONS] + [STORY, CHATML, str(__doc__)] * 2
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CHATML_MARKERS),
        special_tokens=CHATML_SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in CHATML_MARKERS])
    save_tokenizer(folder, tokenizer, CHATML)
    return [int(tokenizer.token_to_id(text) or 0) for text in ("<|im_end|>", "<|endoftext|>")]


def _lesson_tokens(folder: Path) -> list[tuple[list[int], list[int]]]:
    """Prompt and reply ids of every lesson, with thinking on and off."""
    from mlx_lm.tokenizer_utils import load

    tokenizer = load(folder)
    pairs: list[tuple[list[int], list[int]]] = []
    for lesson in LESSONS:
        for think in (True, False):
            prompt = tokenizer.apply_chat_template(
                lesson.messages,
                tools=lesson.tools or None,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=think,
            )
            reply = lesson.reply(think=think)
            prompt_ids, reply_ids = (tokenizer.encode(text, add_special_tokens=False) for text in (prompt, reply))
            pairs.append((prompt_ids, reply_ids))
    return pairs


def _teach(model: Any, pairs: list[tuple[list[int], list[int]]], *, steps: int = 1500, rate: float = 3e-3) -> None:
    """Train until every reply token wins by a margin of 2 logits. RuntimeError where `steps` do not suffice."""
    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim

    width = max(len(prompt) + len(reply) for prompt, reply in pairs)
    rows, weights = [], []
    for prompt, reply in pairs:
        row = prompt + reply
        rows.append(row + [0] * (width - len(row)))
        weights.append([float(len(prompt) <= at + 1 < len(row)) for at in range(width - 1)])
    tokens, weight = mx.array(rows), mx.array(weights)
    inputs, goals = tokens[:, :-1], tokens[:, 1:]
    is_goal = mx.arange(VOCABULARY) == goals[..., None]

    def loss(network: Any) -> tuple[Any, Any]:
        logits = network(inputs).astype(mx.float32)
        entropy = nn.losses.cross_entropy(logits, goals, reduction="none")
        right = mx.take_along_axis(logits, goals[..., None], -1)[..., 0]
        best_wrong = mx.where(is_goal, -1e9, logits).max(-1)
        margin = mx.where(weight > 0, right - best_wrong, 1e9).min()
        return (entropy * weight).sum() / weight.sum(), margin

    schedule = optim.join_schedules(
        [optim.linear_schedule(1e-5, rate, 20), optim.cosine_decay(rate, steps, rate / 20)], [20]
    )
    optimizer = optim.Adam(learning_rate=schedule)
    gradient = nn.value_and_grad(model, loss)
    for _ in range(steps):
        (_, margin), grads = gradient(model)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state, margin)
        if margin.item() > 2:
            return
    raise RuntimeError("the lessons were not learnt; give it more steps")


def save_tokenizer(folder: Path, tokenizer: Any, template: str) -> None:
    """tokenizer.json and tokenizer_config.json, for a tokenizer with ChatML's special tokens."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    """`--make` writes the taught models that the repository carries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true", help="make the taught models under tests/data anew")
    if parser.parse_args().make:
        for architecture in TAUGHT:
            make(DATA / f"taught-{architecture}", architecture, ARCHITECTURES[architecture], taught=True)
            print(f"taught {architecture}")


if __name__ == "__main__":
    main()
