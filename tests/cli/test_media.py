"""Paths of pictures and videos in a prompt: existing files are taken out of the text, everything else stays."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from omlx.cli.command import CliError
from omlx.cli.media import attach, begins_with_path

PNG, JPEG, WEBP, WAV = b"\x89PNG\r\n\x1a\n-", b"\xff\xd8\xff-", b"RIFF\0\0\0\0WEBP", b"RIFF\0\0\0\0WAVE"
MP4, MOV, MKV, GIF = b"\0\0\0\x20ftypisom", b"\0\0\0\x14ftypqt  ", b"\x1aE\xdf\xa3-", b"GIF89a-"


@pytest.mark.parametrize(
    ("name", "content"), [("a.png", PNG), ("b.JPG", JPEG), ("c.jpeg", JPEG), ("d.webp", WEBP), ("e.wav", WAV)]
)
def test_a_file_of_each_kind_is_attached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert attach(f"What is {path}?") == ("What is ?", [base64.b64encode(content).decode()], [])
    kind = "audio" if name.endswith("wav") else "image"
    assert capsys.readouterr() == ("", f"Added {kind} '{path}'\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.mp4", MP4), ("b.MOV", MOV), ("c.webm", MKV), ("d.mkv", MKV), ("e.gif", GIF), ("f.m4v", MP4)],
)
def test_a_video_is_attached_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    (tmp_path / "a.png").write_bytes(PNG)
    media = attach(f"What happens in {path} and {tmp_path}/a.png?")
    assert (media.text, media.images) == ("What happens in  and ?", [base64.b64encode(PNG).decode()])
    assert media.fields()["videos"] == [{"frames": [base64.b64encode(content).decode()]}]
    assert capsys.readouterr().err == f"Added video '{path}'\nAdded image '{tmp_path}/a.png'\n"


@pytest.mark.parametrize("name", ["my photo.png", "my clip.mp4"])
@pytest.mark.parametrize("written", ["{0}/{1}", "{0}/{2}", "'{0}/{1}'"])
def test_blanks_may_be_escaped_quoted_or_neither(tmp_path: Path, written: str, name: str) -> None:
    (tmp_path / name).write_bytes(PNG if name.endswith("png") else MP4)
    media = attach(f"See {written.format(tmp_path, name, name.replace(' ', chr(92) + ' '))} now")
    assert (media.text, len(media.images) + len(media.videos)) == ("See  now", 1)


def test_several_files_and_a_missing_one(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG)
    media = attach(f"{tmp_path}/a.png and /etc/x or {tmp_path}/none.png beside {tmp_path}/b.png")
    assert media.text == f"and /etc/x or {tmp_path}/none.png beside"
    assert len(media.images) == 2


def test_text_without_files_is_untouched() -> None:
    for text in (
        "  hello ",
        "see https://example.com/a.png",
        "./missing.jpg",
        "a.png is a name",
        "see ~/none.mp4",
        "a.mkv",
    ):
        assert attach(text) == (text, [], [])


def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    for name in ("fake.png", "fake.mp4"):
        path = tmp_path / name
        path.write_text("not a picture")
        with pytest.raises(CliError, match=rf"invalid file type: '.*{name}' is no JPEG, PNG, WebP, WAV, MP4, MOV"):
            attach(str(path))


def test_a_line_that_begins_with_a_path_is_told_from_a_command() -> None:
    assert begins_with_path("/home/me/cat.png what is this")
    assert begins_with_path("./cat.JPEG")
    assert begins_with_path("/home/me/clip.mp4 what happens here")
    assert not begins_with_path("/set system x")
    assert not begins_with_path("cat.png")


def test_a_path_is_reported_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b.webm").write_bytes(MKV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert attach("./a.png ~/b.webm").text == ""
    assert capsys.readouterr().err == "Added image './a.png'\nAdded video '~/b.webm'\n"


@pytest.mark.parametrize("text", ["/" + "x" * 300 + ".png", "/\0.png", "/a.png/" * 20_000])
def test_what_can_be_no_file_is_text_and_takes_no_time(text: str) -> None:
    assert attach(text) == (text, [], [])
