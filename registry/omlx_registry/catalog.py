"""The catalog: which repository a short name such as `qwen3:8b` or `hf.co/ORG/REPO:q4` means.

`catalog.toml` (shipped) maps Ollama's short names, sizes and quantization tags to repositories on Hugging Face; the
user's aliases come first. A *target* is what a pull has to do: fetch a repository, and perhaps quantize it as it comes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import msgspec

from omlx_registry.catalog_file import ModelFamily, Size, current
from omlx_registry.errors import PullError
from omlx_registry.names import DEFAULT_TAG, Name

_BITS = {
    "4bit": "4bit", "q4": "4bit", "q4_0": "4bit", "q4_1": "4bit", "q4_k_m": "4bit", "q4_k_s": "4bit", "int4": "4bit",
    "8bit": "8bit", "q8": "8bit", "q8_0": "8bit", "int8": "8bit", "fp8": "8bit",
    "bf16": "bf16", "fp16": "bf16", "f16": "bf16", "f32": "bf16", "mxfp4": "mxfp4",
}  # fmt: skip
_QUANT = re.compile(r"i?q\d\w*|(?:mx|nv)?fp\d+|b?f\d+|int\d|\d+bit")
"""What names a quantization, also one that MLX does not have: pulling it says so."""
_STYLES = re.compile(r"-(?:instruct|it|chat)(?=-|$)")
"""Parts of a tag that say what every model of the catalog is; "text" and "base" would be other models."""
_ALIKE = 0.6
"""Likeness from which on one of the user's own models is suggested."""


class PullTarget(msgspec.Struct, frozen=True):
    """What a pull does: fetch `repository`; `quantize` it (None: as it is), or take its GGUF of that kind."""

    repository: str
    quantize: str | None = None
    revision: str = "main"
    capabilities: list[str] = []
    """What the model is for, where its files do not tell (embedding models made of chat architectures)."""
    note: str = ""
    """Something the user must know about what is pulled."""


def families() -> dict[str, ModelFamily]:
    """The catalog by family name."""
    return current().families


def resolve(name: Name) -> PullTarget | None:
    """The target a name stands for; None where neither the catalog nor the name itself says one. Raises PullError for
    a model that is known not to run here, with what to use instead.
    """
    if name.repository is not None:
        quantize = None if name.tag.lower() == DEFAULT_TAG else name.tag
        return PullTarget(name.repository, quantize, name.revision or "main")
    family = families().get(name.model.lower())
    tag = name.tag.lower()
    if family is not None and family.refused:
        raise PullError(family.refused)
    if tag == "cloud" or tag.endswith("-cloud"):
        raise PullError(f"{name.short} runs on Ollama's servers only{_here_instead(name, family)}")
    return None if family is None else _in_family(family, tag)


def _here_instead(name: Name, family: ModelFamily | None) -> str:
    if family is None:
        return ": oMLX runs models on this machine; `omlx search TEXT` finds some"
    size = name.tag.lower().removesuffix("cloud").removesuffix("-")
    return f": on this machine use {name.model.lower()}:{size if size in family.sizes else family.latest}"


def _in_family(family: ModelFamily, tag: str) -> PullTarget | None:
    size_name, quant = _split(family, family.latest if tag == DEFAULT_TAG else tag)
    size = family.sizes.get(size_name)
    entry = _in_size(size, quant, size.default or family.default) if size is not None else None
    return entry and msgspec.structs.replace(entry, capabilities=family.capabilities, note=family.note)


def _in_size(size: Size, quant: str, default: str) -> PullTarget | None:
    repositories = size.repositories()
    wanted = _BITS.get(quant, quant) if quant else default
    if wanted in repositories:
        return PullTarget(repositories[wanted])
    if size.unquantized():
        return PullTarget(size.unquantized(), None if wanted == "bf16" else quant or wanted)
    return PullTarget(next(iter(repositories.values()))) if not quant else None


def _split(family: ModelFamily, tag: str) -> tuple[str, str]:
    """Size and quantization of a tag: "8b-instruct-q4_K_M" → ("8b", "q4_k_m"), "q8_0" → (latest, "q8_0")."""
    if tag in family.sizes:
        return tag, ""
    if tag in _BITS:
        return family.latest, tag
    plain = _STYLES.sub("", tag)
    if plain in family.sizes:
        return plain, ""
    for candidate in (tag, plain):
        size, _, quant = candidate.rpartition("-")
        if size in family.sizes and _QUANT.fullmatch(quant):
            return size, quant
    return _split_long(family, tag)


def _split_long(family: ModelFamily, tag: str) -> tuple[str, str]:
    """Size and quantization of a tag that spells the model out: "7b-instruct-v0.3-q4_K_M", "l6-v2".

    A size is meant if its name and its repository have all words of the tag; several that differ mean none.
    """
    words = tag.split("-")
    quant = words.pop() if len(words) > 1 and _QUANT.fullmatch(words[-1]) else ""
    fitting = [name for name, size in family.sizes.items() if set(words) <= {*name.split("-"), *size.words()}]
    same = len({tuple(family.sizes[name].repositories().values()) for name in fitting}) == 1
    return (fitting[0], quant) if same else (tag, "")


def near(name: Name, own: Iterable[Name] = (), count: int = 3) -> list[str]:
    """Names that look like `name`: first of the user's `own` models, then of the catalog, with the tag where only the
    tag is wrong.
    """
    mine = _near_own(name, own, count)
    family = families().get(name.model.lower())
    if family is not None:
        listed = [f"{name.model.lower()}:{size}" for size in family.sizes]
    else:
        listed = difflib.get_close_matches(name.model.lower(), families(), n=count, cutoff=0.5)[: count - len(mine)]
    return mine + [entry for entry in listed if entry not in mine]


def _near_own(name: Name, own: Iterable[Name], count: int) -> list[str]:
    """The nearest first; the tag counts only among models of one name."""
    wanted = name.model.lower()
    distances: list[tuple[float, str]] = []
    for other in own:
        model = other.model.lower()
        begins = model.startswith(wanted) or wanted.startswith(model)
        likeness = difflib.SequenceMatcher(None, wanted, model).ratio()
        if begins or likeness >= _ALIKE:
            distances.append((-likeness, other.short.removesuffix(":latest")))
    return [short for _, short in sorted(distances)[:count]]


def unknown_name(name: Name, own: Iterable[Name] = ()) -> str:
    """The sentence for a name that means nothing: near names, `own` are those of the user's models, and how to search.
    Clients look for its beginning.
    """
    missing = f"pull model manifest: file does not exist: there is no model {name.short} in the catalog"
    search = f"`omlx search {name.model}` finds models on Hugging Face; any repository works as hf.co/ORG/NAME"
    if not (nearest := near(name, own)):
        return f"{missing}. {search}"
    return "\n".join([f"{missing}. Did you mean", *(f"    {it}" for it in nearest), search])
