"""Accepting a model: what its files must be before it is listed, so that "success" means that it loads.

Everything that can be known without building the network is checked: nothing in the files asks for code, the
tokenizer is there and within limits, the weights that the index names are there and whole, and the configuration can
belong to them.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from omlx_registry.blobs import BlobStore
from omlx_registry.config_limits import check_plausible
from omlx_registry.errors import InvalidModel
from omlx_registry.manifest import Layer
from omlx_registry.metadata import Files
from omlx_registry.model_json import check_config, check_shards
from omlx_registry.sanitized_folder import INDEX
from omlx_registry.speech import check_speech, is_speech
from omlx_registry.tokenizer_limits import check_size, check_tokenizer

_TOKENIZERS: Final = re.compile(r"(?:tokenizer\.json|tekken\.json|vocab\.(?:json|txt)|.*\.(?:model|tiktoken))\Z")
_MISTRAL: Final = re.compile(r"consolidated(?:[.-].*)?\.safetensors\Z")


def accept(layers: list[Layer], blobs: BlobStore) -> None:
    """Raises InvalidModel with a sentence for the user. Blocking: it reads headers, not weights."""
    files = Files(layers, blobs)
    if "config.json" not in files:
        raise InvalidModel("no config.json: this is no MLX or safetensors model")
    config = files.config()
    check_config(config)
    _check_weight_files(files)
    tensors = files.tensors()
    check_plausible(config, tensors)
    if is_speech(config):
        check_speech(config, tensors)
    _check_tokenizer(files)


def _check_tokenizer(files: Files) -> None:
    tokenizers = [name for name in files.names if _TOKENIZERS.match(name)]
    if not tokenizers:
        raise InvalidModel("the model has no tokenizer: add its tokenizer.json (or tokenizer.model)")
    for name in tokenizers:
        check_size(name, files.path(name).stat().st_size)
    if "tokenizer.json" in files:
        check_tokenizer(files.path("tokenizer.json").read_bytes())


def _check_weight_files(files: Files) -> None:
    weights = [name for name in files.names if name.endswith(".safetensors") and "/" not in name]
    if weights and all(_MISTRAL.match(PurePosixPath(name).name) for name in weights):
        raise InvalidModel(
            "the weights are in Mistral's own format (consolidated.safetensors), which is not supported: use a "
            "repository with model.safetensors"
        )
    if INDEX in files:
        missing = [name for name in check_shards(files.json(INDEX)) if name not in files]
        if missing and weights:
            raise InvalidModel(f"weights are missing: {INDEX} names {missing[0]}, which is not among the files")
