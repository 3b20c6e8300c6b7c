"""A template can come from any client or any repository: reading one takes time in proportion to its length."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from omlx_registry.capabilities import derive_capabilities

from omlx.prompting.thinking import find_markers, markers_around_thinking

LENGTH = 200_000
"""Characters. A walk that is quadratic takes minutes for this many, and holds the interpreter all the while."""
HOSTILE = ["x", "{{", "{%", "{{.a ", "{{ .Thinking", "x{{ .Thinking }}", "{{- ", "a.b", "\n", "{{ .Thinking }} "]


def _takes(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@pytest.mark.parametrize("segment", HOSTILE)
def test_no_template_keeps_the_search_for_thinking_markers_busy(segment: str) -> None:
    source = segment * (LENGTH // len(segment))
    assert _takes(lambda: find_markers(source, ())) < 2


@pytest.mark.parametrize("segment", HOSTILE)
def test_no_template_keeps_the_search_for_capabilities_busy(segment: str) -> None:
    source = segment * (LENGTH // len(segment))
    assert _takes(lambda: derive_capabilities({}, template=source, chat_template=None)) < 2
    assert _takes(lambda: derive_capabilities({}, template=None, chat_template=source)) < 2


def test_tags_around_thinking_are_found_behind_a_long_text() -> None:
    found = markers_around_thinking("x" * 1000 + "{{ if .Thinking }}<reason> {{ .Thinking }}\n</reason>{{ end }}")
    assert found is not None
    assert found[:2] == ("<reason>", "</reason>")


def test_a_field_counts_wherever_it_stands_in_its_action() -> None:
    template = "{{ if and .Tools .System }}{{ .System }}{{ end }}{{ .Prompt }}{{ slice .Suffix .Start }}"
    assert derive_capabilities({}, template=template, chat_template=None) == ["completion", "tools", "insert"]
