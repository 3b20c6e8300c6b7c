"""Tool calls: one small file per family's format; `formats_for` says which ones a model speaks."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from omlx.prompting.thinking import find_markers
from omlx.prompting.tools import cohere, gemma, invoke, json_tags, pythonic
from omlx.prompting.tools.deepseek import DEEPSEEK
from omlx.prompting.tools.examples import taught_format
from omlx.prompting.tools.fallback import BARE, FENCED, after_tag
from omlx.prompting.tools.format import ToolFormat, Writer
from omlx.prompting.tools.functionary import FUNCTIONARY
from omlx.prompting.tools.glm import GLM, GLM4, HUNYUAN3, HUNYUAN3_PLAIN, LONGCAT, hunyuan3
from omlx.prompting.tools.json_tags import HERMES, write_one_each
from omlx.prompting.tools.kimi import K2, K3
from omlx.prompting.tools.llama import FUNCTION_TAG, PYTHON_TAG
from omlx.prompting.tools.minimax import MINIMAX3
from omlx.prompting.tools.mistral import MISTRAL
from omlx.prompting.tools.pythonic import PYTHON_LIST
from omlx.prompting.tools.qwen_coder import QWEN_CODER
from omlx.prompting.tools.rules import bare_call
from omlx.prompting.tools.solar import SOLAR

ALWAYS = (HERMES, QWEN_CODER, GLM, MISTRAL, BARE, FENCED, PYTHON_LIST)
"""Tried with every model that is offered tools: many were tuned on formats that their template does not show."""

FORMATS: dict[str, ToolFormat] = {
    found.name: found
    for found in (
        *json_tags.FORMATS, MISTRAL, PYTHON_TAG, QWEN_CODER, FUNCTION_TAG, GLM, HUNYUAN3, HUNYUAN3_PLAIN, GLM4, LONGCAT,
        DEEPSEEK, FUNCTIONARY, K2, K3, MINIMAX3, SOLAR,
        *invoke.FORMATS, *gemma.FORMATS, *pythonic.FORMATS, *cohere.FORMATS, BARE, FENCED, PYTHON_LIST,
    )
}  # fmt: skip
"""By name, in the order in which they are tried."""


_DSML = ("｜DSML｜function_calls", "｜DSML｜tool_calls")
_RELEASE = re.compile(r"<tool_calls:(\w{1,32})>")
_SUFFIX = re.compile(r"<think:?(\w{0,32})>")
_FORMATTED = "<tool_calls{}>"
"""Hunyuan 3's template puts the suffix in from a variable, here as in its markers of thinking."""


def formats_for(template: str, tokens: Collection[str]) -> tuple[str, ...]:
    """Names of the formats that a model's template or vocabulary speaks of."""
    releases = {match[1] for text in (template, *tokens) for match in _RELEASE.finditer(text)}
    markers = find_markers(template, tokens) if _FORMATTED in template else None
    suffix = _SUFFIX.fullmatch(markers.opening) if markers else None
    found = {known.name for known in FORMATS.values() if known.spoken(template, tokens)}
    if suffix:
        releases |= {suffix[1]} - {""}
        found.add(f"hunyuan3:{suffix[1]}" if suffix[1] else HUNYUAN3_PLAIN.name)
    others = (f"hunyuan3:{release}" for release in sorted(releases) if f"hunyuan3:{release}" not in FORMATS)
    spoken = [name for name in FORMATS if name in found]
    if f"{_DSML[0]}>".partition("｜DSML｜")[2] not in template:
        # Only the template says which of the two DeepSeek writes.
        spoken.sort(key=lambda name: name == _DSML[0])
    return (*spoken, *others)


def resolve(names: Collection[str], tag: str = "") -> list[ToolFormat]:
    """The formats to try, in order: those named, those always tried, and the one of a Go template's tag."""
    wanted = {*names, *(found.name for found in ALWAYS)}
    chosen = [found for found in FORMATS.values() if found.name in wanted]
    chosen += [
        hunyuan3(name.partition(":")[2]) for name in names if name.startswith("hunyuan3:") and name not in FORMATS
    ]
    if tag and not any(tag in found.openings for found in chosen):
        chosen.append(after_tag(tag))
    return chosen


_BEHIND_MESSAGES = frozenset({"<|message_sep|>"})
"""GigaChat's."""


def strays_of(names: Collection[str]) -> set[str]:
    """Tokens of these formats that are no text, with or without tools: they stand behind every message."""
    return {stray for name in names if name in FORMATS for stray in FORMATS[name].strays} & _BEHIND_MESSAGES


class Written(NamedTuple):
    write: Writer
    openings: tuple[str, ...]
    """Texts that a call may begin with."""


def writer_for(names: Collection[str], *, emulated: bool) -> Written:
    """How a model writes calls that it has to make: in the first of `names` that can. `emulated`: as the prompt says.

    Hermes' tags and Llama's token are in many vocabularies of models that were taught another format: they come last. A
    model whose format has no writer calls in plain JSON, which is always understood.
    """
    if not emulated:
        late = (HERMES, PYTHON_TAG)
        order = [*names]
        spoken = sorted(
            resolve(names), key=lambda found: order.index(found.name) if found.name in order else len(order)
        )
        for known in (*(found for found in spoken if found not in late), *late):
            if known.name in names and known.write is not None:
                return Written(known.write, known.openings)
        return Written(bare_call, ())
    taught = FORMATS[taught_format(names)]
    return Written(taught.write or write_one_each, taught.openings)
