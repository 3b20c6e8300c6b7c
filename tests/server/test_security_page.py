"""docs/security.md names tests that exist."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from omlx.engine import grammar, grammar_process, grammar_text
from omlx.engine.schemas import objects, schema
from omlx.engine.speech import audio_decoder, audio_file
from omlx.engine.vision import image_decoder, images, video_decoder, video_file
from omlx.prompting import errors, gotemplate
from omlx.runner import multimodal, rendering, transcribe_jobs
from omlx.server import body_counts, body_memory, connection, connection_limits, forms, inflate, large_json, route_info

ROOT = Path(__file__).parents[2]


def test_every_promise_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert missing == []
    rows = [line for line in page.splitlines() if line.startswith("| ") and "::" not in line]
    assert [row.split("|")[1].strip() for row in rows] == ["who", "what"]


def test_every_limit_names_the_file_that_keeps_it() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    table = page.partition("| what | limit |")[2].partition("\n\n")[0]
    named = {path for row in table.splitlines()[2:] for path in re.findall(r"`([\w/.]+)`", row.split("|")[3])}
    assert len(named) > 10
    assert [path for path in named if not any((ROOT / top / path).exists() for top in ("omlx", "registry"))] == []


def test_every_limit_names_a_place_in_the_code_that_is_there() -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    table = page.partition("| what | limit | where |")[2].partition("\n\n")[0]
    places = [place for row in table.splitlines()[2:] for place in re.findall(r"`([\w/.]+)`", row.split("|")[3])]
    assert len(places) > 20
    roots = (ROOT / "omlx", ROOT / "registry", ROOT / "cache")
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []


NUMBERS: Mapping[str, Sequence[float]] = {
    "request head": [connection.MAX_HEAD >> 20],
    "trailers of a chunked body": [connection._MAX_TRAILERS >> 10],
    "request body": [route_info._TEXTS_BYTES // 10**6, route_info.NAMES_BYTES // 10**6],
    "a compressed body, after decompression": [inflate._MOST_MEMBERS, inflate._WINDOW >> 20],
    "all bodies above 1 MB together": [body_memory._LEAST // 10**6],
    "values of a body": [
        body_counts.MOST_OBJECTS, body_counts.MOST_ARRAYS, body_counts.MOST_TEXTS, body_counts.MOST_VALUES,
    ],
    "decoding a body above 8 MB": [large_json._CPU_S, large_json._CPU_S_PER_BYTE * 10**9, large_json.PROCESSES],
    "a Go template": [errors.MOST_SOURCE, gotemplate._MOST_ACTIONS],
    "a Jinja template": [errors.MOST_SOURCE],
    "one rendering of a Jinja template": [errors.MAX_CPU_S, rendering.MEMORY_BYTES >> 30],
    "all renderings of one request": [rendering.REQUEST_CPU_S],
    "a JSON schema": [
        grammar.MAX_BYTES, schema.MAX_VALUES, objects.MAX_PROPERTIES, schema.MAX_ALL_PROPERTIES, schema.MAX_DEPTH,
    ],
    "a regular expression, GBNF or Lark grammar": [grammar_text.MAX_TEXT],
    "compiling a grammar": [grammar_process.MAX_SECONDS, grammar_process._MEMORY_BYTES >> 20],
    "a grammar in use": [grammar_text._LIMITS["max_grammar_size"], grammar_text._LIMITS["max_lexer_states"]],
    "decoding the images of a request": [multimodal.MOST_SECONDS],
    "a form (audio uploads)": [forms._MOST_PARTS, forms._MOST_FIELD],
    "decoding an audio file": [
        audio_decoder.DECODE_SECONDS, audio_decoder._MEMORY_BYTES >> 30, transcribe_jobs._SHORT.audio_seconds / 60,
        transcribe_jobs._SHORT_BYTES // 10**6, transcribe_jobs._SHORT.cpu_seconds,
    ],
    "decoded audio of one model": [
        transcribe_jobs._LONG_HELD_BYTES >> 30, transcribe_jobs._SHORT_HELD_BYTES >> 20,
    ],
    "decoding one image": [
        image_decoder.PICTURE_SECONDS, image_decoder.ANIMATION_SECONDS, image_decoder._MEMORY_BYTES >> 30,
    ],
    "decoding one video": [
        video_file.MOST_BYTES // 10**6, video_decoder._MOST_PACKETS, video_file.MOST_SECONDS,
        video_file._PROCESSOR_SECONDS, video_decoder._MEMORY_BYTES >> 30,
    ],
    "images of a request": [images.MOST_PICTURES],
    "unfinished connections": [*connection_limits.Times()],
    "connections": [connection_limits._OPEN_FILES],
}  # fmt: skip


@pytest.mark.parametrize("what", NUMBERS)
def test_the_numbers_of_a_limit_are_those_of_the_code(what: str) -> None:
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    (row,) = (line.split("|") for line in page.splitlines() if line.startswith(f"| {what} |"))
    named = [number.rstrip(",") for number in re.findall(r"\d[\d,]*", row[2])]
    assert [f"{number:,.0f}" for number in NUMBERS[what] if f"{number:,.0f}" not in named] == []


def test_the_hours_of_audio_are_those_of_the_code() -> None:
    assert audio_file.MOST_SECONDS == 4 * 3600
    assert video_decoder.MOST_LENGTH_S == 2 * 3600
