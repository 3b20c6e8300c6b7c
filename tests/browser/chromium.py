"""The *Chromium* of the tests in this folder: the machine's own, or one that `python -m tests.browser.chromium` gets.

That one lies in `.venv-chromium`, and nothing else on the machine changes: Debian's package with the libraries that the
machine lacks, unpacked, for which nobody has to be root; where Debian's are not to be had, Playwright's download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv-chromium"
OWN = FOLDER / "chromium"
"""A shell script: its Chromium may need libraries of the same folder."""
_NAMES = (
    *("chromium", "chromium-browser", "google-chrome"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
_LIMIT_S = 300


def program() -> str | None:
    """The one that the environment names in CHROMIUM, else one of the machine, else ours; None where there is none."""
    known = (os.environ.get("CHROMIUM"), *_NAMES, str(OWN))
    return next(filter(None, (shutil.which(name) for name in known if name)), None)


def get() -> None:
    """Make OWN. RuntimeError where no Chromium is to be had."""
    FOLDER.mkdir(exist_ok=True)
    problems = []
    for way in (_debians, _playwrights):
        try:
            lines = way()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            problems.append(str(error))
            continue
        OWN.write_text("\n".join(("#!/bin/sh", *lines, "")))
        OWN.chmod(0o755)
        return
    raise RuntimeError("; ".join(problems))


def _debians() -> tuple[str, ...]:
    root, state, archives = FOLDER / "root", FOLDER / "apt", FOLDER / "apt" / "archives"
    shutil.rmtree(root, ignore_errors=True)
    for folder in (state / "partial", archives / "partial", root):
        folder.mkdir(parents=True)
    apt = [
        *("apt-get", "-qq", "--yes", "--no-install-recommends", "--download-only"),
        *("-o", f"Dir::State::Lists={state}", "-o", f"Dir::Cache={state}", "-o", "Dir::Cache::Archives=archives"),
        *("-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=", "-o", "Acquire::http::Timeout=20"),
    ]
    try:
        _run([*apt, "update"])
        _run([*apt, "install", "chromium", "fonts-liberation"])
        for package in sorted(archives.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(root)])
    finally:
        shutil.rmtree(state)
    libraries = sorted(root.glob("usr/lib/*-linux-gnu*"))
    places = [str(place) for one in libraries for place in (one, one / "pulseaudio")]
    return (
        f"export LD_LIBRARY_PATH='{':'.join(places)}'",
        # Fonts are looked for there, too.
        f"export XDG_DATA_HOME='{root}/usr/share'",
        f"test -e /etc/fonts || export FONTCONFIG_PATH='{root}/etc/fonts'",
        f"exec '{root}/usr/lib/chromium/chromium' \"$@\"",
    )


def _playwrights() -> tuple[str, ...]:
    os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(FOLDER)
    _run([sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"])
    found = next((path for path in sorted(FOLDER.rglob("*headless?shell")) if path.is_file()), None)
    if found is None:
        raise RuntimeError("Playwright's download has no headless shell")
    return (f"exec '{found}' \"$@\"",)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"it ended with {done.returncode}"]
        raise RuntimeError(next((line for line in said if line.startswith(("E:", "Error"))), said[-1]))


def main() -> int:
    if program() is None:
        try:
            get()
        except RuntimeError as error:
            print(f"No Chromium is to be had, so the tests in a browser will be skipped: {error}", file=sys.stderr)
            return 1
    print(f"Chromium: {program()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
