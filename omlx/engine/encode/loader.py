"""Loading a model folder that is no text generator: what embedders and rerankers have in common.

mlx-vlm builds the network. How the weights are held is decided as for any other model, and what cannot be right (an
activation or a position scheme that the network does not have) is refused rather than computed wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mlx_lm.utils import get_total_parameters, load_tokenizer

from omlx.engine import loader, weights
from omlx.engine.encode.rows import RowMaker
from omlx.engine.jsonfile import read_json
from omlx.engine.loader import Progress
from omlx.engine.model_folder import InvalidModel, loadable
from omlx.messages.failures import LoadError
from omlx.messages.load_spec import LoadSpec

_OFFSET_POSITIONS = frozenset({"xlm-roberta", "xlm_roberta", "roberta"})
"""Their first positions stand for padding."""
_LEAST_LIMIT = 8


class OpenedModel(NamedTuple):
    """An encoder's network in memory."""

    model: Any
    row_maker: RowMaker
    filler: int
    """The padding token."""
    weights: str
    weight_bytes: int


def open_model(spec: LoadSpec, build: Callable[[Path], Any], progress: Progress) -> OpenedModel | None:
    """Load `spec.path`; `build` makes the network with lazy weights. None where it makes none. Raises LoadError."""
    if spec.adapter_path:
        raise LoadError(f"{spec.name} cannot be loaded: adapters are not supported for this kind of model")
    try:
        with loadable(spec.path, trust_remote_code=spec.trust_remote_code) as path:
            config, sentence_config = read_json(path / "config.json"), read_json(path / "sentence_bert_config.json")
            check(config)
            model = build(path)
            if model is None:
                return None
            tokenizer = load_tokenizer(path)
    except LoadError:
        raise
    except (
        InvalidModel, OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError, NotImplementedError
    ) as error:  # fmt: skip
        raise LoadError(f"{spec.name} cannot be loaded: {error}") from error
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None:
        raise LoadError(f"{spec.name} cannot be loaded: it has no tokenizer.json, and none can be made from its files")
    plan = weights.choose(
        spec.weights,
        device=loader.device(),
        quantized="quantization" in config,
        parameters=int(get_total_parameters(model)),
        free_bytes=loader.usable_memory(spec.memory_bytes),
    )
    model, size = loader.hold(model, plan, progress)
    filler = config.get("pad_token_id")
    if not isinstance(filler, int):
        filler = tokenizer.pad_token_id
    filler = filler if isinstance(filler, int) and filler >= 0 else 0
    limit = row_limit(spec.engine.context_length, config, sentence_config)
    kinds = config.get("type_vocab_size")
    maker = RowMaker(fast, limit=limit, filler=filler, segments=isinstance(kinds, int) and kinds > 1)
    return OpenedModel(model, maker, filler, plan.text, size)


def row_limit(num_ctx: int, config: dict[str, Any], sentence_config: dict[str, Any]) -> int:
    """Most tokens of a row: the context, the model's positions, and what it was trained to embed."""
    limits = [num_ctx]
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions > 0:
        padding = config.get("pad_token_id")
        offset = (padding if isinstance(padding, int) else 1) + 1
        limits.append(positions - offset if config.get("model_type") in _OFFSET_POSITIONS else positions)
    # The second is Nomic's: beyond it the positions would have to be stretched.
    trained = (sentence_config.get("max_seq_length"), config.get("max_trained_positions"))
    limits += [limit for limit in trained if isinstance(limit, int) and limit > 0]
    return max(_LEAST_LIMIT, min(limits))


def check(config: dict[str, Any]) -> None:
    """Raises LoadError where the network that would be built is not the one that was trained."""
    if config.get("model_type") not in {"bert", *_OFFSET_POSITIONS}:
        return
    activation, scheme = config.get("hidden_act", "gelu"), config.get("position_embedding_type", "absolute")
    if activation not in {"gelu", "gelu_python"}:
        raise LoadError(f"this model's activation {activation!r} is not supported (only gelu is)")
    if scheme not in {None, "absolute"}:
        raise LoadError(f"this model's position_embedding_type {scheme!r} is not supported (only absolute is)")
