"""Which BLAS runs MLX's matrix products on a CPU.

MLX's Linux CPU build bundles a single-threaded reference BLAS but calls `cblas_sgemm` through the dynamic linker, so an
OpenBLAS whose symbols are already global takes its place: about fifteen times faster. Hence the one rule of this
module: `prepare()` runs before the first import of `mlx`. Nothing here may import it. MLX's CUDA build gets a setting
that it reads only once, too.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

_active: str | None = None


def prepare() -> str:
    """Load the faster BLAS where there is one and say which is active: "openblas (FILE)", "bundled", "accelerate".

    Call it before `mlx` is imported; later calls only report.
    """
    global _active
    if _active is None:
        _active = _load()
    return _active


def _load() -> str:
    if sys.platform != "linux":
        return "accelerate" if sys.platform == "darwin" else "bundled"
    if "mlx.core" in sys.modules:
        return "bundled (mlx was imported first)"
    _allow_many_shapes()
    _leave_cores_to_others()
    # The system's copy first: it needs no help to find its own libraries.
    if _open("libopenblas.so.0"):
        return "openblas (libopenblas.so.0)"
    for library in _files("ngsolve_openblas", "libopenblas*.so*"):
        if _open(str(library)) or _open_beside_gfortran(library):
            return f"openblas ({library.name})"
    return "bundled"


def _allow_many_shapes() -> None:
    """On CUDA, MLX keeps what cuDNN planned for a shape of attention; left alone, it refuses all new ones after 512.

    "Cache thrashing is happening", it says then: sooner or later the end of every server.
    """
    os.environ.setdefault("MLX_ENABLE_CACHE_THRASHING_CHECK", "0")
    os.environ.setdefault("MLX_CUDA_SDPA_CACHE_SIZE", "1024")
    # What loads a model decides (omlx.engine.precision); this is for programs that use the engine by itself.
    os.environ.setdefault("MLX_ENABLE_TF32", "0")


def _leave_cores_to_others() -> None:
    """Half of the cores for this process, unless the user says otherwise.

    OpenBLAS's threads wait for each other by spinning. Where runners, servers and other programs share the cores, a
    team as large as the machine is always waiting for a member that has no core: ten times slower than half the team.
    """
    if not {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} & set(os.environ):
        os.environ["OPENBLAS_NUM_THREADS"] = str(max(1, (os.cpu_count() or 2) // 2))


def _open(path: str) -> bool:
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _open_beside_gfortran(library: Path) -> bool:
    """Open an OpenBLAS that looks for `libgfortran.so.5` in its own folder on a machine that has none installed.

    MLX's wheel carries a libgfortran under another file name. A folder of links gives it the expected name; it may go
    as soon as the libraries are mapped.
    """
    with tempfile.TemporaryDirectory(prefix="omlx-blas-") as folder:
        links = Path(folder)
        (links / library.name).symlink_to(library)
        for runtime in _files("mlx", "lib*.so*", suffix="_cpu.libs"):
            (links / runtime.name).symlink_to(runtime)
            if runtime.name.startswith("libgfortran"):
                (links / "libgfortran.so.5").symlink_to(runtime)
        return _open(str(links / library.name))


def _files(package: str, pattern: str, suffix: str = "") -> list[Path]:
    """Files of an installed package's folder, or of the folder beside it whose name ends with `suffix`."""
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    places = [folder.with_name(folder.name + suffix) if suffix else folder for folder in folders]
    return [file for place in places for file in sorted(place.glob(pattern))]
