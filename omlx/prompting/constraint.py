"""What a reply is held to, in the model's dialect: a grammar for its answer or its tool calls, a limit on its thinking.

Pure: the engine makes matchers of what is put together here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from omlx.messages.constraint import Grammar, ThinkLimit
from omlx.messages.request import GenerateRequest
from omlx.prompting import harmony, recipients
from omlx.prompting.output import PLAIN, OutputDialect
from omlx.prompting.thinking import CLOSES_ITSELF
from omlx.prompting.tools import writer_for
from omlx.prompting.tools.rules import Rules, offered


def constrain(
    request: GenerateRequest, dialect: OutputDialect, tokens: Mapping[str, int], *, opens_thinking: bool
) -> Grammar | None:
    """The grammar of the reply, None where it is free. `tokens`: the added tokens of the vocabulary and their ids.

    Where tools are offered as well as a format, the reply is a call or obeys the format. (It obeys a grammar other than
    JSON's alone: the two cannot be told apart.)
    """
    if request.raw_prompt is not None and not opens_thinking:
        dialect = PLAIN
    thinking = dialect.thinks_by_default if request.think is None else request.think is not False
    opening, after = dialect.before_answer(opens_thinking=opens_thinking, thinking=thinking)
    answer = _answer(request)
    if answer is not None:
        answer = msgspec.structs.replace(answer, opening=opening, after=after)
    only = request.must_call if isinstance(request.must_call, str) else None
    tools = offered(request.tools, only) if request.raw_prompt is None else []
    as_schema = None if answer is None else {"json": {"type": "object"}, "schema": answer.source}.get(answer.kind)
    may_call = (request.emulate_tools or request.strict_tools) and answer is None
    if not tools or not (request.must_call or as_schema is not None or may_call):
        return answer
    rules = Rules(tools, tokens, many=not request.one_call)
    text = None if request.must_call or as_schema is None else rules.json(_object(as_schema))
    if dialect.channels:
        text = rules.free() if may_call and not request.must_call else text
        grammar = rules.grammar(harmony.write(rules, text, opens_thinking=opens_thinking))
        return Grammar("lark", grammar.source, grammar.schemas, grammar.texts, trusted=True)
    write, openings = writer_for(dialect.tools, emulated=request.emulate_tools)
    if may_call and not request.must_call:
        reply = rules.calls_or_text(write, openings)
    else:
        reply = write(rules) if text is None else f"{write(rules)} | {text}"
    grammar = rules.grammar(reply)
    return Grammar("lark", grammar.source, grammar.schemas, grammar.texts, opening, after, trusted=True)


def _answer(request: GenerateRequest) -> Grammar | None:
    if request.grammar is not None:
        return Grammar(request.grammar.kind, request.grammar.source)
    if request.format is None:
        return None
    return Grammar("json") if request.format == "json" else Grammar("schema", request.format)


def _object(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {"type": "object"}


def limit_thinking(request: GenerateRequest, dialect: OutputDialect, *, opens_thinking: bool) -> ThinkLimit | None:
    """How long the reply may think, None where nothing limits it or the model does not think.

    Not at all where the request wants none and the template starts it all the same.
    """
    budget = request.limits.think_budget
    if request.think is False and _thinks_all_the_same(dialect, opens_thinking=opens_thinking):
        budget = 0
    if budget < 0 or (request.raw_prompt is not None and not opens_thinking):
        return None
    if dialect.channels:
        ending = harmony.NEXT_MESSAGE if request.must_call else harmony.NEXT_MESSAGE + harmony.FINAL
        return ThinkLimit(budget, harmony.ANALYSIS, harmony.END, ending, opens_thinking, anywhere=True)
    if dialect.recipients:
        ending = recipients.NEXT_MESSAGE if request.must_call else recipients.NEXT_MESSAGE + recipients.ANSWER
        return ThinkLimit(budget, recipients.THOUGHT, recipients.END, ending, opens_thinking, anywhere=True)
    if dialect.think is None:
        return None
    markers = dialect.think
    return ThinkLimit(budget, markers.opening, markers.closing, "\n" + markers.closing, opens_thinking)


def _thinks_all_the_same(dialect: OutputDialect, *, opens_thinking: bool) -> bool:
    """Whether thinking that was switched off has to be closed in the reply."""
    if dialect.channels or dialect.think is None or not dialect.thinks:
        return False
    if dialect.think.opening in CLOSES_ITSELF:
        return False
    return opens_thinking or not dialect.switchable
