"""An *inert folder*: a model's folder as its loaders may see it. Weights and tokenizers are links, configuration files
are copies without what a loader would act on (see `model_json`), and everything else (Python files, pickles) is
absent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from omlx_registry.config_limits import check_plausible
from omlx_registry.errors import InvalidModel
from omlx_registry.model_json import MAX_CONFIG_BYTES, check_config, check_shards, decode_object, has_inert_form, inert
from omlx_registry.speech import check_speech, is_speech
from omlx_registry.tokenizer_limits import check_tokenizer_files
from omlx_registry.weights import read_header

INDEX: Final = "model.safetensors.index.json"
_PREFIX: Final = "omlx-model-"
_IN_TEXT: Final = re.compile(rf"(?:/[^\s'\"]*)?/{_PREFIX}\d+-\w+/?")
_DATA: Final = frozenset({".safetensors", ".json", ".jsonl", ".jinja", ".txt", ".model", ".tiktoken", ".bpe"})
_LEFT_OUT: Final = frozenset({"offload_index.json"})
"""mlx-vlm would take experts from wherever it says."""


@contextlib.contextmanager
def inert_folder(source: Path) -> Iterator[Path]:
    """The inert form of the model folder `source`, as long as the context lasts. Raises InvalidModel.

    Files that a loader has opened stay readable afterwards.
    """
    _remove_stale()
    target = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        _fill(source, target)
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def without_inert_folder(text: str) -> str:
    """A library's error without the way to the folder that it was given: no client need know it."""
    return _IN_TEXT.sub("", text)


def _fill(source: Path, target: Path) -> None:
    check_tokenizer_files(source)
    renamed = _loadable_names(sorted(source.glob("*.safetensors")))
    for folder in (source, *sorted(path for path in source.iterdir() if path.is_dir())):
        for file in sorted(folder.iterdir()):
            if not file.is_file() or file.suffix not in _DATA or file.name in _LEFT_OUT:
                continue
            place = target / renamed.get(file, file.relative_to(source).as_posix())
            place.parent.mkdir(exist_ok=True)
            if has_inert_form(file.name):
                _write_inert(file, place, name=file.relative_to(source).as_posix())
            else:
                place.symlink_to(file.resolve())
    if (source / INDEX).is_file():
        check_shards(read_object(source / INDEX, INDEX))
    if (source / "config.json").is_file():
        tensors = [tensor for file in sorted(source.glob("*.safetensors")) for tensor in read_header(file)]
        config = read_object(source / "config.json", "config.json")
        check_plausible(config, tensors)
        if is_speech(config):
            check_speech(config, tensors)


def _loadable_names(weights: list[Path]) -> dict[Path, str]:
    """Names that mlx-lm looks for, for weights that all have others (`weights.00.safetensors`)."""
    if any(file.name.startswith("model") for file in weights):
        return {}
    return {file: f"model-{file.name}" for file in weights}


def _write_inert(file: Path, place: Path, *, name: str) -> None:
    data = read_bytes(file, name)
    if data.lstrip().startswith(b"["):  # modules.json is a list
        place.write_text(json.dumps(inert(json.loads(data))), encoding="utf-8")
        return
    try:
        content = decode_object(data, name)
    except InvalidModel:
        if name in {"config.json", "tokenizer_config.json"}:
            raise
        return  # what cannot be read is as good as absent
    if name == "config.json":
        check_config(content)
    place.write_text(json.dumps(inert(content)), encoding="utf-8")


def read_object(path: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file of at most `MAX_CONFIG_BYTES`. Raises InvalidModel, OSError."""
    return decode_object(read_bytes(path, name), name)


def read_bytes(path: Path, name: str) -> bytes:
    """A configuration file's bytes. Raises InvalidModel where there are more than such a file has."""
    size = path.stat().st_size
    if size > MAX_CONFIG_BYTES:
        raise InvalidModel(f"{name} has {size:,} bytes: at most {MAX_CONFIG_BYTES:,} are taken")
    return path.read_bytes()


def _remove_stale() -> None:
    """What processes that were killed during a load have left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not _is_alive(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
