"""The checks, each through HTTP as any client: what a user would meet is what is tested.

Each returns a `Check`. Prompts carry a word that was never used before, so that the first reading is a full one.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, Protocol

from omlx.client import Client
from omlx.messages.selftest import Check, Outcome
from omlx.protocols.admin import wire as admin
from omlx.protocols.ollama.wire import ChatResponse, GenerateResponse
from omlx.selftest.compare import GreedyAnswer, difference

_ANSWER_TOKENS = 24
_TOP = 5
_SENTENCES = 60
"""Of the prompt for restoring: about 900 tokens, several blocks of the cache."""
_UNLOAD_S = 60.0
_TRIES = 3
"""On a busy machine short requests may miss each other."""
_NEEDLE_TOKENS = 4000
"""The longest context that the needle is looked for in: enough to see, soon enough to end."""
_TOKENS_PER_SENTENCE = 16
_FIRST_PLACES = ("a harbour", "a library", "the old mill", "a garden", "the station", "a bakery", "the tower")
_THINGS = ("lamps", "ropes", "maps", "bells", "chairs", "letters", "baskets", "wheels", "coats", "keys", "clocks")

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


class SelfTestSubject(Protocol):
    """What a check needs to know: the server, the model, its capabilities and its context in tokens."""

    @property
    def client(self) -> Client: ...
    @property
    def model(self) -> str: ...
    @property
    def capabilities(self) -> Sequence[str]: ...
    @property
    def context(self) -> int: ...


async def restore(subject: SelfTestSubject) -> Check:
    """A prompt answered from the cache, RAM and disk, is answered as if it were read."""
    sentences = min(_SENTENCES, subject.context // (2 * _TOKENS_PER_SENTENCE))
    prompt = f"{_story(sentences)} Then"
    read = await _ask(subject, prompt)
    pairs = [("from RAM", read, await _ask(subject, prompt))]
    longer = f"{prompt} {read.text} And after that"
    pairs.append(("continued", await _ask(subject, longer), await _ask(subject, longer)))
    await _reload(subject)
    pairs.append(("after a reload", read, await _ask(subject, prompt)))
    restored = [other.cached for _, _, other in pairs]
    if read.cached or not any(restored):
        return Check("restore", "skipped", "nothing of its prompts is cached")
    differences = [(what, difference(one, other)) for what, one, other in pairs]
    figures = f"{'/'.join(map(str, restored))} of {read.prompt} tokens restored"
    return _verdict("restore", differences, figures)


async def batch(subject: SelfTestSubject) -> Check:
    """A request is answered in company as it is alone."""
    places = (await subject.client.status()).places
    if places < 2:
        return Check("batch", "skipped", "the server runs one request at a time")
    prompts = [f"{_story(count)} Then" for count in (1, 3, 2, 5)[:places]]
    alone = [await _ask(subject, prompt) for prompt in prompts]
    for _ in range(_TRIES):
        steps, rows = await _decoded(subject)
        together = await asyncio.gather(*(_ask(subject, prompt) for prompt in prompts))
        steps_after, rows_after = await _decoded(subject)
        rows_a_step = (rows_after - rows) / max(1, steps_after - steps)
        if rows_a_step > 1.2:
            break
    else:
        return Check("batch", "skipped", "the requests did not run together")
    differences = [
        (f"request {number}", difference(*pair)) for number, pair in enumerate(zip(alone, together, strict=True), 1)
    ]
    return _verdict("batch", differences, f"{len(prompts)} requests, {rows_a_step:.1f} a step")


async def seed(subject: SelfTestSubject) -> Check:
    """The same seed draws the same text."""
    prompt = f"{_story(2)} Then"
    one, again, other = [
        await _text(subject, prompt, {"temperature": 1.0, "seed": number}) for number in (4211, 4211, 97)
    ]
    if one != again:
        return Check("seed", "failed", f"the same seed gave {again[:40]!r} after {one[:40]!r}")
    return Check("seed", "passed", "same text" + (", as with another seed" if one == other else ", not with another"))


async def tools(subject: SelfTestSubject) -> Check:
    """A tool is called, its result is read, and an answer is made of it."""
    if "tools" not in subject.capabilities:
        return Check("tools", "skipped", "the model has no tools")
    body: dict[str, Any] = {
        "model": subject.model,
        "messages": [{"role": "user", "content": "What is the weather in Paris? Use the tool."}],
        "tools": [_TOOL],
        "temperature": 0,
        "max_tokens": 512,
    }
    how = "called by itself"
    message = await _openai(subject, body)
    if not message.get("tool_calls"):
        how = "called when it had to"
        message = await _openai(subject, {**body, "tool_choice": "required", "reasoning_effort": "none"})
    calls = message.get("tool_calls") or []
    if not calls:
        return Check("tools", "failed", "no call, though one was required")
    call = calls[0]
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (KeyError, TypeError, ValueError):
        return Check("tools", "failed", "the arguments of the call cannot be read")
    if call["function"]["name"] != "get_weather" or not isinstance(arguments.get("city"), str):
        return Check("tools", "failed", f"the call does not fit the tool: {json.dumps(arguments)[:80]}")
    history = [{"role": "assistant", "content": message.get("content") or "", "tool_calls": calls[:1]},
            {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees and sunny"}]  # fmt: skip
    answer = await _openai(subject, {**body, "messages": [*body["messages"], *history]})
    if not answer.get("content") and not answer.get("tool_calls") and not answer.get("reasoning"):
        return Check("tools", "failed", "nothing was answered to the tool's result")
    return Check("tools", "passed", f"{how}, for {arguments['city'][:40]}")


async def schema(subject: SelfTestSubject) -> Check:
    """What is asked for in a JSON schema comes in it."""
    text = await _chat(subject, "Tell me about a pet, as JSON.", _SCHEMA)
    try:
        value = json.loads(text)
    except ValueError:
        return Check("schema", "failed", f"the answer is no JSON: {text[:60]!r}")
    fits = (
        isinstance(value, dict)
        and sorted(value) == ["age", "kind", "name"]
        and isinstance(value["name"], str)
        and isinstance(value["age"], int)
        and 0 <= value["age"] <= 150
        and value["kind"] in ("cat", "dog")
    )
    return Check("schema", "passed" if fits else "failed", json.dumps(value)[:80])


async def needle(subject: SelfTestSubject) -> Check:
    """A number in the middle of a long text is found again. Failing says what the model can, no more."""
    sentences = min(_NEEDLE_TOKENS, subject.context * 3 // 4) // _TOKENS_PER_SENTENCE
    number = str(10_000 + secrets.randbelow(90_000))
    half = sentences // 2
    fact = f"The secret number is {number}."
    prompt = f"{_story(half)} {fact} {_story(sentences - half)} Remember: the secret number is"
    answer = await _ask(subject, prompt)
    where = f"in {answer.prompt} tokens"
    if number in answer.text:
        return Check("needle", "passed", f"found {where}")
    return Check("needle", "failed", f"not found {where}")


def _verdict(name: str, cases: Sequence[tuple[str, Any]], figures: str) -> Check:
    problems = [f"{what}: {difference.problem}" for what, difference in cases if difference.problem]
    outcome: Outcome = "failed" if problems else "passed"
    largest = max(difference.largest for _, difference in cases)
    return Check(name, outcome, "; ".join([*problems, figures, f"at most {largest:.3f} nats off"]))


def _story(sentences: int) -> str:
    """So many sentences of about 16 tokens, which nobody has read before."""
    name = "".join(secrets.choice("bdfgklmnprst") + secrets.choice("aeiou") for _ in range(4)).title()
    return " ".join(
        f"On day {day} {name} went to {_FIRST_PLACES[day % 7]} and counted {3 + day * 7 % 90} {_THINGS[day % 11]}."
        for day in range(1, max(1, sentences) + 1)
    )


async def _ask(subject: SelfTestSubject, prompt: str) -> GreedyAnswer:
    """The greedy continuation of a text, read as it stands."""
    last, tokens = GenerateResponse(model="", created_at="", response="", done=False), []
    body = {"model": subject.model, "prompt": prompt, "raw": True, "logprobs": True, "top_logprobs": _TOP,
            "options": {"temperature": 0, "seed": 1, "num_predict": _ANSWER_TOKENS}}  # fmt: skip
    async for last in subject.client.generate(body):
        tokens += last.logprobs
    return GreedyAnswer(tokens, last.prompt_eval_count, last.cached_tokens)


async def _text(subject: SelfTestSubject, prompt: str, options: dict[str, Any]) -> str:
    body = {"model": subject.model, "prompt": prompt, "raw": True, "options": {"num_predict": 32, **options}}
    return "".join([part.response async for part in subject.client.generate(body)])


async def _chat(subject: SelfTestSubject, text: str, form: dict[str, Any]) -> str:
    body: dict[str, Any] = {"model": subject.model, "messages": [{"role": "user", "content": text}], "format": form,
                            "options": {"temperature": 0, "num_predict": 256}}  # fmt: skip
    if "thinking" in subject.capabilities:
        body["think"] = False
    parts: list[ChatResponse] = [part async for part in subject.client.chat(body)]
    return "".join(part.message.content for part in parts)


async def _openai(subject: SelfTestSubject, body: dict[str, Any]) -> dict[str, Any]:
    reply = await subject.client.openai_chat(body)
    message: dict[str, Any] = reply["choices"][0]["message"]
    return message


async def _status(subject: SelfTestSubject) -> admin.ModelStatus | None:
    return next((model for model in (await subject.client.status()).models if model.name == subject.model), None)


async def _decoded(subject: SelfTestSubject) -> tuple[int, float]:
    """(steps, rows) decoded since the load. The runner tells its counts once a second."""
    await asyncio.sleep(1.5)
    status = await _status(subject)
    return (status.decode_steps, status.mean_batch * status.decode_steps) if status else (0, 0.0)


async def _reload(subject: SelfTestSubject) -> None:
    """Have the model leave memory, so that what it cached has to come from disk. It is loaded by the next request."""
    await subject.client.unload(subject.model)
    deadline = time.monotonic() + _UNLOAD_S
    while await _status(subject) is not None:
        if time.monotonic() > deadline:
            raise TimeoutError("the model did not leave memory: others use it")
        await asyncio.sleep(0.1)


CHECKS = (restore, batch, seed, tools, schema, needle)
"""In this order: what restoring spoils is switched off before the rest is looked at."""
