"""The registry is light: whoever imports it gets no array library, no MLX and no HTTP client along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import omlx_registry

HEAVY = ("numpy", "mlx", "mlx_lm", "mlx_vlm", "transformers", "torch", "huggingface_hub", "httpx", "gguf")


def test_importing_the_registry_imports_nothing_heavy() -> None:
    script = f"import sys, omlx_registry; print([name for name in {HEAVY!r} if name in sys.modules])"
    env = os.environ | {"PYTHONPATH": str(Path(omlx_registry.__file__).parents[1])}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
