"""The check before a download: whether a repository holds a model that can be run, known from its small files.

Configuration and tokenizer are here by then; of each weights file only the header is read, by a ranged request, into a
sparse file of the real size. So the model is accepted or refused by the same rules as when all of it is here.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx

from omlx_registry.acceptance import accept
from omlx_registry.blobs import BlobStore
from omlx_registry.errors import InvalidModel, PullRefused
from omlx_registry.gguf.container import GgufError, GgufFile
from omlx_registry.gguf.split import open_gguf
from omlx_registry.manifest import FILE, WEIGHTS, Layer
from omlx_registry.partial_file import PARALLEL
from omlx_registry.speech import WHISPER
from omlx_registry.transfer import RemoteFile

_GGUF_FRONT: Final = (4 << 20, 32 << 20, 128 << 20)
"""Bytes of a GGUF file that are read to see its header, more where it does not end in them."""
_SAFETENSORS_FRONT: Final = 256 << 10
_LONGEST_HEADER: Final = 100 << 20
_READABLE: Final = frozenset(
    {"awq", "gptq", "bitnet", "mxfp4", "mxfp8", "fp8", "compressed-tensors", "modelopt", "nvfp4"}
)
"""Quantization methods of other libraries whose weights mlx-lm reads."""
_OWN: Final = frozenset({"nomic_bert", "new", WHISPER})
"""Architectures that neither mlx-lm nor mlx-vlm has by this name, and that are left to the loader."""


class _Unknown(Exception):
    """The header could not be read: the download will say why."""


def check_config(config: Mapping[str, Any], repository: str) -> None:
    """Refuse what config.json alone tells. Raises PullRefused."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind and not _is_known(kind):
        raise PullRefused(
            f"{repository} has the architecture {kind[:100]!r}, which mlx-lm and mlx-vlm do not know: it cannot be run"
        )
    method = config.get("quantization_config")
    method = method.get("quant_method") if isinstance(method, Mapping) else None
    if isinstance(method, str) and "quantization" not in config and method not in _READABLE:
        raise PullRefused(
            f"the weights of {repository} are quantized with {method[:100]}, which MLX cannot read: use a repository "
            "with unquantized weights, or one made for MLX"
        )


def check_headers(
    weights: Sequence[RemoteFile],
    others: Mapping[str, Path],
    client: httpx.Client,
    blobs: BlobStore,
    repository: str,
) -> None:
    """Refuse a model whose weights cannot be taken. `others`: the small files, by name. Raises PullRefused.

    Headers that cannot be read decide nothing.
    """
    place = blobs.temporary()
    place.mkdir(parents=True)
    try:
        if all(file.path.endswith(".safetensors") for file in weights):
            _check_safetensors(weights, others, client, place)
        else:
            _check_gguf(weights, client, place)
    except (InvalidModel, GgufError) as error:
        raise PullRefused(f"{repository}: {error.message}") from error
    except (_Unknown, httpx.HTTPError, OSError):
        return
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _check_safetensors(
    weights: Sequence[RemoteFile], others: Mapping[str, Path], client: httpx.Client, place: Path
) -> None:
    fronts = BlobStore(place)
    layers = []
    for number, (name, path) in enumerate(others.items()):
        shutil.copyfile(path, fronts.path(f"sha256:{number:064x}"))
        layers.append(Layer(FILE, f"sha256:{number:064x}", path.stat().st_size, name=name))
    with ThreadPoolExecutor(PARALLEL) as pool:
        headers = list(pool.map(lambda file: _safetensors_header(file, client), weights))
    for number, (file, header) in enumerate(zip(weights, headers, strict=True), len(layers)):
        _write_sparse(fronts.path(f"sha256:{number:064x}"), header, file.size)
        layers.append(Layer(WEIGHTS, f"sha256:{number:064x}", file.size, name=file.path))
    accept(layers, fronts)


def _safetensors_header(file: RemoteFile, client: httpx.Client) -> bytes:
    front = _front(file, client, _SAFETENSORS_FRONT)
    length = 8 + int.from_bytes(front[:8], "little")
    if length > len(front) and length <= min(file.size, _LONGEST_HEADER):
        front = _front(file, client, length)
    return front


def _check_gguf(weights: Sequence[RemoteFile], client: httpx.Client, place: Path) -> None:
    for count in _GGUF_FRONT:
        for file in weights:
            _write_sparse(place / Path(file.path).name, _front(file, client, count), file.size)
        try:
            opened = open_gguf(place / Path(weights[0].path).name)
        except GgufError:
            # Perhaps only because the header goes on.
            if count == _GGUF_FRONT[-1] or all(file.size <= count for file in weights):
                raise
        else:
            with opened:
                _plan_gguf(opened)
            return


def _plan_gguf(file: GgufFile) -> None:
    """What the import will do before it converts anything. Raises GgufError."""
    # They import NumPy, which only GGUF files need.
    from omlx_registry.gguf.importer import KEEP, plan_storage
    from omlx_registry.gguf.models import plan_model
    from omlx_registry.gguf.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(file.metadata)
    plan = plan_model(file.metadata, file.tensors, lambda name: None, tokenizer.eos)
    plan_storage(plan, KEEP)


def _front(file: RemoteFile, client: httpx.Client, count: int) -> bytes:
    """The first bytes of a remote file. Raises _Unknown, httpx.HTTPError."""
    count = min(count, file.size)
    headers = {"Accept-Encoding": "identity", "Range": f"bytes=0-{max(count - 1, 0)}"}
    front = b""
    with client.stream("GET", file.url, headers=headers, follow_redirects=True, timeout=30.0) as response:
        if response.status_code not in {200, 206}:
            raise _Unknown
        for piece in response.iter_bytes():
            front += piece
            if len(front) >= count:
                break
    if len(front) < count:
        raise _Unknown
    return front[:count]


def _write_sparse(path: Path, front: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(front)
        file.truncate(size)


def _is_known(kind: str) -> bool:
    """Whether a library has a network of this name; the libraries are imported only to look for their other names."""
    wanted = {kind, kind.replace("-", "_")}
    if wanted & _OWN or any(wanted & _networks(package) for package in ("mlx_lm", "mlx_vlm")):
        return True
    try:
        from mlx_lm.utils import MODEL_REMAPPING as TEXT
        from mlx_vlm.utils import MODEL_REMAPPING as VISION
    except ImportError:
        return True  # Nothing here can tell.
    return kind in TEXT or kind in VISION


def _networks(package: str) -> set[str]:
    spec = importlib.util.find_spec(package)
    folders = [Path(place) / "models" for place in (spec.submodule_search_locations or [])] if spec else []
    return {path.stem for folder in folders if folder.is_dir() for path in folder.iterdir()}
