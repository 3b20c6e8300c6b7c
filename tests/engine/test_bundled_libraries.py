"""Packages that come with mlx-vlm and are not needed are never imported: what they bundle is not loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UNUSED = ("cv2", "mlx_audio", "miniaudio", "fastapi", "datasets", "pandas", "pyarrow", "torch")
PROGRAM = """
import sys
from pathlib import Path
for name in {unused!r}:
    sys.modules[name] = None  # importing it is an ImportError, as where it is not installed
from omlx.engine import blas
blas.prepare()
from omlx.engine.encode.embed import load_embedder
from omlx.engine.loader import load_model
from omlx.engine.encode.rerank import load_reranker
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx_registry.quantize_model import quantize_model
from tests.support.tiny import tiny_model
from tests.support.tiny_encoder import make_encoder
from tests.support.tiny_vlm import KINDS, tiny_vlm

def spec(path):
    return LoadSpec(name="x", path=str(path), fingerprint="x", engine=EngineConfig(context_length=256))

for folder in (tiny_model("qwen3"), *map(tiny_vlm, KINDS)):
    load_model(spec(folder), measure=False)
place = Path({place!r})
load_embedder(spec(make_encoder(place / "embedder", "bert")), lambda done, total: None)
load_reranker(spec(make_encoder(place / "reranker", "bert", ranks=True)), lambda done, total: None)
quantize_model(tiny_vlm("qwen2_5_vl"), place / "made", "q8_0", lambda *_: None)
print("all loaded")
"""


def test_models_load_without_opencv(tmp_path: Path) -> None:
    program = PROGRAM.format(unused=UNUSED, place=str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=170
    )
    assert run.stdout.endswith("all loaded\n"), run.stderr
