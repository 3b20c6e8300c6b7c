"""Which files of a repository a model needs, and whether their names are safe.

A repository is untrusted: its paths may try to leave the folder, and it may bring code. Only data files that MLX models
use are taken; weights in other containers (`*.bin`, `*.pt`, `*.onnx`) and Python files never are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

_SMALL = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".jsonl"}
_NEVER_DIRS = {"original", "onnx", "openvino", "coreml", "metal", "figures", "assets", "images", "runs", "examples"}
_NEVER_NAMES = re.compile(
    r"(?:^|/)(?:\.|training_args|trainer_state|optimizer|scheduler|rng_state|README|USE_POLICY|requirements)", re.I
)
_LICENCE = re.compile(r"^(?:LICEN[CS]E|NOTICE)(?:\.(?:txt|md))?$", re.I)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\:*?\"<>|]")


def is_safe_path(path: str) -> bool:
    """Whether a repository path stays inside its folder on every system: relative, no dot parts, no odd characters."""
    parts = path.split("/")
    return (
        0 < len(path) <= 400
        and not _UNSAFE.search(path)
        and all(part not in {"", ".", ".."} and part == part.strip() and not part.endswith(".") for part in parts)
    )


def is_wanted(path: str) -> bool:
    """Whether a model may need the file; weights are sorted out in `select`."""
    pure = PurePosixPath(path)
    if not is_safe_path(path) or _NEVER_NAMES.search(path) or _NEVER_DIRS & set(pure.parts[:-1]) or len(pure.parts) > 2:
        return False
    return pure.suffix in _SMALL or pure.suffix == ".safetensors" or bool(_LICENCE.match(path))


def select(paths: Iterable[str]) -> list[str]:
    """The paths to fetch, in a stable order: metadata first, weights last.

    A repository may hold its weights twice (`model-*.safetensors` and Mistral's `consolidated*.safetensors`): the first
    kind wins. An adapter's weights beside a full model are left out.
    """
    wanted = sorted({path for path in paths if is_wanted(path)})
    weights = [path for path in wanted if path.endswith(".safetensors")]
    named = [path for path in weights if PurePosixPath(path).name.startswith("model") and "/" not in path]
    if named:
        # Sentence-transformers keep small dense layers in sub-folders (2_Dense/model.safetensors): those belong.
        weights = named + [path for path in weights if "/" in path and re.match(r"\d+_", path)]
    return [path for path in wanted if not path.endswith(".safetensors")] + weights
