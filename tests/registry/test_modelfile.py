"""Modelfiles read as Ollama reads them, fail in its words, and print so that they read back the same."""

from __future__ import annotations

import codecs
import re
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omlx_registry import ModelfileError
from omlx_registry.modelfile import (
    COMMANDS,
    ROLES,
    Instruction,
    Modelfile,
    interpret,
    is_newer,
    parse_modelfile,
    parse_parameter,
    quote,
)

UNKNOWN = (
    'command must be one of "from", "license", "template", "system", "adapter", "draft", "renderer", "parser", '
    '"parameter", "message", or "requires"'
)


def commands(text: str | bytes) -> list[tuple[str, ...]]:
    found = parse_modelfile(text).commands
    return [(it.name, it.key, it.value) if it.key else (it.name, it.value) for it in found]


def test_every_instruction_is_read() -> None:
    text = '''
# A comment, and a # inside a value is no comment:
from llama3.2
PARAMETER temperature 0.5
Parameter stop "<|end|> # not a comment"
TEMPLATE """{{ .System }}
{{ .Prompt }}"""
SYSTEM You are   a pirate.  \t
ADAPTER ./lora
DRAFT ./draft
RENDERER qwen3
PARSER qwen3
REQUIRES v0.14.0
LICENSE "one
two"
MESSAGE user Why?
MESSAGE assistant """ Because "so".
"""
'''
    assert commands(text) == [
        ("from", "llama3.2"),
        ("parameter", "temperature", "0.5"),
        ("parameter", "stop", "<|end|> # not a comment"),
        ("template", "{{ .System }}\n{{ .Prompt }}"),
        ("system", "You are   a pirate."),
        ("adapter", "./lora"),
        ("draft", "./draft"),
        ("renderer", "qwen3"),
        ("parser", "qwen3"),
        ("requires", "v0.14.0"),
        ("license", "one\ntwo"),
        ("message", "user", "Why?"),
        ("message", "assistant", ' Because "so".\n'),
    ]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("SYSTEM 'single'", "'single'"),
        ('SYSTEM "a" b"', 'a" b'),
        ('SYSTEM "a" b\nc"', 'a" b\nc'),
        ('SYSTEM """a"b""c"""', 'a"b""c'),
        ('SYSTEM """a""" b\n"""', 'a""" b\n'),
        ('SYSTEM ""', ""),
        ('SYSTEM """"""', ""),
        ("SYSTEM\ttab", "tab"),
        ("SYSTEM be\x07ll\x00", "bell"),
        ("SYSTEM zero\u200dwidth 👩‍🚀", "zero\u200dwidth 👩‍🚀"),
        ('SYSTEM "\n  indented\n"', "\n  indented\n"),
        ("SYSTEM a\\nb", "a\\nb"),
        ("SYSTEM end \r", "end"),
    ],
)
def test_quoting(line: str, value: str) -> None:
    assert commands(f"FROM x\n{line}\n") == [("from", "x"), ("system", value)]
    assert commands(f"{line}\nFROM x") == [("system", value), ("from", "x")]


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + "FROM modèle\r\nSYSTEM é".encode(),
        codecs.BOM_UTF16_LE + "FROM modèle\r\nSYSTEM é".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "FROM modèle\r\nSYSTEM é".encode("utf-16-be"),
        "FROM modèle\nSYSTEM é".encode(),
    ],
)
def test_byte_order_marks_are_honoured(data: bytes) -> None:
    assert commands(data) == [("from", "modèle"), ("system", "é")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM line"),
        ("# FROM x", "no FROM line"),
        ("SYSTEM x", "no FROM line"),
        ("FROM x\nBAD y", f"(line 2): {UNKNOWN}"),
        ("FROM x\n\n  FR0M y", f"(line 3): {UNKNOWN}"),
        ("FROM x\n1 y", f"(line 2): {UNKNOWN}"),
        ("FROM x\nFROM/y", f"(line 2): {UNKNOWN}"),
        ("FROM x\nMESSAGE robot hi", '(line 2): message role must be one of "system", "user", or "assistant"'),
        ("FROM x\nMESSAGE User hi", '(line 2): message role must be one of "system", "user", or "assistant"'),
        ('FROM x\nSYSTEM "open', "unexpected EOF"),
        ('FROM x\nSYSTEM """open"', "unexpected EOF"),
        ('FROM x\nSYSTEM """open\n"" "', "unexpected EOF"),
        ("FROM", "unexpected EOF"),
        ("FROM \n", "unexpected EOF"),
        ("FROM x\nPARAMETER stop", "unexpected EOF"),
        ("FROM x\nPARAMETER stop\n", "unexpected EOF"),
        ("FROM x\nPARAMETER st-op y", "unexpected EOF"),
        ("FROM x\nMESSAGE user\n", "unexpected EOF"),
    ],
)
def test_errors_are_ollamas(text: str, message: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        parse_modelfile(text)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num_ctx", "4096", 4096),
        ("seed", "-1", -1),
        ("temperature", "0.7", 0.7),
        ("temperature", "1", 1.0),
        ("top_p", ".5", 0.5),
        ("min_p", "1e-3", 0.001),
        ("use_mmap", "T", True),
        ("use_mmap", "False", False),
        ("stop", "1", "1"),
    ],
)
def test_parameters_are_typed(name: str, text: str, value: Any) -> None:
    found = parse_parameter(name, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nope", "1", "unknown parameter 'nope'"),
        ("num_ctx", "4k", "invalid int value [4k]"),
        ("num_ctx", "1.5", "invalid int value [1.5]"),
        ("num_ctx", "9" * 30, f"invalid int value [{'9' * 30}]"),
        ("temperature", "hot", "invalid float value [hot]"),
        ("use_mmap", "yes", "invalid bool value [yes]"),
    ],
)
def test_parameter_errors_are_ollamas(name: str, text: str, message: str) -> None:
    with pytest.raises(ModelfileError) as caught:
        interpret(parse_modelfile(f"FROM x\nPARAMETER {name} {text}"))
    assert caught.value.message == message


def test_the_meaning_follows_the_repeat_rules() -> None:
    meaning = interpret(
        parse_modelfile(
            "FROM a\nFROM b\nSYSTEM one\nSYSTEM two\nLICENSE x\nLICENSE y\nPARAMETER stop a\nPARAMETER stop b\n"
            "PARAMETER seed 1\nPARAMETER seed 2\nPARAMETER numa 1\nMESSAGE user hi\n"
            "MESSAGE assistant ho\nREQUIRES v0.14"
        )
    )
    assert meaning.bases == ["a", "b"] and meaning.system == "two" and meaning.licenses == ["x", "y"]
    assert meaning.parameters == {"stop": ["a", "b"], "seed": 2}
    assert meaning.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert meaning.requires == "0.14" and meaning.warnings == ["warning: parameter numa is deprecated"]
    with pytest.raises(ModelfileError, match=r"requires must be a valid semver \(e\.g\. 0\.14\.0\)"):
        interpret(parse_modelfile("FROM x\nREQUIRES new"))
    with pytest.raises(ModelfileError, match="only one ADAPTER is supported: merge the adapters into one first"):
        interpret(parse_modelfile("FROM x\nADAPTER ./a\nADAPTER ./b"))


@pytest.mark.parametrize("value", ["1e999", "-1e999", "inf", "NaN"])
def test_a_parameter_is_a_finite_number(value: str) -> None:
    with pytest.raises(ModelfileError, match=re.escape(f"invalid float value [{value}]")):
        interpret(parse_modelfile(f"FROM x\nPARAMETER temperature {value}"))


@pytest.mark.parametrize(
    ("requires", "version", "newer"),
    [
        ("0.33.1", "0.33.0", True),
        ("v0.34", "0.33.9", True),
        ("1", "0.99.0", True),
        ("0.33.0", "0.33.0", False),
        ("0.9.0", "0.33.0", False),
        ("0.34.0-rc1", "0.33.0", True),
        ("", "0.33.0", False),
        ("9.0.0", "", False),
    ],
)
def test_requires_is_compared_by_numbers(requires: str, version: str, newer: bool) -> None:
    assert is_newer(requires, version) is newer


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("plain", "plain"),
        ('say "hi"', 'say "hi"'),
        ("two\nlines", '"two\nlines"'),
        (" blank", '" blank"'),
        ('quotes "and"\nlines', '"""quotes "and"\nlines"""'),
        ('"quoted"', '""quoted""'),
        ("", '""'),
    ],
)
def test_values_are_quoted_only_where_needed(value: str, printed: str) -> None:
    assert quote(value) == printed


text_values = st.text(
    st.one_of(st.characters(exclude_categories=["Cc", "Cs"]), st.sampled_from("\n\t\"# '")), max_size=60
)
bare_words = st.from_regex(r"\A[a-z_0-9]{1,10}\Z")
plain_commands = st.sampled_from([name for name in COMMANDS if name not in {"parameter", "message"}])
any_command = st.one_of(
    st.builds(Instruction, plain_commands, text_values),
    st.builds(lambda value, key: Instruction("parameter", value, key), text_values, bare_words),
    st.builds(lambda value, key: Instruction("message", value, key), text_values, st.sampled_from(ROLES)),
)


def has_a_form(value: str) -> bool:
    """No line but the last may end in three quote marks, and a lone carriage return is no text."""
    return not any(line.rstrip().endswith('"""') for line in value.split("\n")[:-1]) and not value.startswith('"""')


@given(st.lists(any_command, max_size=6))
@example([Instruction("system", '"')])
@example([Instruction("system", 'a"""')])
@example([Instruction("system", "\u2028")])
def test_what_is_printed_reads_back_the_same(found: list[Instruction]) -> None:
    assume(all(has_a_form(command.value) for command in found))
    modelfile = Modelfile([Instruction("from", "base"), *found])
    assert parse_modelfile(str(modelfile)) == modelfile
    assert parse_modelfile(codecs.BOM_UTF16_LE + str(modelfile).encode("utf-16-le")) == modelfile


hostile_values = st.lists(
    st.sampled_from(['"', '"""', "\n", "\r", " ", "\x00", "\u2028", "\x0b", "FROM evil", "x"]), max_size=12
).map("".join)


@given(st.lists(st.builds(Instruction, plain_commands, hostile_values), max_size=3))
@example([Instruction("system", 'a"""\nFROM evil\nSYSTEM """b')])
@example([Instruction("system", 'a"""\u2028\nFROM evil')])
@example([Instruction("system", '""""\nFROM evil')])
def test_no_value_breaks_out_of_its_quotes(found: list[Instruction]) -> None:
    read = parse_modelfile(
        str(Modelfile([Instruction("from", "base"), *found, Instruction("license", "end")]))
    ).commands
    assert [command.name for command in read] == ["from", *(command.name for command in found), "license"]
    # What has no form of its own is still the same text, but for blanks and for what no Modelfile holds.
    for command, other in zip(read[1:-1], found, strict=True):
        assert re.sub(r"[\s\x00]", "", command.value) == re.sub(r"[\s\x00]", "", other.value)


@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        modelfile = parse_modelfile(text)
    except ModelfileError as error:
        assert error.message
        return
    assert modelfile.values("from")
