"""The interactive session: a conversation that is sent whole with every message, and commands that begin with "/"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omlx.cli.answer import TerminalAnswer, print_numbers
from omlx.cli.console import effective, err, out, until_interrupted
from omlx.cli.media import attach, begins_with_path
from omlx.cli.progress import Display
from omlx.cli.repl_commands import Commands
from omlx.cli.repl_input import Interrupted, LineReader, Lines, history_file, unquoted
from omlx.cli.repl_talk import Talk
from omlx.errors import UserError

if TYPE_CHECKING:
    from omlx.cli.session import ChatSession
    from omlx.client import Client
    from omlx.protocols.ollama import models as models_wire


async def converse(client: Client, session: ChatSession, shown: models_wire.ShowResponse, typed: str) -> None:
    """Talk until the user leaves. Errors of an answer are shown and the session goes on. `typed`: what the user typed
    before; the terminal is set for typing ahead.
    """
    talk = Talk(client, session, shown)
    if await until_interrupted(talk.load()):
        return
    talk.replay()
    history = Lines(history_file(), enabled=not effective().no_history)
    reader, commands = LineReader(history, typed), Commands(talk, history)
    while True:
        try:
            line = await reader.read()
        except EOFError:
            return
        except Interrupted:
            out("\nUse Ctrl + d or /bye to exit.")
            continue
        try:
            if not await _handle(line, talk, commands):
                return
        except UserError as error:
            err(f"Error: {error}")


async def _handle(line: str, talk: Talk, commands: Commands) -> bool:
    """Act on one message or command; False if the user leaves."""
    if line.startswith("/") and not (talk.session.multimodal and begins_with_path(line)):
        return await commands.run(line)
    if text := unquoted(line).strip():
        await _turn(text, talk)
    return True


async def _turn(text: str, talk: Talk) -> None:
    """Send a message and print the answer. Ctrl+C stops the answer; what was said of it stays in the conversation."""
    message: dict[str, Any] = {"role": "user", "content": text}
    if talk.session.multimodal:
        media = attach(text)
        message |= {"content": media.text, **media.fields()}
    talk.messages.append(message)
    answer = TerminalAnswer(wrap=talk.session.wrap, hide_thinking=talk.session.hide_thinking)
    try:
        await until_interrupted(_print_answer(talk, answer))
    finally:
        if answer.text or answer.thinking:
            talk.messages.append({"role": "assistant", "content": answer.text, "thinking": answer.thinking})
        else:
            talk.messages.pop()


async def _print_answer(talk: Talk, answer: TerminalAnswer) -> None:
    with Display() as waiting:
        waiting.step("")
        last = None
        try:
            async for chunk in talk.client.chat(talk.request()):
                waiting.stop(clear=True)
                answer.feed(chunk.message.content, chunk.message.thinking)
                last = chunk
        except BaseException:
            waiting.stop(clear=True)
            answer.break_off()
            raise
        waiting.stop(clear=True)
    answer.end()
    if talk.session.verbose and last:
        print_numbers(last)
