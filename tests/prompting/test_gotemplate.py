"""Go templates print what Go prints, refuse what Go refuses in Go's words, and always come to an end.

The cases in data/go_templates.json were run through Go's own text/template.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.prompting.errors import TemplateError
from omlx.prompting.gotemplate import GoTemplate
from omlx.prompting.gotemplate.values import Struct

_RECORDED = json.loads((Path(__file__).parent / "data" / "go_templates.json").read_text("utf-8"))
DATA: dict[str, Any] = _RECORDED["data"]


@pytest.mark.parametrize(("source", "outcome", "expected"), _RECORDED["cases"])
def test_same_as_go(source: str, outcome: str, expected: str) -> None:
    try:
        template = GoTemplate(source)
    except TemplateError as error:
        assert (outcome, expected) == ("parse", str(error))
        return
    try:
        text = template.execute(DATA)
    except TemplateError:
        assert outcome == "exec"
        return
    assert (outcome, expected) == ("out", text)


@pytest.mark.parametrize(
    "source",
    [
        "{{ range 1000000000000 }}{{ end }}",
        "{{ range 100000 }}{{ range 100000 }}x{{ end }}{{ end }}",
        '{{ define "a" }}{{ template "a" . }}{{ end }}{{ template "a" . }}',
        '{{ define "a" }}{{ template "a" }}{{ template "a" }}{{ end }}{{ template "a" }}',
        "{{ if 1 }}" * 5000,
        "{{ " + "(" * 5000,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ if 1 }}{{ else if 1 }}" * 3000,
    ],
)
def test_hostile_templates_end_in_an_error(source: str) -> None:
    started = time.thread_time()
    with pytest.raises(TemplateError):
        GoTemplate(source).execute({}, cpu_s=0.2)
    assert time.thread_time() - started < 10


@pytest.mark.parametrize("make", ["print $a $a", 'printf "%s%s%s%s" $a $a $a $a', 'printf "%q" $a'])
def test_texts_that_double_end_before_they_take_memory(make: str) -> None:
    source = '{{ $a := "xx" }}' + ("{{ $a = " + make + " }}") * 60
    with pytest.raises(TemplateError, match="too large"):
        GoTemplate(source).execute({}, cpu_s=600)


LONG = "x" * 1_000_000
TURNS = [{"role": "user", "content": LONG}] * 5


@pytest.mark.parametrize(
    "source",
    [
        "{{ print " + ".turns " * 20_000 + "}}",
        "{{ println " + ".long " * 40_000 + "}}",
        '{{ printf "' + "%[1]v" * 40_000 + '" .long }}',
        '{{ printf "' + "%[1]v" * 40_000 + '" .turns }}',
        '{{ printf "' + "%1000000[1]d" * 20_000 + '" 5 }}',
        '{{ printf "%.1000000f" .numbers }}',
        '{{ printf "%+v %.1000000f" .turns .numbers }}',
        "{{ html .long .long .long .long .long }}",
        "{{ .long" + " | js" * 20_000 + " }}",
        "{{ if and " + "(json .turns) " * 5_000 + "}}a{{ end }}",
        "{{ if and " + "(len $.long) " * 15_000 + "}}a{{ end }}",
        "{{ if or " + "(lt $.long $.long) " * 9_000 + "}}a{{ end }}",
        "{{ $a := slice .numbers 0 }}" + "{{ $b := slice $a 0 }}" * 9_000,
        "{{ $a := 0 }}" + "{{ $b := 1 }}" * 9_000 + "{{ if or " + "$a " * 40_000 + "}}a{{ end }}",
    ],
)
def test_no_single_statement_takes_much_time_or_memory(source: str) -> None:
    """The bounds hold within one statement too, which could ask for minutes or for tens of gigabytes."""
    data = {"long": LONG, "turns": TURNS, "numbers": [0.5] * 100_000}
    template, limits = GoTemplate(source), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 1_500_000_000, limits[1]))
    started = time.thread_time()
    try:
        with pytest.raises(TemplateError, match=r"too large|too long"):
            template.execute(data, cpu_s=0.5)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.thread_time() - started < 5


_FRAGMENTS = [
    "{{", "}}", "{{- ", " -}}", "if ", "else", "else if ", "end", "range ", "with ", "define ", "template ", "block ",
    "break", "continue", ".", ".s", ".l", ".m.a", "$", "$x", " := ", " = ", ", ", "|", "(", ")", '"a"', "`", "'c'", "'",
    "3", "1.5", "-", "0x", "nil", "true", "eq ", "and ", "or ", "len ", "index ", "slice ", "printf ", "%d", "json ",
    "/*", "*/", "\n", " ", "é", "\\", "\x00", "{{ end }}", "{{ else }}", "{{ range .l }}", "{{ if .s }}", "{{ .s }}",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(_FRAGMENTS) | st.text(max_size=3), max_size=25).map("".join))
def test_any_text_is_a_template_or_a_template_error(source: str) -> None:
    try:
        text = GoTemplate(source).execute(DATA, cpu_s=1)
    except TemplateError as error:
        assert str(error).startswith("template: ")
    else:
        assert isinstance(text, str)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(_VALUES, st.text(alphabet="%vsdqxXtfegcTU+-# 05.*", max_size=8))
def test_printing_any_value_works(value: Any, form: str) -> None:
    data = {"v": value, "f": form}
    assert isinstance(
        GoTemplate("{{ .v }}{{ print .v .v }}{{ printf .f .v .v }}{{ printf `%#v` .v }}").execute(data), str
    )


@given(_VALUES)
def test_json_is_json(value: Any) -> None:
    try:
        text = GoTemplate("{{ json .v }}").execute({"v": value})
    except TemplateError as error:
        assert "unsupported value" in str(error)
    else:
        # Go prints 1.0 as 1: numbers are compared as numbers.
        assert json.loads(text, parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{{ printf "%[2]s %[1]s" "a" "b" }}', "b a"),
        ('{{ printf "%[2]d %d" 1 2 }}', "2 %!d(MISSING)"),
        ('{{ printf "%[1]s=%[1]q %s" "a" "b" }}', 'a="a" b'),
        ('{{ printf "%[3]*.[2]*[1]f|" 12.0 2 6 }}', " 12.00|"),
        ('{{ printf "%[2]*[1]d|" 1 3 }}', "  1|"),
        ('{{ printf "%[1]s" "a" "b" }}', "a"),
        ('{{ printf "%[3]s" "a" }}', "%!s(BADINDEX)"),
        ('{{ printf "%[x]s" "a" }}', "%!s(BADINDEX)"),
        ('{{ printf "%[0]s" "a" }}', "%!s(BADINDEX)"),
        ('{{ printf "%[1]2d" 1 }}', "%!d(BADINDEX)"),
        ('{{ printf "%+v|%+v|%+v" .m .n .s }}', "map[a:1 b:2 c:map[d:x<y&z]]|5|h\u00e9llo"),
        ('{{ printf "%+d" 5 }}', "+5"),
        ("{{ 1000000.0 }} {{ 999999.5 }} {{ 123456789.5 }} {{ 1e20 }}", "1e+06 999999.5 1.234567895e+08 1e+20"),
        ('{{ printf "%v %g %.0f" 21000000.0 0.0001 1e9 }}', "2.1e+07 0.0001 1000000000"),
        ("{{ json 1000000.0 }} {{ json 1e20 }}", "1000000 100000000000000000000"),
    ],
)
def test_formats_print_as_in_go(source: str, expected: str) -> None:
    assert GoTemplate(source).execute(DATA) == expected


def test_the_plus_of_v_names_the_fields_of_a_struct() -> None:
    inner = Struct("T", {"A": 1, "B": "x"})
    outer = Struct("U", {"In": inner, "List": [inner], "N": 2.5})
    template = GoTemplate('{{ printf "%+v %v" .o .o }}')
    assert template.execute({"o": outer}) == "{In:{A:1 B:x} List:[{A:1 B:x}] N:2.5} {{1 x} [{1 x}] 2.5}"
