"""A Jinja template is rendered where it can be stopped: the same text, and an end to whatever it does."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest

from omlx.messages.request import GenerateRequest, Message, ToolCall
from omlx.prompting.errors import TemplateError, TemplateTooSlow
from omlx.prompting.jinja import JinjaTemplate
from omlx.prompting.template import PromptTemplate
from omlx.runner import rendering
from omlx.runner.rendering import MEMORY_BYTES, IsolatedTemplate, Renderers
from tests.prompting.families import FAMILIES
from tests.support.processes import command_line
from tests.support.tiny_template import CHATML

CONVERSATION = {
    "messages": [
        {"role": "system", "content": "Be kind. \ud83d lone, “quoted”, 你好"},
        {"role": "user", "content": "a" * 100_000},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"n": 2**80}}}]},
    ],
    "tools": None,
    "add_generation_prompt": True,
}
DOUBLED = (
    "{% set ns = namespace(a=[1], b=[1]) %}"
    "{% for i in range(70) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}"
)
LOOP = "{% set ns = namespace(x=%s) %}{% for i in range(99999) %}{% set ns.x = %s %}{% endfor %}{{ ns.x|length }}"


@pytest.fixture
def renderers() -> Iterator[Renderers]:
    found = Renderers()
    yield found
    found.close()


def test_the_text_is_the_one_that_is_made_here(renderers: Renderers) -> None:
    for source in (CHATML, "{{ messages }}|{{ messages[0].content }}|{{ messages[2].tool_calls|tojson }}"):
        expected = JinjaTemplate(source).render(CONVERSATION)
        assert IsolatedTemplate(source, renderers).render(CONVERSATION) == expected


def test_the_prompts_of_all_families_are_the_same(renderers: Renderers) -> None:
    call = ToolCall(id="call_1", name="weather", arguments={"city": "Paris", "days": 3})
    messages = [
        Message("system", "Be kind."),
        Message("user", "Weather?"),
        Message("assistant", thinking="Look it up.", tool_calls=[call]),
        Message("tool", "Sunny", tool_name="weather", tool_call_id="call_1"),
    ]
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    for family in FAMILIES:
        for tools in ([], [tool]):
            request = GenerateRequest(id=1, messages=messages, tools=tools)
            here = PromptTemplate.from_jinja(family.template())
            there = PromptTemplate.from_jinja(
                family.template(), compiled=partial(IsolatedTemplate, renderers=renderers)
            )
            assert there.render(request) == here.render(request)
            assert there.template_capabilities == here.template_capabilities


def test_what_is_no_template_is_refused_with_its_reason(renderers: Renderers) -> None:
    with pytest.raises(TemplateError) as here:
        JinjaTemplate("{% for %}")
    with pytest.raises(TemplateError) as there:
        IsolatedTemplate("{% for %}", renderers)
    assert str(there.value) == str(here.value)
    with pytest.raises(TemplateError, match="say please"):
        IsolatedTemplate("{{ raise_exception('say please') }}", renderers).render({})
    for name in ("lipsum()", "'a'|urlize", "'a'|wordwrap", "cycler('a')"):
        with pytest.raises(TemplateError):
            IsolatedTemplate("{{ " + name + " }}", renderers).render({})


def test_variables_nested_too_deeply_are_refused_with_a_sentence(renderers: Renderers) -> None:
    nested: dict[str, Any] = {}
    for _ in range(100_000):  # CPython 3.12 takes 10,000 levels
        nested = {"a": nested}
    with pytest.raises(TemplateError, match="nested too deeply"):
        IsolatedTemplate("{{ tools | length }}", renderers).render({"tools": [nested]})


@pytest.mark.parametrize(
    "source",
    [
        DOUBLED + "{{ ns.a|tojson }}",
        DOUBLED + "{{ ns.a == ns.b }}",
        DOUBLED + "{{ ns.a }}",
        "{{ ('ab ' * 20000000)|title }}",
        "{{ ('a' * 65536).replace('a', 'b' * 65536) }}",
        "{{ ('ab,' * 22000000).split(',')|length }}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x > 1 }}",
        LOOP.replace("%s", "[]", 1).replace("%s", "ns.x + ['x' * 1000000 ~ i]"),
        LOOP.replace("%s", "[1]", 1).replace("%s", "ns.x + ns.x"),
    ],
)
def test_whatever_a_template_does_ends_and_others_are_rendered(renderers: Renderers, source: str) -> None:
    largest, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for child in psutil.Process().children():
                try:
                    largest[0] = max(largest[0], child.memory_info().rss)
                except psutil.Error:
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        renderers.new_request()
        with pytest.raises(TemplateError):
            IsolatedTemplate(source, renderers).render({})
        assert IsolatedTemplate("{{ a }}", renderers).render({"a": 1}) == "1"
    finally:
        done.set()
        watcher.join()
    if os.uname().sysname == "Linux":
        assert largest[0] < MEMORY_BYTES + 200_000_000


def test_all_renderings_of_a_request_share_its_time(renderers: Renderers) -> None:
    """What is tried with fewer messages again and again ends; the next request starts anew."""
    slow = IsolatedTemplate(
        "{% for i in range(100000) %}{% for j in range(20) %}{{ j }}{% endfor %}{% endfor %}", renderers
    )
    renderers.new_request()
    for _ in range(4):
        with pytest.raises(TemplateTooSlow):
            slow.render({})
    with pytest.raises(TemplateTooSlow, match="longer than 6 seconds"):
        IsolatedTemplate("{{ a }}", renderers)
    renderers.new_request()
    assert IsolatedTemplate("{{ a }}", renderers).render({"a": 1}) == "1"


def test_a_renderer_that_was_killed_is_replaced(renderers: Renderers) -> None:
    template = IsolatedTemplate("{{ a }}", renderers)
    for child in psutil.Process().children():
        if "omlx.runner.rendering" in command_line(child):
            child.send_signal(signal.SIGKILL)
            child.wait()
    assert template.render({"a": 1}) == "1"


def test_memory_is_watched_where_the_kernel_does_not(renderers: Renderers, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where the limit of address space is taken and not kept."""
    template = IsolatedTemplate(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", renderers
    )
    monkeypatch.setattr(rendering, "WATCHED_BYTES", 1)
    with pytest.raises(TemplateTooSlow, match="more time or memory than it may"):
        template.render({})
    monkeypatch.undo()
    assert IsolatedTemplate("a{{ 1 + 1 }}", renderers).render({}) == "a2"
