"""A tiny Whisper with random weights, in both layouts that it is published in, and sounds to give it.

Its tokenizer is a real byte-level one with Whisper's special tokens; words beyond the bytes only fill the vocabulary up
to the size that tells a multilingual model. A *sure* one has weights so large that it never doubts its text: it is
decoded greedily, while an unsure one goes through all temperatures.
"""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any, Literal

import numpy as np

Layout = Literal["mlx", "huggingface"]
WIDTH, HEADS, LAYERS, TEXT_POSITIONS, MELS = 16, 2, 1, 20, 80
_WORDS = 50_257
RATE = 16_000


def make_whisper(folder: Path, layout: Layout = "mlx", *, sure: bool = True, multilingual: bool = True) -> Path:
    """Write a model folder."""
    from omlx.engine import blas

    blas.prepare()
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_map
    from mlx_audio.stt.models.whisper.whisper import Model, ModelDimensions

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, multilingual=multilingual)
    dims = ModelDimensions(
        MELS, 1500, WIDTH, HEADS, LAYERS, vocabulary, TEXT_POSITIONS, WIDTH, HEADS, LAYERS
    )  # fmt: skip
    mx.random.seed(5)
    network = Model(dims, mx.float32)
    network.update(tree_map(lambda value: 1.5 * value + 0.1 * mx.random.normal(value.shape), network.parameters()))
    scale = mx.concatenate([mx.full((vocabulary - 1501,), 1.0), mx.full((1501,), 0.9 if sure else 0.3)])[:, None]
    embedding = mx.random.normal((vocabulary, WIDTH)) * scale * (1.0 if sure else 0.5)
    network.decoder.token_embedding.weight = embedding
    network.decoder.positional_embedding = mx.random.normal((TEXT_POSITIONS, WIDTH))
    weights = dict(tree_flatten(network.parameters()))
    if layout == "mlx":
        config: dict[str, Any] = {"model_type": "whisper", **vars(dims)}
    else:
        config = {
            "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "num_mel_bins": MELS,
            "max_source_positions": 1500, "d_model": WIDTH, "encoder_attention_heads": HEADS, "encoder_layers": LAYERS,
            "vocab_size": vocabulary, "max_target_positions": TEXT_POSITIONS, "decoder_attention_heads": HEADS,
            "decoder_layers": LAYERS, "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH,
        }  # fmt: skip
        weights = {_published(name): _turned(name, value) for name, value in weights.items()}
        weights["model.encoder.embed_positions.weight"] = network.encoder._positional_embedding
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"alignment_heads": [[0, 1]]}))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def write_tokenizer(folder: Path, *, multilingual: bool = True) -> int:
    """Returns the size of the vocabulary."""
    from mlx_audio.stt.models.whisper.tokenizer import LANGUAGES
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"Ġw{number}" for number in range(_WORDS - len(letters)))] if multilingual else letters
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    languages = list(LANGUAGES)[:99] if multilingual else []
    special = [
        "<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages), "<|translate|>",
        "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
    ]  # fmt: skip
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(f"<|{number * 0.02:.2f}|>", special=False) for number in range(1501)])
    wrapped = WhisperTokenizer(tokenizer_object=tokenizer)
    wrapped.save_pretrained(folder)
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def sound(seconds: float, *, rate: int = RATE, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Tones that come and go: something else in each second."""
    source = np.random.default_rng(seed)
    times = np.arange(int(seconds * rate)) / rate
    pitches = 200 + 2000 * source.random(int(seconds) + 1)
    loud = 0.05 + 0.4 * source.random(int(seconds) + 1)
    second = times.astype(int)
    tones = loud[second] * np.sin(2 * np.pi * pitches[second] * times)
    return np.asarray(tones + 0.01 * source.standard_normal(len(times)), np.float32)


def as_wav(samples: np.ndarray[Any, np.dtype[np.float32]], *, rate: int = RATE, channels: int = 1) -> bytes:
    """16-bit; all channels are the same."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        values = np.clip(np.round(samples * 32768), -32768, 32767).astype("<i2")
        file.writeframes(np.repeat(values, channels).tobytes())
    return buffer.getvalue()


def _published(name: str) -> str:
    """Hugging Face's name of a tensor."""
    for ours, theirs in (
        ("encoder.ln_post.", "encoder.layer_norm."), ("decoder.ln.", "decoder.layer_norm."), (".blocks.", ".layers."),
        (".cross_attn_ln.", ".encoder_attn_layer_norm."), (".attn_ln.", ".self_attn_layer_norm."),
        (".mlp_ln.", ".final_layer_norm."), (".mlp1.", ".fc1."), (".mlp2.", ".fc2."),
        (".cross_attn.", ".encoder_attn."), (".attn.", ".self_attn."), (".query.", ".q_proj."), (".key.", ".k_proj."),
        (".value.", ".v_proj."), ("_attn.out.", "_attn.out_proj."),
        ("decoder.token_embedding.", "decoder.embed_tokens."),
        ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return f"model.{name}"


def _turned(name: str, value: Any) -> Any:
    return value.transpose(0, 2, 1) if ".conv" in f".{name}" and name.endswith("weight") else value
