"""`make test-gpu`: whether oMLX computes the same on this machine's accelerator as it does on a CPU.

Two passes over one GPU. In full float32, oMLX's default, everything that touches the device is run: engine, prefix
cache, sampler, grammar, embeddings, vision, runner processes, and the exactness of every small architecture in
float32, bfloat16 and float16. In TF32 the exactness is run again, judged by margins (`tests/support/precision.py`).

    python -m tests.gpu [--workers N] [--report FOLDER] [pytest arguments]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from omlx.engine.precision import VARIABLE

ROOT = Path(__file__).parents[2]
FULL = ("tests/gpu", "tests/engine", "tests/cache", "tests/runner")
TF32 = ("tests/gpu",)
"""The other tests compare token for token, which 10 bits of mantissa do not allow."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=max(2, (os.cpu_count() or 2) * 3 // 4))
    parser.add_argument("--report", type=Path, help="folder for a JUnit file of each pass")
    options, more = parser.parse_known_args()
    folders = [str(ROOT), str(ROOT / "registry"), str(ROOT / "cache"), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"-n{options.workers}", "--dist=worksteal"]
    failed = 0
    for name, tf32, places in (("float32", "0", FULL), ("tf32", "1", TF32)):
        report = [f"--junitxml={options.report / name}.xml"] if options.report else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), VARIABLE: tf32}
        began = time.monotonic()
        code = subprocess.run([*command, *more, *report, *places], cwd=ROOT, env=environment).returncode
        print(f"{name}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
        failed |= code
    return failed


if __name__ == "__main__":
    sys.exit(main())
