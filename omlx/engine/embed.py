"""An *embedder* maps a text to one vector: an encoder, a decoder trained for it, or, for want of better, a chat model.

How the hidden states of a text become one vector (its *pooling*) is part of the model: sentence-transformers keeps it
in the folder that modules.json names, and a wrong pooling gives vectors that look right and find the wrong texts. All
vectors are L2-normalised float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from omlx.engine.encoder_loader import OpenedModel, open_model, read_json
from omlx.engine.loader import LoadedModel, LoadError, Progress
from omlx.engine.rows import Batch, Row, Text, TooLong, pad, to_host
from omlx.runner.protocol import LoadSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CAUSAL = "qwen3_embedding"
"""mlx-vlm's name for the decoder whose padding no real token can see, so that it needs no mask of its own."""


class Embedder:
    """A model made for embedding. See `rows.Encoder`."""

    def __init__(self, opened: OpenedModel) -> None:
        self._model = opened.model
        self._maker = opened.row_maker
        self._filler = opened.filler
        causal = getattr(self._model, "model_type", "") == _CAUSAL
        self._forward = self._causal if causal else self._masked

    def rows(self, texts: Sequence[Text], *, truncate: bool) -> list[Row]:
        return self._maker.rows(texts, truncate=truncate)

    def compute(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        return to_host(self._forward(pad(rows, self._filler)))

    def _masked(self, batch: Batch) -> mx.array:
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        out: mx.array = self._model(batch.tokens, attention_mask=batch.mask, **segments).text_embeds
        return out

    def _causal(self, batch: Batch) -> mx.array:
        from mlx_vlm.models.pooling import pool_by_config

        hidden = self._model.model(batch.tokens)
        pooled: mx.array = pool_by_config(hidden, batch.mask, self._model.pooling_config)
        return pooled


class ChatEmbedder:
    """A text generator used as an embedder: the mean of its last hidden states. See `rows.Encoder`."""

    def __init__(self, loaded: LoadedModel, encode: Callable[[str], list[int]], limit: int) -> None:
        """`encode`: text to token ids, from any thread. `limit` in tokens."""
        self._trunk = trunk(loaded.model)
        self._encode = encode
        self._limit = limit
        self._filler = min(loaded.end_tokens, default=0)

    def rows(self, texts: Sequence[Text], *, truncate: bool) -> list[Row]:
        found = [self._encode(text) for text in texts if isinstance(text, str)]
        if not truncate and any(len(tokens) > self._limit for tokens in found):
            raise TooLong
        return [Row(tokens[: self._limit] or [self._filler]) for tokens in found]

    def compute(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        batch = pad(rows, self._filler)
        # Causal: what stands before the padding does not see it.
        hidden = self._trunk(batch.tokens).astype(mx.float32) * batch.mask[..., None]
        return to_host(hidden.sum(axis=1) / batch.lengths[:, None])


def load_embedder(spec: LoadSpec, progress: Progress) -> tuple[Embedder, OpenedModel]:
    """Load `spec.path` as an embedder. Raises LoadError."""
    opened = open_model(spec, _build, progress)
    return Embedder(opened), opened


def _build(path: Path) -> Any:
    from mlx_vlm.embedding_loader import load_embedding_model

    model = load_embedding_model(path, lazy=True)
    model.pooling_config = read_pooling(path) or {"pooling_mode": _default_pooling(model)}
    return model


def _default_pooling(model: Any) -> str:
    """What a model without sentence-transformers' files was trained for."""
    return {_CAUSAL: "lasttoken", "lfm2_embedding": "cls"}.get(str(getattr(model, "model_type", "")), "mean")


def read_pooling(folder: Path) -> dict[str, Any] | None:
    """The pooling of a sentence-transformers folder as `{"pooling_mode": mode}`; None where it says nothing.

    Raises LoadError for a pooling that cannot be done.
    """
    config = read_json(folder / pooling_folder(folder) / "config.json")
    if not config:
        return None
    modes = config.get("pooling_mode")
    if modes is None:
        flags = {
            "pooling_mode_cls_token": "cls",
            "pooling_mode_max_tokens": "max",
            "pooling_mode_mean_tokens": "mean",
            "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
            "pooling_mode_weightedmean_tokens": "weightedmean",
            "pooling_mode_lasttoken": "lasttoken",
        }
        modes = [mode for flag, mode in flags.items() if config.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    # Once normalised, a mean by the root of the length is the mean.
    modes = ["mean" if mode == "mean_sqrt_len_tokens" else mode for mode in modes]
    if len(modes) != 1 or modes[0] not in {"cls", "max", "mean", "lasttoken"}:
        raise LoadError(f"this model's pooling ({', '.join(map(str, modes))}) is not supported")
    return {"pooling_mode": modes[0]}


def pooling_folder(folder: Path) -> str:
    """Where modules.json says the pooling module is; "1_Pooling" where it does not say."""
    try:
        modules = json.loads((folder / "modules.json").read_text("utf-8"))
    except (OSError, ValueError):
        modules = []
    for module in modules if isinstance(modules, list) else []:
        if isinstance(module, dict) and str(module.get("type", "")).endswith("Pooling"):
            return Path(str(module.get("path") or "1_Pooling")).name
    return "1_Pooling"


def trunk(model: Any) -> Any:
    """The part of a mlx-lm model that maps tokens to hidden states. Raises ValueError where it cannot be told."""
    inner = getattr(model, "language_model", model)
    for name in ("model", "transformer", "backbone"):
        found = getattr(inner, name, None)
        if callable(found):
            return found
    raise ValueError("this model does not support embeddings")


def normalised(vectors: NDArray[np.float32], dimensions: int = 0) -> NDArray[np.float32]:
    """Rows of length 1, cut to the first `dimensions` values where they have more. A row of zeros stays."""
    wide = vectors.astype(np.float64)
    if 0 < dimensions < wide.shape[-1]:
        wide = wide[..., :dimensions]
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / np.where(lengths == 0, 1, lengths)).astype(np.float32)
