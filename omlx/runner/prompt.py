"""The *prompt* of a request: from messages to token ids that fit the context.

Rendering and tokenizing a long conversation takes a while, so this runs in helper threads beside the thread that
owns the model; it touches the template and the tokenizer only, and both may be used by several threads at once.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from omlx.engine import tokenization
from omlx.engine.sequence import kept_tokens
from omlx.engine.vision.images import PictureError
from omlx.engine.vision.media import PromptMedia
from omlx.engine.vision.vision import Vision
from omlx.messages.request import FailureKind, GenerateRequest
from omlx.prompting.errors import TemplateError, TemplateTooSlow
from omlx.prompting.template import PromptTemplate
from omlx.runner import truncation as shorten
from omlx.runner.boundaries import boundaries
from omlx.runner.multimodal import Illustrator

log = logging.getLogger("omlx.runner")

T = TypeVar("T")
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


class _TooMany(Exception):
    """A text has more tokens than there is room for."""


class Prompt(NamedTuple):
    """What the engine starts from."""

    tokens: list[int]
    text: str
    opens_thinking: bool = False
    media: PromptMedia | None = None
    """The pictures among the tokens."""
    boundaries: tuple[int, ...] = ()
    """Tokens after which later prompts are likely to part from this one, ascending."""


class _Built(NamedTuple):
    """A prompt and what it was made from: the request as far as it fitted, and the tokens in front of its own."""

    prompt: Prompt
    request: GenerateRequest
    before: int


class PromptTokenizer:
    """Text to token ids, from any thread; a long text keeps neither the other threads nor the memory (`tokenization`).

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
        self._encode = self._encode_slowly if self._fast is None else tokenization.fast_encode(self._fast)
        plain = self.first_ids("a")
        full = list(tokenizer.encode("a"))
        starts = [start for start in range(len(full)) if full[start : start + len(plain)] == plain]
        self.begin: list[int] = full[: starts[0]] if starts else []
        self.longest = max((len(piece) for piece in tokenizer.get_vocab()), default=1)
        """Characters of the longest token."""

    def encode(
        self, text: str, *, add_special: bool, most: int | None = None, check: Callable[[], None] = tokenization.nothing
    ) -> list[int]:
        """The ids of `text`. With `most`, only its first ones where it has more; those are more than `most`.

        `check` is called now and then while a long text is tokenized; what it raises ends the work.
        """
        ids = self.first_ids(text, most, check)
        return [*self.begin_of(ids), *ids] if add_special else ids

    def begin_of(self, ids: list[int]) -> list[int]:
        """What has to go in front of these tokens of a whole text."""
        return [] if ids[: len(self.begin)] == self.begin else self.begin

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included."""
        if self._fast is not None:
            return str(self._fast.decode(list(ids), skip_special_tokens=False))
        with self._lock:
            return str(self._slow.decode(list(ids), skip_special_tokens=False))

    def tokens_within(self, text: str, ends: Sequence[int]) -> list[int]:
        """How many of the tokens of `text` end within its first so many characters, for each of `ends`."""
        if self._fast is not None:
            offsets = self.tokens(text).ends
            return [bisect_right(offsets, end) for end in ends]
        whole = self.first_ids(text)
        counts = []
        for end in ends:
            part = self.first_ids(text[:end])
            counts.append(
                next((index for index, (a, b) in enumerate(zip(part, whole, strict=False)) if a != b), len(part))
            )
        return counts

    def tokens(self, text: str) -> shorten.Tokens:
        """The tokens of `text` and where they end."""
        if self._fast is not None:
            ids, ends, start = list[int](), list[int](), 0
            for piece in tokenization.pieces(text, self._encode):
                (encoding,) = self._fast.encode_batch([piece], add_special_tokens=False)
                ids += encoding.ids
                ends += [start + end for _, end in encoding.offsets]
                start += len(piece)
            return shorten.Tokens(ids, ends)
        ids = self.first_ids(text)
        # A slow tokenizer does not tell: as if all tokens were equally long.
        return shorten.Tokens(ids, [len(text) * (index + 1) // len(ids) for index in range(len(ids))])

    def at_least(self, text: str) -> int:
        """A number of tokens that `text` has at least, found without tokenizing it (megabytes take seconds)."""
        return len(text) // self.longest

    def first_ids(
        self, text: str, most: int | None = None, check: Callable[[], None] = tokenization.nothing
    ) -> list[int]:
        """`encode` without the tokens in front."""
        return tokenization.ids(text, self._encode, most=most, check=check)[0]

    def _encode_slowly(self, texts: Sequence[str]) -> list[list[int]]:
        with self._lock:
            return [list(self._slow.encode(text, add_special_tokens=False)) for text in texts]


class Prompter:
    """Makes the prompts of one model; `vision` where it sees.

    `bounded`: find the boundaries of each prompt, which costs a few renderings and a tokenization. `new_request` is
    called in front of each: what is rendered from then on, by the same thread, is for it.
    """

    def __init__(
        self,
        template: PromptTemplate,
        encoder: PromptTokenizer,
        *,
        vision: Vision | None = None,
        bounded: bool = False,
        new_request: Callable[[], None] = tokenization.nothing,
    ) -> None:
        self._template = template
        self._encoder = encoder
        self._illustrator = Illustrator(vision)
        self._bounded = bounded
        self._new_request = new_request

    def build(self, request: GenerateRequest, context: int, *, check: Callable[[], None] = lambda: None) -> Prompt:
        """The prompt of `request` in at most `context` - 1 tokens, so that one can be generated. Raises PromptError.

        `check` is called before each picture is opened: what it raises ends the work on a request nobody waits for.
        """
        self._new_request()
        try:
            held = self._illustrator.open(request, check)
            prompt, fitted, before = self._fitting(request, context - 1, check)
            del held
        except (TemplateError, PictureError) as error:
            raise PromptError("invalid", str(error)) from error
        if request.render_only and request.context:
            # As in Ollama: the prompt of a request with a context begins with its text.
            return prompt._replace(text=self._encoder.decode(prompt.tokens[:before]) + prompt.text)
        if self._bounded and not request.render_only and prompt.media is None:
            prompt = prompt._replace(boundaries=self._boundaries(prompt, fitted, before))
        return prompt

    def _boundaries(self, prompt: Prompt, request: GenerateRequest, before: int) -> tuple[int, ...]:
        def render(other: GenerateRequest) -> str:
            return self._template.render(other, markers=self._illustrator.markers).text

        ends = boundaries(request, prompt.text, render)
        return tuple(dict.fromkeys(before + count for count in self._encoder.tokens_within(prompt.text, ends)))

    def _fitting(self, request: GenerateRequest, room: int, check: Callable[[], None]) -> _Built:
        prompt = self._tokens(request, room, check)
        if prompt is not None:
            return prompt
        if not request.limits.truncate:
            raise PromptError("too_long", TOO_LONG)
        shorter = self._shorten_context(request, room, check) if request.context else None
        if shorter is None:
            shorter = self._shorten_messages(request, room, check)
        count = len(shorter.prompt.tokens)
        log.info("[%s] the prompt exceeds the context: it was shortened to %d tokens", request.trace, count)
        return shorter

    def _shorten_context(self, request: GenerateRequest, room: int, check: Callable[[], None]) -> _Built | None:
        """Without the oldest tokens of the earlier exchange."""
        alone = self._tokens(msgspec.structs.replace(request, context=[]), room, check, begins=False)
        if alone is None:
            return None
        own = alone.prompt.tokens
        kept = room - len(own)
        return _behind(request.context[-kept:] if kept else [], alone)

    def _shorten_messages(self, request: GenerateRequest, room: int, check: Callable[[], None]) -> _Built:
        """Without the oldest messages: as few as possible go (see `shorten`). Raises PromptError."""
        request = msgspec.structs.replace(request, context=[])
        units = shorten.droppable(request.messages)

        def without(count: int) -> GenerateRequest:
            gone = {index for unit in units[:count] for index in unit}
            kept = [message for index, message in enumerate(request.messages) if index not in gone]
            return msgspec.structs.replace(request, messages=kept)

        def build(count: int) -> _Built | None:
            try:
                return self._tokens(without(count), room, check)
            except TemplateTooSlow:
                raise
            except TemplateError:
                # Some templates insist on turns that alternate; what is left may alternate again one message later.
                if count == len(units):
                    raise
                return None

        least = without(len(units))
        fitting = first_fitting(len(units), build) or self._cut_messages(least, room, check)
        return fitting or self._cut_prompt(least, room)

    def _cut_messages(self, request: GenerateRequest, room: int, check: Callable[[], None]) -> _Built | None:
        """Without the middle of its longest message, and without all but the beginning of longer ones where that is
        not enough, so that the others stay whole; None where nothing of this does."""
        if request.raw_prompt is not None or request.suffix:
            return None
        done: set[int] = set()
        while (index := shorten.longest(request.messages, done)) is not None:
            built = self._cut_message(request, index, room, check)
            if built is not None:
                return built
            head = shorten.beginning(
                request.messages[index].content, kept_tokens(request.limits, room), self._encoder.tokens
            )
            request = _with_content(request, index, head)
            done.add(index)
        return None

    def _cut_message(self, request: GenerateRequest, index: int, room: int, check: Callable[[], None]) -> _Built | None:
        """Without the middle of one message; None where what is around it does not fit by itself."""
        text = request.messages[index].content
        head = shorten.beginning(text, kept_tokens(request.limits, room), self._encoder.tokens)
        bare = self._tokens(_with_content(request, index, head), room, check)
        left = room - len(bare.prompt.tokens) if bare is not None else 0
        for spare in (0, 4, 16, 64):
            # The tokens at the seams may be other ones than those of the parts.
            if left - spare > 0:
                tail = shorten.end(text, left - spare, self._encoder.tokens)
                built = self._tokens(_with_content(request, index, head + tail), room, check)
                if built is not None:
                    return built
        return bare

    def _cut_prompt(self, request: GenerateRequest, room: int) -> _Built:
        """Without the middle of the rendered prompt. Raises PromptError."""
        rendered = self._template.render(request, markers=self._illustrator.markers)
        if rendered.images or rendered.videos:
            raise PromptError("too_long", TOO_LONG)
        text, tokens = rendered.text, self._encoder.tokens
        keep = kept_tokens(request.limits, room)
        head = shorten.beginning(text, keep, tokens)
        first = self._encoder.encode(head, add_special=rendered.add_special)[: room - 1]
        tail = shorten.end(text, room - len(first), tokens)
        last = self._encoder.encode(tail, add_special=False)[-(room - len(first)) :]
        return _Built(Prompt([*first, *last], head + tail, rendered.opens_thinking), request, 0)

    def _tokens(
        self, request: GenerateRequest, room: int, check: Callable[[], None], *, begins: bool = True
    ) -> _Built | None:
        """The prompt as it is, or None when it has more than `room` tokens. Raises TemplateError.

        `begins` False: something goes in front of it, so it gets no begin-of-text token.
        """
        rendered = self._template.render(request, markers=self._illustrator.markers)
        if len(request.context) > room or self._encoder.at_least(rendered.text) > room:
            return None
        special = rendered.add_special and begins and not request.context
        try:
            own, media = self._illustrator.tokens(rendered, partial(self._within, room=room, check=check))
        except _TooMany:
            return None
        before = [*request.context, *(self._encoder.begin_of(own) if special else [])]
        if len(before) + len(own) > room:
            return None
        return _behind(before, _Built(Prompt(own, rendered.text, rendered.opens_thinking, media), request, 0))

    def _within(self, text: str, *, room: int, check: Callable[[], None]) -> list[int]:
        ids = self._encoder.first_ids(text, room, check)
        if len(ids) > room:
            raise _TooMany
        return ids


def _with_content(request: GenerateRequest, index: int, content: str) -> GenerateRequest:
    """The request with another text of one message."""
    message = msgspec.structs.replace(request.messages[index], content=content)
    messages = [*request.messages[:index], message, *request.messages[index + 1 :]]
    return msgspec.structs.replace(request, messages=messages)


def _behind(before: list[int], built: _Built) -> _Built:
    """The prompt with so many further tokens in front."""
    media = built.prompt.media.behind(len(before)) if built.prompt.media is not None else None
    prompt = built.prompt._replace(tokens=[*before, *built.prompt.tokens], media=media)
    return built._replace(prompt=prompt, before=built.before + len(before))


def first_fitting(most: int, build: Callable[[int], T | None]) -> T | None:
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
