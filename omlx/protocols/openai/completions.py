"""The OpenAI dialect of the older /v1/completions, and of /v1/embeddings and /v1/models."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from omlx.messages.request import Delta, Finish, GenerateRequest, Message, TokenLogprob
from omlx.protocols.generation import (
    ModelFacts,
    check_capabilities,
    preset_messages,
    think_level,
    thinking_wanted,
)
from omlx.protocols.http_error import HTTPError
from omlx.protocols.openai import common as common
from omlx.protocols.openai import wire as wire
from omlx.protocols.openai.chat import options
from omlx.protocols.options import parse_options
from omlx.protocols.template_kwargs import read_template_kwargs

_FORMATS = ("float", "base64")
Input = str | list[int]
"""A text, or token ids of the model's own tokenizer."""


# ---------------------------------------------------------------- completions
def read_prompts(value: Any) -> list[Input]:
    """`prompt`: a text, its tokens, or several of these; none counts as "". Raises HTTPError."""
    prompts: list[Input] | None = [""] if value is None else _several(value)
    if prompts is None:
        raise HTTPError(400, "invalid type for 'prompt': it must be a string, a list of strings, or token ids")
    if len(prompts) > 1 and not all(prompts):
        raise HTTPError(400, "a list of prompts must not hold an empty one")
    return prompts or [""]


def _several(value: Any) -> list[Input] | None:
    """One input or a list of them, as a list; None where it is neither."""
    items: list[Input] = [value] if isinstance(value, str) or (value and _are_tokens(value)) else value
    if not isinstance(items, list) or not all(isinstance(item, str) or _are_tokens(item) for item in items):
        return None
    return items


def _are_tokens(value: Any) -> bool:
    # A bool is an int, too; a number a frame cannot carry is no token either.
    return isinstance(value, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in value)


def completions(body: wire.CompletionRequest, prompts: Sequence[Input], model: ModelFacts) -> list[GenerateRequest]:
    """The internal requests: `n` for each prompt; none where the model is only to be loaded. Raises HTTPError."""
    count = common.check_count(body.n)
    if count * len(prompts) > common.MOST_CHOICES:
        raise HTTPError(400, f"n times the number of prompts must be at most {common.MOST_CHOICES}")
    requests: list[GenerateRequest] = []
    for prompt in prompts:
        wanted = _generation(body, prompt, model)
        if wanted is not None:
            requests += common.choices(common.bias(wanted, body.logit_bias), count)
    return requests


def _generation(body: wire.CompletionRequest, prompt: Input, model: ModelFacts) -> GenerateRequest | None:
    _check_stop(body.stop)
    if not isinstance(prompt, str) and (body.echo or body.suffix):
        raise HTTPError(400, "echo and suffix need the prompt as text, not as tokens")
    check_capabilities(body.model, model, "generate", ["insert"] if body.suffix else [])
    sampling, limits = parse_options(options(body, body.max_tokens), model.parameters, truncate=body.truncate)
    kwargs = read_template_kwargs(body.chat_template_kwargs)
    if not prompt:
        return None
    request = GenerateRequest(
        id=0,
        suffix=body.suffix or None,
        think=think_level(thinking_wanted(None, kwargs, model), model),
        template_kwargs=kwargs,
        sampling=sampling,
        limits=limits,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
    )
    if isinstance(prompt, str):
        system = [Message(role="system", content=model.system)] if model.system else []
        request.messages = [*system, *preset_messages(model), Message(role="user", content=prompt)]
    else:
        # Tokens are the exact prompt: no template, no system message.
        request.raw_prompt, request.context = "", prompt
    return request


def _check_stop(stop: Any) -> None:
    if isinstance(stop, list):
        wrong = next((item for item in stop if not isinstance(item, str)), None)
        if wrong is not None:
            raise HTTPError(400, f"invalid type for 'stop' field: {type(wrong).__name__}")


class CompletionAnswer:
    """Writes one completion, streamed (`delta`, `finish`, `end`) or `whole`. Thoughts are left out."""

    def __init__(self, body: wire.CompletionRequest, prompts: Sequence[Input]) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.model = body.model
        self._count = body.n or 1
        self._prompts = prompts if body.echo else None
        self._logprobs = body.logprobs
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage
        self._written: dict[int, int] = {}
        """Characters of each choice so far."""
        self._finishes: dict[int, Finish] = {}

    def delta(self, choice: int, delta: Delta) -> list[wire.CompletionChunk]:
        if not delta.content and not (delta.logprobs and self._logprobs is not None):
            return []
        return [self._chunk(self._choice(choice, delta, None))]

    def finish(self, choice: int, finish: Finish, load_ns: int) -> list[wire.CompletionChunk]:
        self._finishes[choice] = finish
        return [self._chunk(self._choice(choice, Delta(0), finish.reason))]

    def end(self) -> list[wire.CompletionChunk]:
        if not self._with_usage:
            return []
        return [self._envelope([], self._usage())]

    def whole(self, answers: Sequence[tuple[Delta, Finish]]) -> wire.Completion:
        self._finishes = {choice: finish for choice, (_, finish) in enumerate(answers)}
        choices = [self._choice(choice, delta, finish.reason) for choice, (delta, finish) in enumerate(answers)]
        return self._completion(choices)

    def loaded(self) -> wire.Completion:
        """The answer to an empty prompt."""
        return self._completion([wire.CompletionChoice(text="", index=0, finish_reason="load")])

    def _completion(self, choices: list[wire.CompletionChoice]) -> wire.Completion:
        return wire.Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=common.FINGERPRINT,
            choices=choices,
            usage=self._usage(),
        )

    def _choice(self, choice: int, delta: Delta, reason: str | None) -> wire.CompletionChoice:
        first = choice not in self._written
        echo = str(self._prompts[choice // self._count]) if first and self._prompts is not None else ""
        start = self._written.get(choice, 0) + len(echo)
        self._written[choice] = start + len(delta.content)
        logprobs: wire.CompletionLogprobs | UnsetType = UNSET
        if self._logprobs is not None and (delta.logprobs or reason is None):
            logprobs = _legacy_logprobs(delta.logprobs, start)
        return wire.CompletionChoice(text=echo + delta.content, index=choice, finish_reason=reason, logprobs=logprobs)

    def _usage(self) -> wire.CompletionUsage:
        """The `n` choices of one prompt share it."""
        finishes = [self._finishes[choice] for choice in sorted(self._finishes)]
        usage, prompts = common.usage(finishes), common.usage(finishes[:: self._count])
        return msgspec.structs.replace(
            usage,
            prompt_tokens=prompts.prompt_tokens,
            total_tokens=prompts.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=prompts.prompt_tokens_details,
        )

    def _chunk(self, choice: wire.CompletionChoice) -> wire.CompletionChunk:
        return self._envelope([choice], common.usage([]) if self._with_usage else UNSET)

    def _envelope(
        self, choices: list[wire.CompletionChoice], usage: wire.CompletionUsage | UnsetType
    ) -> wire.CompletionChunk:
        return wire.CompletionChunk(
            id=self.id,
            created=self.created,
            choices=choices,
            model=self.model,
            system_fingerprint=common.FINGERPRINT,
            usage=usage,
        )


def _legacy_logprobs(tokens: Sequence[TokenLogprob], start: int) -> wire.CompletionLogprobs:
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(token.token)
    return wire.CompletionLogprobs(
        [token.token for token in tokens],
        [token.logprob for token in tokens],
        [{other.token: other.logprob for other in token.top} for token in tokens],
        offsets,
    )


# ---------------------------------------------------------------- embeddings and models
def read_inputs(value: Any) -> list[Input]:
    """`input` of an embedding request: a text, its tokens, or several of these. Raises HTTPError."""
    if value is None or value == []:
        raise HTTPError(400, "invalid input")
    inputs = _several(value)
    if inputs is None:
        raise HTTPError(400, "invalid input type")
    return inputs


def check_encoding(name: str) -> None:
    """Raises HTTPError where `encoding_format` is none we know."""
    if name and name.lower() not in _FORMATS:
        message = f"Invalid value for 'encoding_format' = {name}. Supported values: ['float', 'base64']."
        raise HTTPError(400, message)


def embedding_list(
    body: wire.EmbeddingsRequest, vectors: Sequence[bytes], numbers: Callable[[bytes], list[float]], tokens: int
) -> wire.EmbeddingList:
    """`vectors`: float32 each; `numbers` makes a list of one."""
    in_base64 = body.encoding_format.lower() == "base64"
    data = [
        wire.Embedding(embedding=base64.b64encode(vector).decode() if in_base64 else numbers(vector), index=index)
        for index, vector in enumerate(vectors)
    ]
    return wire.EmbeddingList(data=data, model=body.model, usage=wire.EmbedUsage(tokens, tokens))


def model_entry(name: str, full_name: str, modified: float) -> wire.Model:
    """`full_name` is host/namespace/model:tag; `modified` in seconds since 1970."""
    return wire.Model(id=name, created=int(modified), owned_by=full_name.split("/")[-2])
