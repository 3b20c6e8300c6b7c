"""Names are Ollama's grammar, and no name, however hostile, leads out of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omlx_registry import InvalidName, Name, NotFound, Registry, parse_name
from omlx_registry.names import is_valid, name_from_path

DEFAULT = ("registry.ollama.ai", "library")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("llama3", (*DEFAULT, "llama3", "latest")),
        ("llama3:8b", (*DEFAULT, "llama3", "8b")),
        ("me/llama3:8b", ("registry.ollama.ai", "me", "llama3", "8b")),
        (
            "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
            ("hf.co", "bartowski", "Llama-3.2-1B-Instruct-GGUF", "Q4_K_M"),
        ),
        ("localhost:5000/ns/m", ("localhost:5000", "ns", "m", "latest")),
        ("localhost:5000/ns/m:t", ("localhost:5000", "ns", "m", "t")),
        ("https://example.com/ns/m:t", ("example.com", "ns", "m", "t")),
        ("  llama3 \n", (*DEFAULT, "llama3", "latest")),
        ("_x/_y:_z", ("registry.ollama.ai", "_x", "_y", "_z")),
        ("m:8b:local", (*DEFAULT, "m", "8b")),
        ("m:LOCAL", (*DEFAULT, "m", "latest")),
        ("hf.co/org.with.dots/" + "r" * 96, ("hf.co", "org.with.dots", "r" * 96, "latest")),
        ("h" * 350 + "/n/m", ("h" * 350, "n", "m", "latest")),
    ],
)
def test_names_are_split_as_ollama_splits_them(text: str, parts: tuple[str, ...]) -> None:
    assert parse_name(text).parts == parts


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ":", "m:", ":t", "/m", "n/", "a//b", "a/b/c/d", "foo bar", "m:a:b", "m@sha256:" + "0" * 64, "https://m",
        "-m", ".m", "m/..", "../m", "..", ".", "h/../m", "m:..", "m:.t", "n.s/m", "m\x00", "m\n/x", "modèle", "hf.co/m",
        "n" * 81 + "/m", "m" * 81, "m:" + "t" * 81, "h" * 351 + "/n/m", "C:\\m", "m\\n", "~/m", "/etc/x", "a/b:c/d",
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match=r"^invalid model name$"):
        parse_name(text)


def test_local_and_cloud_together_are_refused_in_ollamas_words() -> None:
    with pytest.raises(InvalidName, match=r'^use either :local or :cloud, not both: "m:cloud:local"$'):
        parse_name("m:cloud:local")
    assert (
        parse_name("m:cloud").is_cloud and parse_name("m:120b-CLOUD").is_cloud and not parse_name("m:clouds").is_cloud
    )


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("llama3", "llama3:latest"),
        ("registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("registry.ollama.ai/me/x:1", "me/x:1"),
        ("hf.co/org/repo:Q8_0", "hf.co/org/repo:Q8_0"),
        ("example.com/library/x", "example.com/library/x:latest"),
    ],
)
def test_the_short_form_drops_defaults_but_never_the_tag(text: str, short: str) -> None:
    name = parse_name(text)
    assert name.short == short
    assert parse_name(name.short) == name
    assert parse_name(name.full) == name


def test_a_hub_repository_is_recognized_with_and_without_its_host() -> None:
    assert parse_name("mlx-community/Qwen3-8B-4bit").repository == "mlx-community/Qwen3-8B-4bit"
    assert parse_name("hf.co/Qwen/Qwen3-8B:q4").repository == "Qwen/Qwen3-8B"
    assert parse_name("qwen3:8b").repository is None
    assert parse_name("example.com/a/b").repository is None


parts = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
names = st.from_regex(
    r"\A([A-Za-z0-9_][A-Za-z0-9_.:-]{0,9}/)?[A-Za-z0-9_][A-Za-z0-9_-]{0,9}/[\w.-]{1,9}(:[\w.-]{1,9})?\Z"
)
hostile = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(["..", ".", "", "a", "A", "\x00", "~", "C:", "x" * 90, "hf.co", "é"]), max_size=5).map(
        "/".join
    ),
    st.tuples(names, st.sampled_from(["/..", "/../..", ":..", "\\..", "\x00", "%2e%2e", "/"])).map("".join),
)


@given(hostile)
def test_a_hostile_name_is_refused_or_stays_inside(text: str) -> None:
    root = Path("/store/manifests")
    try:
        name = parse_name(text)
    except InvalidName:
        return
    path = root.joinpath(*name.parts)
    assert len(path.parts) == len(root.parts) + 4
    assert ".." not in path.parts and not any("/" in part or "\0" in part or "\\" in part for part in name.parts)
    assert name_from_path(path.parts[-4:]) == name


@given(names)
def test_a_valid_name_survives_printing_and_parsing(text: str) -> None:
    try:
        name = parse_name(text)
    except InvalidName:
        return
    assert parse_name(name.full) == parse_name(name.short) == name
    assert is_valid(name) and name.folded == parse_name(name.full.upper()).folded


@given(st.tuples(parts, parts, parts, parts))
def test_only_valid_paths_are_names(path: tuple[str, str, str, str]) -> None:
    name = name_from_path(path)
    assert name is None or is_valid(Name(*path))


def test_hostile_lookups_touch_nothing_outside(tmp_path: Path) -> None:
    root = tmp_path / "models"
    secret = tmp_path / "secret"
    secret.write_text("x")
    registry = Registry(root)
    for text in ("../secret", "a/../../secret", "..", "/" + str(secret), "h/n/../../../secret", "x\x00y"):
        for action in (registry.resolve, registry.show, registry.delete):
            with pytest.raises((InvalidName, NotFound)):
                action(text)
        with pytest.raises((InvalidName, NotFound)):
            registry.copy("x", text)
    assert secret.read_text() == "x"
