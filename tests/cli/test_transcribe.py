"""`omlx transcribe` against a real server with a tiny Whisper: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, make_model, run_omlx
from tests.support.server import ServerProcess
from tests.support.tiny_whisper import as_wav, make_whisper, sound


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, own_folders: None) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("transcribe-server")
    model = make_whisper(tmp_path_factory.mktemp("model"), "huggingface")
    with ServerProcess(folder) as running:
        make_model("whisper", model, folder, running.url)
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sounds")
    for name, seconds in (("one", 3), ("two", 5)):
        (folder / f"{name}.wav").write_bytes(as_wav(sound(seconds)))
    (folder / "broken.wav").write_bytes(b"nonsense")
    return folder


def test_files_are_written_down(server: ServerProcess, files: Path, tmp_path: Path) -> None:
    def run(*words: str) -> Ran:
        return run_omlx("transcribe", *words, host=server.url)

    one, two, broken = (str(files / f"{name}.wav") for name in ("one", "two", "broken"))
    alone = run(one, "--language", "de")
    assert (alone.code, alone.err) == (0, f"transcribing one.wav\none.wav: 100% {alone.err.split('% ')[1]}"), alone
    assert alone.out.strip() and alone.out.count("\n") == 1
    piped = subprocess.run(
        [sys.executable, "-m", "omlx", "transcribe", "-", "--language", "german"],
        env={**os.environ, "OLLAMA_HOST": server.url},
        input=Path(one).read_bytes(),
        capture_output=True,
        timeout=100,
    )
    assert piped.stdout.decode() == alone.out

    several = run(one, broken, two, "--language", "de")
    assert several.code == 1
    assert several.out.startswith(f"==> {one} <==\n{alone.out}==> {two} <==\n")
    assert f"Error: {broken}: the file is not audio in a supported format" in several.err
    told = run(one, "--format", "json", "--language", "de")
    assert json.loads(told.out)["text"] + "\n" == alone.out
    assert json.loads(told.out)["file"] == one

    assert run(one, two, "--format", "srt", "--output", str(tmp_path)).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.srt", "two.srt"]
    assert (tmp_path / "one.srt").read_text().startswith("1\n00:00:0")
    assert run(one, "--format", "vtt").out.startswith("WEBVTT\n\n00:00:0")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "requires at least 1 arg(s), only received 0"),
        (("a.wav", "--format", "doc"), "invalid value for --format: it must be text, srt, vtt or json"),
        (("a.wav", "b.wav", "--format", "srt"), "srt of several files cannot be printed: use --output"),
        (("-", "-"), "standard input (-) can be read only once"),
        (("a.wav", "--output", "/nowhere"), "--output: '/nowhere' is not a folder"),
    ],
)
def test_a_wrong_line_is_complained_about(words: tuple[str, ...], sentence: str) -> None:
    ran = run_omlx("transcribe", *words)
    assert ran.code == 1 and sentence in ran.err


def test_what_the_server_says_is_passed_on(server: ServerProcess, files: Path) -> None:
    missing = run_omlx("transcribe", str(files / "none.wav"), host=server.url)
    assert (missing.code, "couldn't read" in missing.err) == (1, True)
    nonsense = run_omlx("transcribe", str(files / "broken.wav"), host=server.url)
    assert nonsense.code == 1
    assert nonsense.err.splitlines()[-1].startswith("Error: the file is not audio in a supported format")
