"""The *prompt* of a request: from messages to token ids that fit the context.

Rendering and tokenizing a long conversation takes a while, so this runs in helper threads beside the thread that owns
the model; it touches the template and the tokenizer only, and both may be used by several threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from omlx.dialect.prompt import PromptTemplate, TemplateError
from omlx.request import FailureKind, GenerateRequest

TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, "
    "adjust the context length in settings, or use a model with a longer context length"
)
"""Ollama's words."""


class PromptError(Exception):
    """The request cannot be turned into a prompt; `message` is a sentence for the user."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Prompt(NamedTuple):
    """What the engine starts from."""

    tokens: list[int]
    text: str
    opens_thinking: bool = False
    images: tuple[bytes, ...] = ()


class Encoder:
    """Text to token ids, from any thread.

    `begin` are the tokens that the model's tokenizer puts in front by itself (begin-of-text); a text that already
    starts with them gets no second copy.
    """

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: a Hugging Face tokenizer, fast or slow."""
        self._slow = tokenizer
        self._lock = threading.Lock()
        self._fast = getattr(tokenizer, "backend_tokenizer", None)
        if self._fast is not None:
            # A tokenizer.json may carry the truncation and padding of its training.
            self._fast.no_truncation()
            self._fast.no_padding()
        plain = self._ids("a")
        full = list(tokenizer.encode("a"))
        starts = [at for at in range(len(full)) if full[at : at + len(plain)] == plain]
        self.begin: list[int] = full[: starts[0]] if starts else []
        self._longest = max((len(piece) for piece in tokenizer.get_vocab()), default=1)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        ids = self._ids(text)
        if add_special and self.begin and ids[: len(self.begin)] != self.begin:
            return [*self.begin, *ids]
        return ids

    def at_least(self, text: str) -> int:
        """A number of tokens that `text` has at least, found without tokenizing it (megabytes take seconds)."""
        return len(text) // self._longest

    def _ids(self, text: str) -> list[int]:
        if self._fast is not None:
            return list(self._fast.encode(text, add_special_tokens=False).ids)
        with self._lock:
            return list(self._slow.encode(text, add_special_tokens=False))


class Prompter:
    """Makes the prompts of one model. `image_marker`: see `PromptTemplate.render`."""

    def __init__(self, template: PromptTemplate, encoder: Encoder, *, image_marker: str | None = None) -> None:
        self._template = template
        self._encoder = encoder
        self._image_marker = image_marker

    def build(self, request: GenerateRequest, context: int) -> Prompt:
        """The prompt of `request` in at most `context` - 1 tokens, so that one can be generated. Raises PromptError."""
        try:
            return self._fitting(request, context - 1)
        except TemplateError as error:
            raise PromptError("invalid", str(error)) from error

    def _fitting(self, request: GenerateRequest, room: int) -> Prompt:
        prompt = self._tokens(request, room)
        if prompt is not None:
            return prompt
        if not request.limits.truncate:
            raise PromptError("too_long", TOO_LONG)
        shorter = self._shorten_context(request, room) if request.context else None
        if shorter is None:
            shorter = self._shorten_messages(request, room)
        if shorter is None:
            raise PromptError("too_long", TOO_LONG)
        return shorter

    def _shorten_context(self, request: GenerateRequest, room: int) -> Prompt | None:
        """Without the oldest tokens of the earlier exchange."""
        alone = self._tokens(msgspec.structs.replace(request, context=[]), room, begins=False)
        if alone is None:
            return None
        kept = room - len(alone.tokens)
        return alone._replace(tokens=[*(request.context[-kept:] if kept else []), *alone.tokens])

    def _shorten_messages(self, request: GenerateRequest, room: int) -> Prompt | None:
        """Without the oldest messages: as few as possible go; system messages and the last one stay."""
        request = msgspec.structs.replace(request, context=[])
        droppable = [at for at, message in enumerate(request.messages[:-1]) if message.role != "system"]

        def without(count: int) -> Prompt | None:
            gone = set(droppable[:count])
            kept = [message for at, message in enumerate(request.messages) if at not in gone]
            try:
                return self._tokens(msgspec.structs.replace(request, messages=kept), room)
            except TemplateError:
                # Some templates insist on turns that alternate; what is left may alternate again one message later.
                if count == len(droppable):
                    raise
                return None

        return first_fitting(len(droppable), without)

    def _tokens(self, request: GenerateRequest, room: int, *, begins: bool = True) -> Prompt | None:
        """The prompt as it is, or None when it has more than `room` tokens. Raises TemplateError.

        `begins` False: something goes in front of it, so it gets no begin-of-text token.
        """
        rendered = self._template.render(request, image_marker=self._image_marker)
        if not request.render_only and self._encoder.at_least(rendered.text) > room:
            return None
        special = rendered.add_special and begins and not request.context
        tokens = [*request.context, *self._encoder.encode(rendered.text, add_special=special)]
        if len(tokens) > room:
            return None
        return Prompt(tokens, rendered.text, rendered.opens_thinking, rendered.images)


def first_fitting(most: int, build: Callable[[int], Prompt | None]) -> Prompt | None:
    """`build(n)` for the smallest n of 1..most that gives a prompt; None when not even `build(most)` does.

    Dropping more never makes a prompt longer, so halving finds it without rendering a thousand shortenings.
    """
    best = build(most) if most else None
    if best is None:
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        prompt = build(middle)
        if prompt is None:
            low = middle + 1
        else:
            best, high = prompt, middle
    return best


def special_tokens(tokenizer: Any) -> dict[str, str]:
    """The tokenizer's named special tokens, e.g. {"bos_token": "<s>"}: chat templates may print them."""
    return {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}


def marker_candidates(tokenizer: Any) -> Sequence[str]:
    """Tokens that may be thinking or tool markers: special and added ones."""
    return [*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]
