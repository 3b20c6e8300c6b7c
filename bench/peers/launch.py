"""Run a peer's module as a program, on the same BLAS as oMLX: `launch.py MODULE ARGUMENT...`, with the peer's Python.

MLX's Linux CPU build brings a reference BLAS that is fifteen times slower than the one oMLX loads. A comparison that
left the peers with it would measure the BLAS.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

BLAS = Path(__file__).parents[2] / "omlx" / "engine" / "blas.py"


def main() -> None:
    # By path: oMLX itself is not installed in a peer's environment, and its folder must not shadow anything there.
    spec = importlib.util.spec_from_file_location("omlx_blas", BLAS)
    assert spec is not None and spec.loader is not None
    blas = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(blas)
    print(f"BLAS: {blas.prepare()}", flush=True)
    sys.path.pop(0)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
