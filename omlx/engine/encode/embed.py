"""An *embedder* maps a text to one vector: an encoder, a decoder trained for it, or, for want of better, a chat model.

How the hidden states of a text become one vector (its *pooling*) is part of the model: sentence-transformers keeps
it in the folder that modules.json names, and a wrong pooling gives vectors that look right and find the wrong texts.
All vectors are L2-normalised float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import mlx.core as mx
import numpy as np

from omlx.engine import caches
from omlx.engine.encode.chunked import Parts, Pooling
from omlx.engine.encode.loader import open_model
from omlx.engine.encode.rows import EncodeRow, PaddedRows, RowMaker, Text, TooLong, check_tokens, pad, to_host
from omlx.engine.jsonfile import read_json
from omlx.engine.loader import LoadedModel, Progress, load_model
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CAUSAL = "qwen3_embedding"
"""mlx-vlm's name for the decoder whose padding no real token can see, so that it needs no mask of its own."""

_FIRST_TOKEN_NAMES = ("bge-", "arctic-embed", "mxbai-embed", "gte-modernbert")


class EncoderEmbedder:
    """A network of mlx-vlm that pools by itself. See `rows.Encoder`."""

    def __init__(self, model: Any, maker: RowMaker, filler: int) -> None:
        self._model = model
        self._maker = maker
        self._filler = filler

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        return self._maker.rows(texts, truncate=truncate, limit=limit)

    def compute(self, rows: Sequence[EncodeRow]) -> NDArray[np.float32]:
        batch = pad(rows, self._filler)
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        return to_host(self._model(batch.tokens, attention_mask=batch.mask, **segments).text_embeds)

    def begin(self, row: EncodeRow) -> Parts | None:
        return None  # every token sees all others


class DecoderEmbedder:
    """Hidden states of a causal model, pooled. See `rows.Encoder`."""

    def __init__(
        self,
        model: Any,
        trunk: Any,
        maker: RowMaker | PlainRows,
        *,
        filler: int,
        pooling: Pooling = "mean",
    ) -> None:
        """`trunk`, a part of `model`, maps tokens to hidden states and takes the model's caches."""
        self._model = model
        self._trunk = trunk
        self._maker = maker
        self._filler = filler
        self._pooling = pooling

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        return self._maker.rows(texts, truncate=truncate, limit=limit)

    def compute(self, rows: Sequence[EncodeRow]) -> NDArray[np.float32]:
        batch = pad(rows, self._filler)
        # Causal: what stands before the padding does not see it.
        hidden = self._trunk(batch.tokens, **caches.where_needed(self._model))
        return to_host(pool(hidden.astype(mx.float32), batch, self._pooling))

    def begin(self, row: EncodeRow) -> Parts | None:
        return Parts(self._trunk, caches.new(self._model), row.tokens, self._pooling, to_host)


class PlainRows:
    """Rows of a text generator, whose tokenizer others use too."""

    def __init__(self, encode: Callable[[str, int], list[int]], *, limit: int, filler: int, vocabulary: int) -> None:
        """`encode`: the token ids of a text, more than so many only as far as they were found; from any thread.

        `limit` in tokens. `filler` stands for a text without any.
        """
        self._encode = encode
        self._limit = limit
        self._vocabulary = vocabulary
        self._filler = filler

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        limit = min(limit, self._limit) if limit > 0 else self._limit
        rows = []
        for text in texts:
            if isinstance(text, list):
                check_tokens(text, self._vocabulary)
                rows.append(text)
            elif isinstance(text, str):
                rows.append(self._encode(text, limit))
        if not truncate and any(len(tokens) > limit for tokens in rows):
            raise TooLong
        return [EncodeRow(tokens[:limit] or [self._filler]) for tokens in rows]


def chat_embedder(loaded: LoadedModel, encode: Callable[[str, int], list[int]], limit: int) -> DecoderEmbedder:
    """A text generator as an embedder: the mean of its last states. Raises ValueError where it cannot be one."""
    filler = min(loaded.end_tokens, default=0)
    maker = PlainRows(encode, limit=limit, filler=filler, vocabulary=loaded.vocabulary)
    return DecoderEmbedder(loaded.model, trunk(loaded.model), maker, filler=filler)


def pool(hidden: mx.array, batch: PaddedRows, pooling: Pooling) -> mx.array:
    """One vector a row from states of shape (rows, longest row, width)."""
    match pooling:
        case "cls":
            return hidden[:, 0]
        case "lasttoken":
            return hidden[mx.arange(hidden.shape[0]), batch.lengths - 1]
        case "max":
            return mx.where(batch.mask[..., None] == 1, hidden, -mx.inf).max(axis=1)
        case "mean":
            return (hidden * batch.mask[..., None]).sum(axis=1) / batch.lengths[:, None]


def load_embedder(spec: LoadSpec, progress: Progress) -> tuple[EncoderEmbedder | DecoderEmbedder, str, int]:
    """Load `spec.path` as an embedder; with it how the weights are held, and their bytes. Raises LoadError."""
    pooling = read_pooling(Path(spec.path))
    opened = open_model(spec, build_network, progress)
    if opened is None:
        return _load_decoder(spec, pooling, progress)
    model = opened.model
    pooling = pooling or known_pooling(spec.name, model.model_type)
    embedder: EncoderEmbedder | DecoderEmbedder
    if model.model_type == _CAUSAL:
        embedder = DecoderEmbedder(model.model, model.model, opened.row_maker, filler=opened.filler, pooling=pooling)
    else:
        model.pooling_config = {"pooling_mode": pooling}
        embedder = EncoderEmbedder(model, opened.row_maker, opened.filler)
    return embedder, opened.weights, opened.weight_bytes


def _load_decoder(spec: LoadSpec, pooling: Pooling | None, progress: Progress) -> tuple[DecoderEmbedder, str, int]:
    """A text generator that was trained to embed, or is told to: mlx-lm has its network."""
    loaded = load_model(spec, progress, measure=False)
    filler = min(loaded.end_tokens, default=0)
    maker = RowMaker(loaded.text_tokenizer, limit=min(spec.engine.context_length, loaded.max_context), filler=filler)
    try:
        network = trunk(loaded.model)
    except ValueError as error:
        raise LoadError(f"{spec.name} cannot be loaded: {error}") from error
    embedder = DecoderEmbedder(loaded.model, network, maker, filler=filler, pooling=pooling or "lasttoken")
    return embedder, loaded.weights, loaded.weight_bytes


def build_network(path: Path) -> Any | None:
    """The network with lazy weights; None where mlx-vlm has one of that name, but not as an embedder."""
    from mlx_vlm.embedding_loader import load_embedding_model

    from omlx.engine.encode import nomic  # imports mlx_vlm, as the line above does

    if read_json(path / "config.json").get("model_type") == nomic.MODEL_TYPE:
        return nomic.load(path)
    model = load_embedding_model(path, lazy=True)
    # Nothing is computed here: the graph alone shows what comes out.
    out = model(mx.array([[0]]))
    return model if getattr(out, "text_embeds", None) is not None else None


def known_pooling(name: str, model_type: str) -> Pooling:
    """What a model without sentence-transformers' files was trained for, by its family or else its name.

    Conversions often leave those files out; the best known families that do not use the mean are told by their names.
    """
    known: dict[str, Pooling] = {_CAUSAL: "lasttoken", "lfm2_embedding": "cls"}
    by_name: Pooling = "cls" if any(part in name.lower() for part in _FIRST_TOKEN_NAMES) else "mean"
    return known.get(model_type, by_name)


def read_pooling(folder: Path) -> Pooling | None:
    """The pooling of a sentence-transformers folder; None where it says nothing.

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
    if len(modes) != 1 or modes[0] not in get_args(Pooling):
        raise LoadError(f"this model's pooling ({', '.join(map(str, modes))}) is not supported")
    pooling: Pooling = modes[0]
    return pooling


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
        module = getattr(inner, name, None)
        if callable(module):
            return module
    raise ValueError("this model does not support embeddings")


def normalised(vectors: NDArray[np.float32], dimensions: int = 0) -> NDArray[np.float32]:
    """Rows of length 1, cut to the first `dimensions` values where they have more. A row of zeros stays."""
    wide = vectors.astype(np.float64)
    if 0 < dimensions < wide.shape[-1]:
        wide = wide[..., :dimensions]
    lengths = np.linalg.norm(wide, axis=-1, keepdims=True)
    return (wide / np.where(lengths == 0, 1, lengths)).astype(np.float32)
