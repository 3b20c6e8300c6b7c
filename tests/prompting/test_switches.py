"""Each family's thinking: known to `show`, switched by the variable its template reads, and closed where none does.

The templates are our own: only the markers, the variables and what the prompt ends with are the families'.
"""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from omlx_registry.capabilities import derive_capabilities

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.constraint import limit_thinking
from omlx.prompting.output import OutputParser, detect_output
from omlx.prompting.template import PromptTemplate
from omlx.prompting.thinking import ThinkMarkers
from omlx.protocols.template_kwargs import read_template_kwargs, think_of

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


class Family(NamedTuple):
    """`on` and `off`: how the prompt ends with `think` true and false; `default`: where nothing is asked."""

    template: str
    opening: str
    on: str
    off: str
    default: str
    tokens: tuple[str, ...] = ()
    closed: bool = False
    """Thinking that is switched off has to be closed in the reply."""


FAMILIES = {
    "qwen3": Family(
        TURNS + "{{ '|' }}{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{{ '' }}{% endif %}",
        "<think>", "|", "|<think>\n\n</think>\n\n", "|",
    ),
    "qwen3-next-thinking": Family(TURNS + "{{ '|<think>\n' }}{# </think> #}", "<think>", "|<think>\n", "|<think>\n", "|<think>\n", closed=True),
    "deepseek-r1": Family(
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{{ '|<think>\n' }}",
        "<think>", "|<think>\n", "|<think>\n", "|<think>\n", closed=True,
    ),
    "deepseek-r1, first": Family(
        "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{{ '|' }}",
        "<think>", "|", "|", "|", closed=True,
    ),
    "step3.7": Family(
        "{% if reasoning_effort is defined %}{{ 'Reasoning: ' + reasoning_effort }}{% endif %}" + TURNS
        + "{# </think> #}{{ '|<think>\n' }}",
        "<think>", "|<think>\n", "|<think>\n", "|<think>\n", closed=True,
    ),
    "seed-oss": Family(
        "{% set begin, end = '<seed:think>', '</seed:think>' %}" + TURNS
        + "{{ '|' }}{% if thinking_budget == 0 %}{{ begin + '<seed:cot_budget_reflect>' }}{% endif %}",
        "<seed:think>", "|", "|<seed:think><seed:cot_budget_reflect>", "|",
    ),
    "command-a-reasoning": Family(
        "{% set reasoning = reasoning if reasoning is defined else true %}" + TURNS
        + "{{ '|<|START_THINKING|>' }}{% if not reasoning %}{{ '<|END_THINKING|>' }}{% endif %}",
        "<|START_THINKING|>", "|<|START_THINKING|>", "|<|START_THINKING|><|END_THINKING|>", "|<|START_THINKING|>",
    ),
    "command-r7b": Family(
        "{% if tools %}Start by writing <|START_THINKING|> and close it with <|END_THINKING|>.{% endif %}" + TURNS + "{{ '|' }}",
        "<|START_THINKING|>", "|", "|", "|", closed=True,
    ),
    "apertus": Family(
        "{% set inner, outer = '<|inner_prefix|>', '<|inner_suffix|>' %}" + TURNS
        + "|Deliberation: {{ 'enabled' if enable_thinking is defined and enable_thinking else 'disabled' }}",
        "<|inner_prefix|>", "|Deliberation: enabled", "|Deliberation: disabled", "|Deliberation: enabled",
    ),
    "minimax-m2": Family(TURNS + "{# </think> #}{{ '|<think>\n' }}", "<think>", "|<think>\n", "|<think>\n", "|<think>\n", closed=True),
    "minimax-m3": Family(
        "{# <mm:think> #}" + TURNS + "{{ '|' }}{% if thinking_mode == 'disabled' %}{{ '</mm:think>' }}{% elif thinking_mode == 'enabled' %}{{ '<mm:think>' }}{% endif %}",
        "<mm:think>", "|<mm:think>", "|</mm:think>", "|",
    ),
    "hunyuan-3": Family(
        "{% set s = ':opensource' %}" + TURNS + "{{ '|' }}{% if not reasoning_effort or reasoning_effort == 'no_think' %}"
        "{{ '<think' ~ s ~ '></think' ~ s ~ '>' }}{% endif %}",
        "<think:opensource>", "|", "|<think:opensource></think:opensource>", "|",
        tokens=("<think:opensource>", "</think:opensource>"),
    ),
    "hunyuan-3, its marker put together": Family(
        "{% set HYTK = ':opensource' %}{% set begin, close = '<think{}>'.format(HYTK), '</think{}>'.format(HYTK) %}" + TURNS
        + "{{ '|' ~ begin }}{% if not reasoning_effort or reasoning_effort == 'no_think' %}{{ close }}{% endif %}",
        "<think:opensource>", "|<think:opensource>", "|<think:opensource></think:opensource>", "|<think:opensource>",
    ),
    "hunyuan-3, without a suffix": Family(
        "{% set HYTK = '' %}{% set begin, close = '<think{}>'.format(HYTK), '</think{}>'.format(HYTK) %}" + TURNS
        + "{{ '|' ~ begin }}{% if not reasoning_effort or reasoning_effort == 'no_think' %}{{ close }}{% endif %}",
        "<think>", "|<think>", "|<think></think>", "|<think>",
    ),
    "hunyuan-4": Family(
        "{% set begin = '<think:6124c78e>' %}" + TURNS + "{{ '|' ~ begin }}{% if reasoning_effort == 'no_think' %}</think:6124c78e>{% endif %}",
        "<think:6124c78e>", "|<think:6124c78e>", "|<think:6124c78e></think:6124c78e>", "|<think:6124c78e>",
    ),
    "solar": Family(
        "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'high' %}" + TURNS
        + "{{ '|' }}{% if reasoning_effort in ['low', 'minimal'] %}{{ '<|begin|>assistant<|think|><|end|>' }}{% endif %}<|begin|>assistant",
        "<|think|>", "|<|begin|>assistant", "|<|begin|>assistant<|think|><|end|><|begin|>assistant", "|<|begin|>assistant",
    ),
    "granite-3.2": Family(
        "{% if thinking %}Write your thoughts after 'Here is my thought process:' and your response after "
        "'Here is my response:'.{% endif %}" + TURNS + "|{{ thinking }}",
        "Here is my thought process:", "|True", "|False", "|False",
    ),
    "granite-3.3": Family(
        "{% if thinking %}Write your thoughts between <think></think> and write your response between "
        "<response></response> for each user query.{% endif %}" + TURNS + "|{{ thinking }}",
        "<think>", "|True", "|False", "|False",
    ),
    "cogito": Family(
        "{% if enable_thinking %}Enable deep thinking subroutine.{% endif %}" + TURNS + "|{{ enable_thinking }}",
        "<think>", "|True", "|False", "|False",
    ),
    "nemotron-nano-v2": Family(
        "{% set ns = namespace(enable_thinking=true) %}" + TURNS + "{{ '|' }}{% if ns.enable_thinking is false %}<think></think>{% else %}{{ '<think>\n\n' }}{% endif %}",
        "<think>", "|<think>\n\n", "|<think>\n\n", "|<think>\n\n", closed=True,
    ),
    "apriel": Family(
        "Answer in the format: [BEGIN FINAL RESPONSE] ... [END FINAL RESPONSE]. <thinking></thinking>" + TURNS + "{{ '|' }}",
        "Here are my reasoning steps:", "|", "|", "|", closed=True,
    ),
    "mistral-small-4": Family(
        "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'none' %}{# [THINK][/THINK] #}" + TURNS + "|{{ reasoning_effort }}",
        "[THINK]", "|high", "|none", "|high",
    ),
    "exaone-deep": Family(TURNS + "{{ '|<thought>\n' }}{# </thought> #}", "<thought>", "|<thought>\n", "|<thought>\n", "|<thought>\n", closed=True),
}  # fmt: skip


def prompt_of(family: Family, think: bool | None) -> tuple[str, bool]:
    """What the prompt ends with, and whether it ends inside of thinking."""
    template = PromptTemplate.from_jinja(family.template, tokens=family.tokens)
    rendered = template.render(GenerateRequest(id=1, messages=[Message("user", "Hello")], think=think))
    return rendered.text.partition("Hello")[2], rendered.opens_thinking


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_thinks_is_said_to_and_its_markers_are_known(name: str) -> None:
    family = FAMILIES[name]
    found = derive_capabilities({}, template=None, chat_template=family.template, tokens=family.tokens)
    assert "thinking" in found
    dialect = detect_output(family.template, family.tokens, "")
    assert dialect.think is not None and dialect.think.opening == family.opening
    assert dialect.thinks


@pytest.mark.parametrize("name", FAMILIES)
def test_thinking_is_switched_by_what_the_template_reads(name: str) -> None:
    family = FAMILIES[name]
    for think, ending in ((True, family.on), (False, family.off), (None, family.default)):
        assert prompt_of(family, think)[0] == ending, think


@pytest.mark.parametrize("name", FAMILIES)
def test_thinking_that_no_variable_switches_off_is_closed_in_the_reply(name: str) -> None:
    family = FAMILIES[name]
    dialect = detect_output(family.template, family.tokens, "")
    assert dialect.think is not None
    for think in (True, False, None):
        opens = prompt_of(family, think)[1]
        limit = limit_thinking(GenerateRequest(id=1, think=think), dialect, opens_thinking=opens)
        if think is False and family.closed:
            assert limit is not None
            assert (limit.budget, limit.open, limit.ending) == (0, opens, "\n" + dialect.think.closing)
        else:
            assert limit is None, think


def test_a_seed_model_closes_the_thought_that_says_it_has_no_budget() -> None:
    family = FAMILIES["seed-oss"]
    _, opens = prompt_of(family, False)
    parser = OutputParser(detect_output(family.template, (), ""), thinking=False, opens_thinking=opens)
    segments = parser.feed("No budget: I answer.</seed:cot_budget_reflect>\n</seed:think>Hi") + parser.finish()
    assert [(segment.kind, segment.text) for segment in segments] == [("content", "Hi")]


def test_thoughts_in_words_are_told_from_the_answer() -> None:
    parser = OutputParser(detect_output(FAMILIES["granite-3.2"].template, (), ""))
    segments = parser.feed("Here is my thought process:\n\nTwo.\n\nHere is my response:\n\n2") + parser.finish()
    assert [(segment.kind, segment.text) for segment in segments] == [("thinking", "Two.\n\n"), ("content", "2")]


@pytest.mark.parametrize(
    ("template", "think", "effort"),
    [
        ("{{ reasoning_effort }}{# 'max' #}", "max", "max"),
        ("{{ reasoning_effort }}{# 'xhigh' #}", "max", "xhigh"),
        ("{{ reasoning_effort }}", "max", "high"),
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ reasoning_effort }}{# 'low' 'high' #}", "medium", "high"),
        ("{{ reasoning_effort | default('medium') }}", "low", "low"),
        ("{{ reasoning_strength | default('high') }}", "low", "low"),
        ("{{ reasoning_strength | default('high') }}", False, "low"),
        ("{{ reasoning_effort | default('medium') }}", True, "medium"),
        ("{{ reasoning_effort | default('medium') }}{# 'none' #}", None, "medium"),
        ("{{ reasoning_effort | default('medium') }}{# 'none' #}", False, "none"),
    ],
)
def test_an_effort_is_one_that_the_template_knows(template: str, think: bool | str | None, effort: str) -> None:
    rendered = PromptTemplate.from_jinja(template).render(
        GenerateRequest(id=1, messages=[Message("user", "x")], think=think)
    )
    assert rendered.text == effort


@pytest.mark.parametrize(
    "template", ["{# <|end|> #}" + TURNS, "<|user|>{{ x }}<|end|>", "{{ message.thinking }}" + TURNS]
)
def test_a_template_without_thinking_is_not_said_to_think(template: str) -> None:
    assert "thinking" not in derive_capabilities(
        {}, template=None, chat_template=template, tokens=("<think>", "</think>")
    )


def test_phi_is_not_taken_for_solar() -> None:
    dialect = detect_output("<|user|>{{ x }}<|end|><|assistant|>", ("<|user|>", "<|end|>", "<|assistant|>"), "phi3")
    assert dialect.think is None
    assert "<|end|>" in dialect.end_tokens
    solar = detect_output(FAMILIES["solar"].template, ("<|think|>", "<|begin|>", "<|end|>"), "solar_open")
    assert solar.think == ThinkMarkers("<|think|>", "<|end|>", ("<|begin|>assistant", "<|content|>", "<|end|>"))
    assert "<|end|>" not in solar.end_tokens


@pytest.mark.parametrize(
    ("kwargs", "think"),
    [
        ({}, None),
        ({"language": "la"}, None),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": "no"}, None),
        ({"thinking": True}, True),
        ({"thinking_mode": "disabled"}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "own"}, None),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
        ({"thinking_budget": 0}, False),
    ],
)
def test_variables_of_the_client_say_whether_it_wants_thinking(
    kwargs: dict[str, Any], think: bool | str | None
) -> None:
    assert think_of(read_template_kwargs(kwargs)) == think
