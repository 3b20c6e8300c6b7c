"""A split GGUF file: one model in several files `NAME-00001-of-00003.gguf`, each a GGUF file with some of the tensors.

The metadata is in the first part. Nothing is joined on disk: each tensor is read from the part that has it.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from omlx_registry.gguf.container import GgufError, GgufFile, GgufTensor

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.I)


class SplitGguf(GgufFile):
    """The parts of a split file, as if they were one. Raises GgufError where one is missing or repeats a tensor."""

    def __init__(self, paths: list[Path]) -> None:
        self.path = paths[0]
        self.name = paths[0].name
        self._parts: dict[str, GgufFile] = {}
        self.tensors = {}
        self.size = 0
        with ExitStack() as opened:
            for path in paths:
                part = opened.enter_context(GgufFile(path))
                if path == paths[0]:
                    # How it is split is no matter of the model's.
                    self.metadata = {key: value for key, value in part.metadata.items() if key.split(".")[0] != "split"}
                if repeated := self.tensors.keys() & part.tensors.keys():
                    raise GgufError(f"{path.name} is damaged: tensor {min(repeated)!r} is in another part too")
                self.tensors |= part.tensors
                self._parts |= dict.fromkeys(part.tensors, part)
                self.size += part.size
            self._opened = opened.pop_all()

    def rows(self, tensor: GgufTensor, index: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.uint8]:
        return self._parts[tensor.name].rows(tensor, index)

    def close(self) -> None:
        self._opened.close()


def open_gguf(path: Path) -> GgufFile:
    """The GGUF file at `path`; where that is the first part of a split one, with the other parts beside it."""
    match = _PART.fullmatch(path.name)
    if match is None or int(match[3]) == 1:
        return GgufFile(path)
    paths = [path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf") for part in range(1, int(match[3]) + 1)]
    for part_path in paths:
        if not part_path.is_file():
            raise GgufError(f"{part_path.name} is missing: the model is split into {len(paths)} files")
    return SplitGguf(paths)
