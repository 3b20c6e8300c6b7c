"""A vocabulary for GGUF: a byte-level BPE tokenizer.json as the metadata that llama.cpp rebuilds it from.

GGUF stores neither the patterns that cut text before merging nor the normalizer, only a name for both
("pre-tokenizer"). So a tokenizer can be written if its cutting is that of a name that `tokenizer` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguf import GGUFWriter

from omlx_registry.gguf.container import GgufError
from omlx_registry.gguf.cuts import cut_name

_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5


def write_vocabulary(writer: GGUFWriter, tokenizer: Mapping[str, Any], config: Mapping[str, Any], rows: int) -> None:
    """Add the keys `tokenizer.ggml.*`. `config`: config.json; `rows`: of the embedding. Raises GgufError."""
    model = tokenizer.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise GgufError("only byte-level BPE tokenizers can be written as GGUF; this model has another kind")
    name = cut_name(tokenizer)
    if name is None:
        raise GgufError("the model's tokenizer cuts text in a way that GGUF has no name for")
    added = {int(it["id"]): it for it in tokenizer.get("added_tokens") or []}
    by_id = {index: token for token, index in model["vocab"].items()} | {i: it["content"] for i, it in added.items()}
    if by_id and max(by_id) >= rows:
        raise GgufError("the model's vocabulary has more tokens than its embedding has rows")
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(rows)]
    kinds = [
        (_CONTROL if added[index].get("special") else _USER)
        if index in added
        else _NORMAL if index in by_id else _UNUSED
        for index in range(rows)
    ]  # fmt: skip
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([it if isinstance(it, str) else " ".join(it) for it in model["merges"]])
    writer.add_add_bos_token(_adds_bos(tokenizer))
    ends = config.get("eos_token_id")
    eos = ends[0] if isinstance(ends, list) and ends else ends
    for add, token in (
        (writer.add_eos_token_id, eos),
        (writer.add_bos_token_id, config.get("bos_token_id")),
        (writer.add_pad_token_id, config.get("pad_token_id")),
    ):
        if isinstance(token, int) and 0 <= token < rows:
            add(token)


def _adds_bos(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the post-processor puts a token in front of a text."""
    processor = tokenizer.get("post_processor") or {}
    steps = processor.get("processors") or [processor]
    templates = [step["single"] for step in steps if step.get("type") == "TemplateProcessing" and step.get("single")]
    return any("SpecialToken" in template[0] for template in templates)
