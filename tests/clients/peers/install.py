"""Install the clients of other people that tests/clients runs: `python -m tests.clients.peers.install`.

They go into `.venv-clients`, apart from oMLX's own environment: some hundred megabytes, and versions that would quarrel
with it. The npm packages are left out where there is no npm. Every version is pinned, so nothing has to be resolved;
uv does it within seconds where it is on the PATH, pip within minutes. For newer versions, in this folder:
`uv pip compile --upgrade --universal --python-version 3.11 --no-header --no-annotate X.in -o X.txt`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[2] / ".venv-clients"
PYTHON = FOLDER / "bin" / "python"
INSTRUCTOR_PYTHON = FOLDER / "instructor" / "bin" / "python"
"""instructor wants an older jiter than today's openai package, and so an environment of its own."""
NODE_FOLDER = FOLDER / "npm"


def main() -> None:
    for python, wanted in ((PYTHON, "requirements.txt"), (INSTRUCTOR_PYTHON, "requirements-instructor.txt")):
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        uv = shutil.which("uv")
        install = [uv, "pip", "install", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
        subprocess.run([*install, "--quiet", "--no-deps", "-r", str(HERE / wanted)], check=True)
    npm = shutil.which("npm")
    if npm is None:
        print("npm is not there: the npm clients are left out", file=sys.stderr)
        return
    NODE_FOLDER.mkdir(exist_ok=True)
    shutil.copy(HERE / "package.json", NODE_FOLDER)
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund"], cwd=NODE_FOLDER, check=True)


if __name__ == "__main__":
    main()
