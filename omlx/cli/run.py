"""`omlx run`: ask a model once, or talk with it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from omlx.cli.answer import TerminalAnswer, print_numbers
from omlx.cli.command import CliError, Count, GoInt, OptionalValue, verb
from omlx.cli.connect import connected
from omlx.cli.console import is_terminal, out, run_async, until_interrupted
from omlx.cli.media import Attachments, attach
from omlx.cli.progress import Display
from omlx.cli.pull import pull
from omlx.cli.session import ChatSession, adopt, parse_think
from omlx.cli.typeahead import typing_ahead
from omlx.client import Client, ClientError
from omlx.protocols.ollama import models as models_wire
from omlx.protocols.ollama import wire as wire
from omlx.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@verb(
    "run",
    usage="MODEL [PROMPT]...",
    count=Count(1),
    models=True,
    environment=("host", "autostart", "no_history"),
)
@click.option("--keepalive", metavar="DURATION", default="", help="Duration to keep a model loaded (e.g. 5m)")
@click.option("--verbose", is_flag=True, help="Show timings for response")
@click.option("--insecure", is_flag=True, help="Use an insecure registry")
@click.option("--nowordwrap", is_flag=True, help="Don't wrap words to the next line automatically")
@click.option("--format", metavar="FORMAT", default="", help="Response format: json, or a JSON schema")
@click.option(
    "--think", cls=OptionalValue, bare="true", metavar="[=LEVEL]",
    help="Think before answering: true, false, high, medium, low or max (default: if the model can)",
)  # fmt: skip
@click.option("--hidethinking", is_flag=True, help="Hide thinking output (if provided)")
@click.option(
    "--truncate/--no-truncate", default=True,
    help="Embedding models: cut inputs that exceed the context (default); --truncate=false: fail instead",
)  # fmt: skip
@click.option("--dimensions", type=GoInt(), default=0, help="Embedding models: cut the embedding to this many values")
def command(args: tuple[str, ...], **flags: Any) -> None:
    """Run a model

    With a prompt, as arguments or on stdin, prints the answer and ends. Without one, starts a session; `/?` lists its
    commands. A model that is not there is pulled first. Where no server listens, one is started in the background.
    """
    session = ChatSession(
        model=args[0],
        format=_format(flags["format"]),
        think=parse_think(flags["think"]),
        hide_thinking=flags["hidethinking"],
        keep_alive=flags["keepalive"] or None,
        verbose=flags["verbose"],
        wrap=not flags["nowordwrap"],
    )
    if session.keep_alive:
        try:
            parse_duration(session.keep_alive)
        except ValueError as error:
            raise CliError(str(error)) from error
    if len(args) == 1 and is_terminal(sys.stdin) and is_terminal(sys.stdout):
        with typing_ahead() as typed:
            run_async(_run(session, [], flags, typed))
    else:
        run_async(_run(session, list(args[1:]), flags))


def _format(text: str) -> Any:
    if text in {"", "json"}:
        return text or None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise CliError(f"invalid value for --format: it must be json or a JSON schema ({error})") from error


async def _run(session: ChatSession, words: list[str], flags: dict[str, Any], typed: str = "") -> None:
    """`typed`: what the user typed before a session could begin."""
    async with connected() as client:
        shown = await _show_or_pull(client, session.model, insecure=flags["insecure"])
        piped = "" if is_terminal(sys.stdin) else sys.stdin.buffer.read().decode("utf-8", "replace")
        prompt = " ".join([piped, *words] if piped else words)
        adopt(session, shown)
        if "embedding" in shown.capabilities:
            await _embed(client, session, prompt, flags)
        elif not prompt and not words and is_terminal(sys.stdin) and is_terminal(sys.stdout):
            from omlx.cli.repl import converse  # prompt_toolkit takes 80 ms to import

            await converse(client, session, shown, typed)
        else:
            await until_interrupted(_ask(client, session, prompt))


async def _show_or_pull(client: Client, model: str, *, insecure: bool) -> models_wire.ShowResponse:
    try:
        return await client.show(model)
    except ClientError as error:
        if error.status != 404:
            raise
    await pull(client, model, insecure=insecure)
    return await client.show(model)


async def _embed(client: Client, session: ChatSession, prompt: str, flags: dict[str, Any]) -> None:
    if not prompt:
        raise CliError(f'embedding models require input text. Usage: omlx run {session.model} "your text here"')
    fields: dict[str, Any] = {"truncate": flags["truncate"]}
    if flags["dimensions"] > 0:
        fields["dimensions"] = flags["dimensions"]
    if session.keep_alive:
        fields["keep_alive"] = session.keep_alive
    out(msgspec.json.encode(await client.embed(session.model, prompt, **fields)).decode())


async def _ask(client: Client, session: ChatSession, prompt: str) -> None:
    """One prompt, one answer on stdout. An empty prompt loads the model."""
    answer = TerminalAnswer(wrap=session.wrap, hide_thinking=session.hide_thinking)
    last = None
    with Display() as waiting:
        waiting.step("")
        try:
            async for chunk in _chunks(client, session, prompt):
                waiting.stop(clear=True)
                if isinstance(chunk, wire.ChatResponse):
                    answer.feed(chunk.message.content, chunk.message.thinking)
                else:
                    answer.feed(chunk.response, chunk.thinking)
                last = chunk
        except BaseException:
            waiting.stop(clear=True)
            answer.break_off()
            raise
        waiting.stop(clear=True)
    if prompt:
        answer.end()
    if session.verbose and last:
        print_numbers(last)


def _chunks(
    client: Client, session: ChatSession, prompt: str
) -> AsyncIterator[wire.GenerateResponse] | AsyncIterator[wire.ChatResponse]:
    """The answer as it comes. Videos are part of a message: only /api/chat takes them."""
    media = attach(prompt) if session.multimodal else Attachments(prompt, [], [])
    body = {"model": session.model, **session.fields()}
    if media.videos:
        return client.chat({**body, "messages": [{"role": "user", "content": media.text, **media.fields()}]})
    return client.generate({**body, "prompt": media.text, **media.fields()})
