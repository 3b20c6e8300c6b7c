"""Paths of pictures in a prompt: existing files are taken out of the text, everything else stays."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from omlx.cli.command import CliError
from omlx.cli.media import attach, begins_with_path

PNG, JPEG, WEBP, WAV = b"\x89PNG\r\n\x1a\n-", b"\xff\xd8\xff-", b"RIFF\0\0\0\0WEBP", b"RIFF\0\0\0\0WAVE"


@pytest.mark.parametrize(
    ("name", "content"), [("a.png", PNG), ("b.JPG", JPEG), ("c.jpeg", JPEG), ("d.webp", WEBP), ("e.wav", WAV)]
)
def test_a_file_of_each_kind_is_attached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert attach(f"What is {path}?") == ("What is ?", [base64.b64encode(content).decode()])
    kind = "audio" if name.endswith("wav") else "image"
    assert capsys.readouterr() == ("", f"Added {kind} '{path}'\n")


@pytest.mark.parametrize("written", ["{0}/my photo.png", "{0}/my\\ photo.png", "'{0}/my photo.png'"])
def test_blanks_may_be_escaped_quoted_or_neither(tmp_path: Path, written: str) -> None:
    (tmp_path / "my photo.png").write_bytes(PNG)
    media = attach(f"See {written.format(tmp_path)} now")
    assert (media.text, len(media.files)) == ("See  now", 1)


def test_several_files_and_a_missing_one(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG)
    media = attach(f"{tmp_path}/a.png and /etc/x or {tmp_path}/none.png beside {tmp_path}/b.png")
    assert media.text == f"and /etc/x or {tmp_path}/none.png beside"
    assert len(media.files) == 2


def test_text_without_files_is_untouched() -> None:
    for text in ("  hello ", "see https://example.com/a.png", "./missing.jpg", "a.png is a name"):
        assert attach(text) == (text, [])


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fake.png"
    path.write_text("not a picture")
    with pytest.raises(CliError, match=r"invalid file type: '.*fake\.png' is no JPEG, PNG, WebP or WAV file"):
        attach(str(path))


def test_a_line_that_begins_with_a_path_is_told_from_a_command() -> None:
    assert begins_with_path("/home/me/cat.png what is this")
    assert begins_with_path("./cat.JPEG")
    assert not begins_with_path("/set system x")
    assert not begins_with_path("cat.png")


def test_a_path_is_reported_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert attach("./a.png ~/a.png").text == ""
    assert capsys.readouterr().err == "Added image './a.png'\nAdded image '~/a.png'\n"


@pytest.mark.parametrize("text", ["/" + "x" * 300 + ".png", "/\0.png", "/a.png/" * 20_000])
def test_what_can_be_no_file_is_text_and_takes_no_time(text: str) -> None:
    assert attach(text) == (text, [])
