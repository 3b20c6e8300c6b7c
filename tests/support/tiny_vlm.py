"""Tiny vision-language models in a folder that mlx-vlm opens, and pictures to show them.

    tiny_vlm("qwen3_vl")            random weights, any name of KINDS; made once per machine and source
    draw("red", "circle")           a picture of 112 x 112 pixels

With random weights a *tiny VLM* checks that two ways of computing the same answer agree. Its weights are enlivened (see
`tests.support.tiny`), so another picture, or the same one at another place, gives another answer.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import json
import random
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from tests.support import tiny

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 210, 40),
    "black": (20, 20, 20),
    "purple": (150, 50, 190),
}
SHAPES = ("circle", "square", "triangle")

_QWEN_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
_GEMMA_TOKENS = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
_IDEFICS_TOKENS = [
    "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
]  # fmt: skip
_TEXT: dict[str, Any] = {
    "hidden_size": tiny.HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "vocab_size": tiny.VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
_PATCH, _SIDE = 14, 56
_QWEN_PICTURES: dict[str, Any] = {
    "patch_size": _PATCH,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": _SIDE * _SIDE,
    "max_pixels": 4 * _SIDE * _SIDE,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "image_processor_type": "Qwen2VLImageProcessor",
}
_QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": _PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
    "hidden_size": tiny.HIDDEN,
    "intermediate_size": 128,
    "out_hidden_size": tiny.HIDDEN,
}
_SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": tiny.HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "patch_size": _PATCH,
    "image_size": _SIDE,
}


class _Kind:
    """What one kind of tiny VLM is made of."""

    def __init__(self, tokens: list[str], marker: str, config: dict[str, Any], pictures: dict[str, Any]) -> None:
        self.tokens, self.marker, self.config, self.pictures = tokens, marker, config, pictures
        self.video = "<video>" if marker == "<image>" else "<|vision_start|><|video_pad|><|vision_end|>"


def _idefics(processor: str) -> _Kind:
    config = {
        "text_config": _TEXT | {"model_type": "llama", "tie_word_embeddings": False},
        "vision_config": _SIGLIP,
        "scale_factor": 2,
    }
    pictures = {
        "image_processor_type": processor,
        "size": {"longest_edge": 2 * _SIDE},
        "max_image_size": {"longest_edge": _SIDE},
        "do_image_splitting": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_seq_len": 4,
    }
    return _Kind(_IDEFICS_TOKENS, "<image>", config, pictures)


def _qwen3(name: str, text: dict[str, Any]) -> _Kind:
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = {
        "text_config": _TEXT | {"model_type": f"{name}_text", "head_dim": 16, "rope_scaling": rope} | text,
        "vision_config": _QWEN_VISION
        | {"model_type": name, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    }
    return _Kind(_QWEN_TOKENS, "<|vision_start|><|image_pad|><|vision_end|>", config, _QWEN_PICTURES)


KINDS: dict[str, _Kind] = {
    "qwen2_5_vl": _Kind(
        _QWEN_TOKENS,
        "<|vision_start|><|image_pad|><|vision_end|>",
        {
            **_TEXT,
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]},
            "vision_config": _QWEN_VISION
            | {"model_type": "qwen2_5_vl", "window_size": 56, "fullatt_block_indexes": [1]},
        },
        _QWEN_PICTURES,
    ),
    "qwen2_vl": _Kind(
        _QWEN_TOKENS,
        "<|vision_start|><|image_pad|><|vision_end|>",
        {
            **_TEXT,
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]},
            "vision_config": _QWEN_VISION
            | {"model_type": "qwen2_vl", "embed_dim": tiny.HIDDEN, "mlp_ratio": 2, "spatial_patch_size": _PATCH},
        },
        _QWEN_PICTURES,
    ),
    "qwen3_vl": _qwen3("qwen3_vl", {}),
    "qwen3_vl_moe": _qwen3(
        "qwen3_vl_moe",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": 64,
        },
    ),
    "gemma3": _Kind(
        _GEMMA_TOKENS,
        "<start_of_image>",
        {
            "text_config": _TEXT
            | {
                "model_type": "gemma3_text",
                "num_hidden_layers": 3,
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": 32,
                "sliding_window_pattern": 3,
                "mm_tokens_per_image": 4,
            },
            "vision_config": _SIGLIP,
            "hidden_size": tiny.HIDDEN,
        },
        {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": _SIDE, "width": _SIDE},
            "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3,
            "image_seq_length": 4,
        },
    ),
    "idefics3": _idefics("Idefics3ImageProcessor"),
    "smolvlm": _idefics("SmolVLMImageProcessor"),
}
_TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}{{- 'MARKER' }}
{%- elif part.type == 'video' %}{{- 'VIDEO' }}
{%- else %}{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def tiny_vlm(kind: str) -> Path:
    """The folder of a tiny VLM. Do not write into it: every test of the machine shares it."""
    source = Path(__file__).read_bytes() + Path(tiny.__file__).read_bytes()
    name = f"omlx-vlm-{getpass.getuser()}-{hashlib.sha256(source).hexdigest()[:16]}"
    machine = Path(tempfile.gettempdir()) / name
    machine.mkdir(parents=True, exist_ok=True)
    folder = machine / kind
    if not folder.exists():
        staging = Path(tempfile.mkdtemp(dir=machine))
        make(staging, kind)
        try:
            staging.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(staging, ignore_errors=True)
    return folder


def make(folder: Path, kind: str, *, seed: int = 0) -> None:
    """Write a model folder; takes about a second."""
    from omlx.engine import blas

    blas.prepare()
    import mlx.core as mx
    from mlx.utils import tree_flatten

    made_of = KINDS[kind]
    ids, end_tokens = _write_tokenizer(folder, made_of)
    config = {"model_type": kind, "architectures": [kind], "vocab_size": tiny.VOCABULARY, **made_of.config}
    config |= _token_settings(ids) | {"eos_token_id": end_tokens, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end_tokens}) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(made_of.pictures, indent=2) + "\n")
    (folder / "processor_config.json").write_text(
        json.dumps({key: value for key, value in made_of.pictures.items() if key.startswith("image_seq")}) + "\n"
    )
    mx.random.seed(seed)
    model = network(kind, config)
    tiny.enliven(model)
    mx.eval(model.parameters())
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def network(kind: str, config: dict[str, Any]) -> Any:
    """The network with fresh weights, built as mlx-vlm builds it when it loads."""
    from mlx_vlm.utils import update_module_configs

    module = import_module(f"mlx_vlm.models.{kind}")
    given = json.loads(json.dumps(config))
    settings = module.ModelConfig.from_dict(given)
    return module.Model(update_module_configs(settings, module, given, ["text", "vision"]))


def _token_settings(ids: dict[str, int]) -> dict[str, int]:
    names = {
        "image_token_id": ("<|image_pad|>", "<image>"),
        "video_token_id": ("<|video_pad|>",),
        "vision_start_token_id": ("<|vision_start|>",),
        "vision_end_token_id": ("<|vision_end|>",),
        "image_token_index": ("<image_soft_token>",),
        "boi_token_index": ("<start_of_image>",),
        "eoi_token_index": ("<end_of_image>",),
    }
    return {name: ids[token] for name, tokens in names.items() for token in tokens if token in ids}


def _write_tokenizer(folder: Path, kind: _Kind) -> tuple[dict[str, int], list[int]]:
    """Train a byte-level BPE on a few sentences; returns the ids of the special tokens and those that end a reply."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *kind.tokens]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    sentences = [f"I see a {colour} {shape}." for colour in COLOURS for shape in SHAPES]
    corpus = [
        *sentences,
        "What is in this picture? Nothing yet. Describe the pictures.",
        str(__doc__),
        str(draw.__doc__),
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=tiny.VOCABULARY,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus * 3, trainer)
    tiny.save_tokenizer(folder, tokenizer, _TEMPLATE.replace("MARKER", kind.marker).replace("VIDEO", kind.video))
    ids = {token: int(tokenizer.token_to_id(token)) for token in special}
    return ids, [ids["<|im_end|>"], ids["<|endoftext|>"]]


def draw(colour: str, shape: str, *, side: int = 112, seed: int = 0) -> Image.Image:
    """A square picture of one shape on a light ground; the seed moves the shape and changes its size."""
    chance = random.Random(seed)
    picture = Image.new("RGB", (side, side), (245, 245, 250))
    radius = side * chance.uniform(0.28, 0.42)
    x, y = (chance.uniform(radius + 2, side - radius - 2) for _ in range(2))
    pen = ImageDraw.Draw(picture)
    box = [x - radius, y - radius, x + radius, y + radius]
    if shape == "circle":
        pen.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        pen.rectangle(box, fill=COLOURS[colour])
    else:
        pen.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=COLOURS[colour])
    return picture


def as_file(picture: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The picture as the bytes of a file."""
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()
