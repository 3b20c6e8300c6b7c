"""A *reranker* says how well a document answers a query, as a number from 0 to 1.

Two kinds: a *cross-encoder* reads both texts as one pair and ends in a single logit; a *generative* one is a
language model that was trained to judge, and its score is the probability of "yes" against "no".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from omlx.engine import caches, tokenization
from omlx.engine.encode.chunked import Parts
from omlx.engine.encode.embed import trunk
from omlx.engine.encode.loader import OpenedModel, open_model, row_limit
from omlx.engine.encode.rows import EncodeRow, Text, TooLong, pad, to_host, untruncated
from omlx.engine.jsonfile import read_json
from omlx.engine.loader import LoadedModel, Progress, load_model
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_TASK = "Given a web search query, retrieve relevant passages that answer the query"
"""The words that Qwen3-Reranker was trained with."""


class CrossEncoder:
    """See `rows.Encoder`."""

    def __init__(self, opened: OpenedModel) -> None:
        self._model = opened.model
        self._maker = opened.row_maker
        self._filler = opened.filler

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        return self._maker.rows(texts, truncate=truncate, limit=limit)

    def compute(self, rows: Sequence[EncodeRow]) -> NDArray[np.float32]:
        batch = pad(rows, self._filler)
        segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
        logits = self._model(batch.tokens, attention_mask=batch.mask, **segments).logits
        return to_host(mx.sigmoid(logits.astype(mx.float32).reshape(len(rows), 1)))

    def begin(self, row: EncodeRow) -> Parts | None:
        return None  # every token sees all others


class GenerativeReranker:
    """See `rows.Encoder`. Raises ValueError where the tokenizer lacks what a judgement needs."""

    def __init__(self, loaded: LoadedModel, limit: int) -> None:
        # A tokenizer of its own: in a query or document, the markers of a turn shall be plain text.
        self._tokenizer = untruncated(loaded.text_tokenizer)
        self._encode = tokenization.fast_encode(self._tokenizer)
        self._before, self._after = self._ids(_BEFORE), self._ids(_AFTER)
        yes, no = self._ids("yes"), self._ids("no")
        if len(yes) != 1 or len(no) != 1:
            raise ValueError('this model cannot rank: its tokenizer has no single tokens for "yes" and "no"')
        self._tokenizer.encode_special_tokens = True
        self._room = limit - len(self._before) - len(self._after)
        if self._room < 1:
            raise ValueError(f"a context of {limit} tokens is too small for this model to rank")
        self._model = loaded.model
        self._trunk = trunk(loaded.model)
        self._answers = _answer_weights(loaded.model, mx.array([yes[0], no[0]]))
        self._filler = min(loaded.end_tokens, default=0)

    def rows(self, texts: Sequence[Text], *, truncate: bool, limit: int = 0) -> list[EncodeRow]:
        bodies = [f"<Instruct>: {_TASK}\n<Query>: {text[0]}\n<Document>: {text[1]}" for text in texts]
        room = self._room
        if limit > 0:
            room = max(min(room, limit - len(self._before) - len(self._after)), 1)
        bodies_ids = [tokenization.ids(body, self._encode, most=room)[0] for body in bodies]
        if not truncate and any(len(body) > room for body in bodies_ids):
            raise TooLong
        return [EncodeRow([*self._before, *body[:room], *self._after]) for body in bodies_ids]

    def compute(self, rows: Sequence[EncodeRow]) -> NDArray[np.float32]:
        batch = pad(rows, self._filler)
        # Causal: the last real token sees all of its row and nothing of the padding.
        hidden = self._trunk(batch.tokens, **caches.where_needed(self._model))
        return self._judge(hidden[mx.arange(len(rows)), batch.lengths - 1])

    def begin(self, row: EncodeRow) -> Parts | None:
        return Parts(self._trunk, caches.new(self._model), row.tokens, "lasttoken", self._judge)

    def _judge(self, last: mx.array) -> NDArray[np.float32]:
        """Of the state of each row's last token [rows, width]."""
        logits = last.astype(mx.float32) @ self._answers.T
        return to_host(mx.sigmoid(logits[:, :1] - logits[:, 1:]))

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def load_reranker(spec: LoadSpec, progress: Progress) -> tuple[CrossEncoder | GenerativeReranker, str, int]:
    """Load `spec.path` as a reranker; with it how the weights are held, and their bytes. Raises LoadError."""
    config = read_json(Path(spec.path) / "config.json")
    if is_cross_encoder(config):
        opened = open_model(spec, build_network, progress)
        if opened is None:
            raise LoadError(f"{spec.name} cannot be loaded: its network is not known")
        return CrossEncoder(opened), opened.weights, opened.weight_bytes
    loaded = load_model(spec, progress, measure=False)
    try:
        reranker = GenerativeReranker(loaded, row_limit(spec.engine.context_length, config, {}))
    except ValueError as error:
        raise LoadError(f"{spec.name} cannot be loaded: {error}") from error
    return reranker, loaded.weights, loaded.weight_bytes


def is_cross_encoder(config: dict[str, Any]) -> bool:
    """Whether the model is a classifier of pairs; else it is a text generator that answers yes or no."""
    return any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or [])


def build_network(path: Path) -> Any:
    """The network with lazy weights; None where mlx-vlm has none."""
    from mlx_vlm.reranker_loader import load_sequence_classification_model

    return load_sequence_classification_model(path, lazy=True)


def _answer_weights(model: Any, tokens: mx.array) -> mx.array:
    """The rows of the language head that belong to `tokens`, as float32. Shape (tokens, hidden size)."""
    inner = getattr(model, "language_model", model)
    head = getattr(inner, "lm_head", None)
    if head is None:
        head = trunk(model).embed_tokens
    if hasattr(head, "scales"):
        biases = head.get("biases")
        rows = mx.dequantize(
            head.weight[tokens],
            head.scales[tokens],
            None if biases is None else biases[tokens],
            group_size=head.group_size,
            bits=head.bits,
            mode=getattr(head, "mode", "affine"),
        )
    else:
        rows = head.weight[tokens]
    rows = rows.astype(mx.float32)
    mx.eval(rows)
    return rows
