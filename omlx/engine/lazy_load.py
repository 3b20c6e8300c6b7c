"""A lazy load: a model folder is opened as the runner opens it, but no weight is read and nothing is computed.

It shows whether a new model will load: its network takes the weights by name and shape, its tokenizer opens, and so
does the image processor of a model that sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import load_model, load_tokenizer

from omlx.engine.encode import embed, rerank
from omlx.engine.encode.loader import check
from omlx.engine.jsonfile import read_json
from omlx.engine.loader import end_tokens
from omlx.engine.vision import loader as vision_loader


def open_model(folder: Path, capabilities: Sequence[str]) -> None:
    """Raises what the libraries raise, or LoadError, where the model does not load. `folder`: an inert one."""
    if "transcription" in capabilities:
        _open_speech(folder)
    elif "completion" in capabilities or not {"rerank", "embedding"} & {*capabilities}:
        _open_generator(folder)
    elif "rerank" in capabilities:
        _open_reranker(folder)
    else:
        _open_embedder(folder)


def _open_generator(folder: Path) -> None:
    if vision_loader.sees(folder):
        network, config = vision_loader.open_network(folder)
        tokenizer = load_tokenizer(folder, eos_token_ids=end_tokens(folder, config))
        vision_loader.open_vision(folder, network, config, tokenizer, salt="", max_bytes=0)
    else:
        _, config = load_model(folder, lazy=True)
        load_tokenizer(folder, eos_token_ids=end_tokens(folder, config))


def _open_reranker(folder: Path) -> None:
    config = read_json(folder / "config.json")
    if not rerank.is_cross_encoder(config):
        _open_generator(folder)
        return
    check(config)
    if rerank.build_network(folder) is None:
        raise ValueError("its network is not known")
    load_tokenizer(folder)


def _open_embedder(folder: Path) -> None:
    embed.read_pooling(folder)
    check(read_json(folder / "config.json"))
    if embed.build_network(folder) is None:
        model, _ = load_model(folder, lazy=True)
        embed.trunk(model)
    load_tokenizer(folder)


def _open_speech(folder: Path) -> None:
    from transformers import WhisperTokenizer

    from omlx.engine.speech import network as speech  # imports mlx_audio, which only such models need

    network = speech.open_network(folder, read_json(folder / "config.json"), mx.float16)
    network.use(WhisperTokenizer.from_pretrained(folder))
