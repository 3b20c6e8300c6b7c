"""A model's own chat template renders as Hugging Face renders it, and foreign code stays within its bounds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from omlx.prompting.errors import TemplateError
from omlx.prompting.jinja import JinjaTemplate


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': 'é<&'} | tojson }}", '{"a": "é<&"}'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": [\n    1\n  ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}"
         "{% endfor %}", "13"),
        ("{% generation %}kept{% endgeneration %}", "kept"),
        ("{% for x in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "1/2,2/2"),
        ("{% macro two(x) %}{{ x ~ x }}{% endmacro %}{{ two('a') ~ 1 ~ none }}", "aa1None"),
        ("{% set n = namespace(found=false) %}{% for x in [1] %}{% set n.found = true %}{% endfor %}{{ n.found }}",
         "True"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }}", "hi"),
        ("{{ messages[0].content.strip().upper() + messages[::-1][0]['role'] }}", "HIuser"),
        ("{{ dict(a=1).a }}{{ missing }}", "1"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
    ],
)  # fmt: skip
def test_renders_what_templates_are_written_against(source: str, text: str) -> None:
    assert JinjaTemplate(source).render({"messages": [{"role": "user", "content": "hi"}]}) == text


def test_a_refusal_is_told_in_the_templates_own_words() -> None:
    with pytest.raises(TemplateError, match="refuses this conversation: roles must alternate"):
        JinjaTemplate("{{ raise_exception('roles must alternate') }}").render({})


@pytest.mark.parametrize("source", ["{% if %}", "{{ ", "{% for %}", "{% nonsense %}", "{{ x | nofilter }}"])
def test_a_malformed_template_is_an_error_at_once(source: str) -> None:
    with pytest.raises(TemplateError, match="cannot be read"):
        JinjaTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ().__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.join.__globals__.os }}",
        "{{ namespace(__class__=1).x.y }}",
        "{{ undefined_name.attribute }}",
        "{{ 1 / 0 }}",
        "{{ messages | tojson(indent='x') + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% block a %}{{ self.a() }}{% endblock %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% include ['x', '/etc/passwd'] ignore missing %}",
        "{% include messages %}",
        "{% import '/etc/passwd' as x %}",
        "{% from '/etc/passwd' import x %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_what_foreign_code_may_not_or_cannot_do_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        JinjaTemplate(source).render({"messages": []})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10000000000 }}",
        "{{ [0] * 10000000000 }}",
        "{{ 2 ** 1000000 }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='xx') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='xx') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_time_and_room_are_bounded(source: str) -> None:
    started = time.thread_time()
    with pytest.raises(TemplateError):
        JinjaTemplate(source, cpu_s=0.2).render({})
    assert time.thread_time() - started < 10


def test_threads_that_share_a_template_do_not_share_its_clock() -> None:
    template = JinjaTemplate("{% for x in range(2000) %}{{ x }}{% endfor %}", cpu_s=0.5)
    started = threading.Event()

    def busy() -> str:
        while time.thread_time() < 0.8:
            pass
        started.set()
        return "".join(template.render({}) for _ in range(20))

    with ThreadPoolExecutor(2) as threads:
        old = threads.submit(busy)
        started.wait()
        new = [threads.submit(template.render, {}) for _ in range(20)]
        assert old.result() == "".join(done.result() for done in new)


def test_a_template_longer_than_any_is_refused() -> None:
    with pytest.raises(TemplateError, match="longer than 262,144 characters"):
        JinjaTemplate("a" * 262_145)
