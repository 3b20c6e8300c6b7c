"""Install the clients of other people that tests/clients runs: `python -m tests.clients.peers.install`.

They go into `.venv-clients`, apart from oMLX's own environment: some hundred megabytes, and versions that would quarrel
with it. Running it again updates what is there. The npm packages are left out where there is no npm.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[2] / ".venv-clients"
PYTHON = FOLDER / "bin" / "python"
OPENAI_PYTHON = FOLDER / "openai" / "bin" / "python"
"""Clients that want a newer openai package than the others allow."""
NODE_FOLDER = FOLDER / "npm"


def main() -> None:
    for python, wanted in ((PYTHON, "requirements.txt"), (OPENAI_PYTHON, "requirements-openai.txt")):
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--upgrade"]
        subprocess.run([*pip, "-r", str(HERE / wanted)], check=True)
    npm = shutil.which("npm")
    if npm is None:
        print("npm is not there: the npm clients are left out", file=sys.stderr)
        return
    NODE_FOLDER.mkdir(exist_ok=True)
    shutil.copy(HERE / "package.json", NODE_FOLDER)
    subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund"], cwd=NODE_FOLDER, check=True)


if __name__ == "__main__":
    main()
