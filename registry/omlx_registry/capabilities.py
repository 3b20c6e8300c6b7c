"""Capabilities: what a model can be asked for, read off its template and configuration. Pure.

A wrong capability is worse than a missing feature: clients send tools, images or `think` only where it says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from omlx_registry.speech import is_speech
from omlx_registry.thinking import markers_in, thinks

COMPLETION: Final = "completion"
TOOLS: Final = "tools"
INSERT: Final = "insert"
VISION: Final = "vision"
AUDIO: Final = "audio"
THINKING: Final = "thinking"
EMBEDDING: Final = "embedding"
RERANK: Final = "rerank"
TRANSCRIPTION: Final = "transcription"

_EMBEDDING_TYPES: Final = frozenset(
    {"bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "nomic_bert", "modernbert", "gemma3_embedding", "siglip",
     "gte", "new"}
)  # fmt: skip
VISION_TYPES: Final = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "gemma3", "idefics3", "smolvlm"})
"""Kinds of models whose pictures are served; others with a vision tower are text models here."""
_GO_FIELD: Final = re.compile(r"\.(\w+)")
_JINJA_START: Final = re.compile(r"\{[{%]")
_JINJA_END: Final = re.compile(r"[%}]\}")
_FIM_TOKENS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
)


def derive_capabilities(
    config: Mapping[str, Any],
    *,
    template: str | None,
    chat_template: str | None,
    tokens: Iterable[str] = (),
    pooling: bool = False,
    explicit: Iterable[str] = (),
) -> list[str]:
    """The capabilities, explicit ones first. An explicit `embedding` or `rerank` without `completion` rules that out.

    `config` is config.json, `template` a Go template (it replaces the Jinja `chat_template`), `tokens` the special
    and added tokens of the tokenizer, `pooling` whether the folder has sentence-transformers' pooling or modules files.
    """
    explicit = list(explicit)
    said_to_embed = EMBEDDING in explicit and COMPLETION not in explicit
    if is_speech(config):
        # It answers no chats, whatever its maker says.
        return [TRANSCRIPTION, AUDIO]
    if is_reranker(config) or (RERANK in explicit and COMPLETION not in explicit):
        capabilities = [RERANK]
    elif pooling or said_to_embed or (chat_template is None and is_embedder(config)):
        capabilities = [EMBEDDING]
        if _has(config, "vision_config"):
            capabilities.append(VISION)
    else:
        tokens = list(tokens)
        capabilities = [COMPLETION, *_of_template(template, chat_template, tokens, str(config.get("model_type", "")))]
        if has_vision(config) and config.get("model_type") in VISION_TYPES:
            capabilities.append(VISION)
        # No `audio`: chats take none yet, whatever the model has an encoder for.
        if INSERT not in capabilities and template is None and has_fill_in_the_middle(tokens):
            capabilities.append(INSERT)
    return list(dict.fromkeys([*explicit, *capabilities]))


def is_embedder(config: Mapping[str, Any]) -> bool:
    """The model maps text to a vector: an encoder, or a decoder exported without its language head."""
    architectures = _architectures(config)
    if any(name.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")) for name in architectures):
        return False
    if str(config.get("model_type", "")) in _EMBEDDING_TYPES:
        return True
    return any(name.endswith(("Model", "ForMaskedLM", "Embedding")) and "Chat" not in name for name in architectures)


def is_reranker(config: Mapping[str, Any]) -> bool:
    """The model scores a pair of texts."""
    return any(name.endswith("ForSequenceClassification") for name in _architectures(config))


def has_vision(config: Mapping[str, Any]) -> bool:
    return _has(config, "vision_config", "vision_tower", "mm_vision_tower", "visual")


def has_fill_in_the_middle(tokens: Iterable[str]) -> bool:
    """The tokenizer has the three tokens of one fill-in-the-middle convention."""
    known = set(tokens)
    return any(known.issuperset(kind) for kind in _FIM_TOKENS)


def fill_in_the_middle_tokens() -> frozenset[str]:
    return frozenset(token for kind in _FIM_TOKENS for token in kind)


def _of_template(
    template: str | None, chat_template: str | None, tokens: Collection[str], model_type: str
) -> list[str]:
    capabilities = []
    if template is not None:
        fields = set(_GO_FIELD.findall(_go_code(template)))
        if "Tools" in fields:
            capabilities.append(TOOLS)
        if "Suffix" in fields:
            capabilities.append(INSERT)
        if "Thinking" in fields or "Think" in fields or markers_in(template) is not None:
            capabilities.append(THINKING)
    elif chat_template is not None:
        code = _jinja_code(chat_template)
        if re.search(r"\btools\b|\btool_calls?\b", code):
            capabilities.append(TOOLS)
        if thinks(chat_template, tokens):
            capabilities.append(THINKING)
    if model_type == "gpt_oss" and THINKING not in capabilities:
        capabilities.append(THINKING)
    return capabilities


# Templates come from anybody and are read in the server: both walks take time in proportion to the length alone.
def _go_code(template: str) -> str:
    """What stands inside the actions of a Go template."""
    return " ".join(part.partition("}}")[0] for part in template.split("{{")[1:])


def _jinja_code(template: str) -> str:
    """What stands inside the tags of a Jinja template."""
    return " ".join(_JINJA_END.split(part, maxsplit=1)[0] for part in _JINJA_START.split(template)[1:])


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _has(config: Mapping[str, Any], *keys: str) -> bool:
    return any(config.get(key) for key in keys)
