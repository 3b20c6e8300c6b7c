"""Which GGUF file of a repository a tag means. Pure.

A *kind* is how a file's weights are stored, as its name says it: `Q4_K_M`, `UD-Q4_K_XL`, `MXFP4_MOE`. A tag is a kind
or a file name, in any letter case, as the Hub's "Use this model" button copies it. A file may be *split* into parts
(`NAME-00001-of-00003.gguf`), which count as one; several files of one kind are no split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

import msgspec

from omlx_registry.errors import PullError
from omlx_registry.model_files import is_safe_path

_KIND: Final = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d(?:_(?:[KSMLP0148]|XL|XS|XXS|NL))*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16))"
    r"(?=[-_.]|$)",
    re.I,
)
_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})", re.I)
_BESIDE: Final = re.compile(r"(?:mmproj|mtp|imatrix|draft)[-_.]|.*[-_.]mmproj\Z", re.I)
"""Files that go with a model and are none: projectors, prediction heads, statistics."""
_VARIANT: Final = re.compile(r"(?:^|[-_.])(?:imat|imatrix|i1)(?=[-_.]|$)", re.I)
"""How the same weights were quantized."""
_USUAL: Final[tuple[str, ...]] = (
    "Q4_K_M", "Q4_0", "Q4_K_S", "UD-Q4_K_XL", "MXFP4_MOE", "MXFP4", "Q4_1", "IQ4_NL", "IQ4_XS", "Q5_K_M", "Q6_K",
    "Q8_0", "BF16", "F16",
)  # fmt: skip
"""What is taken where the user names no kind, first that fits the machine."""
_SHARE: Final = 0.75
"""Of the machine's memory, what weights may take."""
TEXT_FILES: Final = frozenset({"template", "system", "params"})
"""What a repository may say about its GGUF files: Go template, system prompt, parameters as JSON."""


class GgufFiles(msgspec.Struct, frozen=True):
    """One model in GGUF form: its file, or the parts of it in their order. `size` in bytes."""

    name: str
    """The file name without `.gguf` and part numbers."""
    kind: str
    paths: list[str]
    size: int
    parts: int = 1

    @property
    def label(self) -> str:
        """What a user can type as the tag."""
        return self.kind or self.name


class Choice(msgspec.Struct, frozen=True):
    """What is fetched, and what the user must know about it."""

    files: GgufFiles
    notes: list[str]


def is_kind(tag: str) -> bool:
    """Whether a tag can only mean a GGUF file: a kind, or a file name."""
    return tag.lower().endswith(".gguf") or bool(_KIND.fullmatch(tag))


def find_models(sizes: Mapping[str, int]) -> list[GgufFiles]:
    """The models among the files of a repository (path → bytes), smallest first."""
    files: dict[tuple[str, int], list[str]] = {}
    for path in sorted(sizes):
        if not path.lower().endswith(".gguf") or not is_safe_path(path) or _BESIDE.match(PurePosixPath(path).stem):
            continue
        stem = path[: -len(".gguf")]
        part = _PART.fullmatch(stem)
        files.setdefault((part[1], int(part[3])) if part else (stem, 1), []).append(path)
    models = [
        GgufFiles(PurePosixPath(stem).name, _kind(stem), paths, sum(sizes[path] for path in paths), parts)
        for (stem, parts), paths in files.items()
    ]
    return sorted(models, key=lambda model: (model.size, model.name))


def choose_gguf(sizes: Mapping[str, int], repository: str, tag: str | None, memory: int) -> Choice | None:
    """The files for `tag`, or without one the best kind that fits `memory` bytes (0: unknown).

    None where the repository has no GGUF model; PullError where it has none of that kind, or several.
    """
    models = find_models(sizes)
    if not models:
        return None
    fitting = _named(models, tag) if tag is not None else _default(models, memory)
    if not fitting:
        raise PullError(
            f"pull model manifest: file does not exist: {repository} has no GGUF file of kind {tag}; it has "
            f"{', '.join(dict.fromkeys(model.label for model in models))}"
        )
    chosen, notes = _one(fitting, repository)
    if len(chosen.paths) != chosen.parts:
        raise PullError(f"{repository} has {len(chosen.paths)} of the {chosen.parts} parts of {chosen.name}.gguf")
    if tag is None and memory and chosen.size > memory * _SHARE:
        notes.append(
            f"{chosen.label} takes {chosen.size / 1e9:.1f} GB, more than this machine has memory for; the repository "
            "has no smaller kind"
        )
    projectors = [path for path in sizes if PurePosixPath(path).name.lower().startswith("mmproj")]
    if projectors:
        notes.append(f"{PurePosixPath(projectors[0]).name} is not used: a GGUF model reads text only")
    return Choice(chosen, notes)


def _kind(stem: str) -> str:
    """From the file name, or from the folder that it is in."""
    for part in reversed(PurePosixPath(stem).parts):
        if kinds := _KIND.findall(part):
            return str(kinds[-1]).upper()
    return ""


def _named(models: list[GgufFiles], tag: str) -> list[GgufFiles]:
    wanted = tag.lower().removesuffix(".gguf")
    if part := _PART.fullmatch(wanted):
        wanted = part[1]
    names = [
        (model.name.lower(), model.kind.lower(), model.kind.lower().removeprefix("ud-"))  # the best match first
        for model in models
    ]
    for rank in range(3):
        if matching := [model for model, known in zip(models, names, strict=True) if known[rank] == wanted]:
            return matching
    return []


def _default(models: list[GgufFiles], memory: int) -> list[GgufFiles]:
    room = memory * _SHARE if memory else float("inf")
    fitting = [model for model in models if model.size <= room]
    kinds = {model.kind for model in fitting}
    kind = next((usual for usual in _USUAL if usual in kinds), None)
    if kind is None:
        kind = fitting[-1].kind if fitting else models[0].kind
    return [model for model in fitting or models if model.kind == kind]


def _one(models: list[GgufFiles], repository: str) -> tuple[GgufFiles, list[str]]:
    """One of several files of a kind: the one called like the repository, or the plainest of one model's."""
    if len(models) == 1:
        return models[0], []
    base = _plain(re.sub(r"[-_.]gguf\Z", "", repository.rpartition("/")[2], flags=re.I))
    same = [model for model in models if _plain(model.name) == base and not _VARIANT.search(model.name)]
    plainest = min(models, key=lambda model: (len(model.name), model.name))
    if len(same) == 1:
        plainest = same[0]
    elif len({_plain(model.name) for model in models}) > 1:
        raise PullError(
            f"{repository} has several models of kind {models[0].label}: name one of them as the tag: "
            f"{', '.join(sorted(f'{model.name}.gguf' for model in models))}"
        )
    others = sorted(f"{model.name}.gguf" for model in models if model is not plainest)
    return plainest, [f"taking {plainest.name}.gguf; as the tag you can also name {', '.join(others)}"]


def _plain(name: str) -> str:
    """A file name without kind and variant, in lower case: equal for files of one model."""
    return _VARIANT.sub("", _KIND.sub("", name)).lower().strip("-_.")
