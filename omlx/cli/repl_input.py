"""The line editor of the interactive session: prompt_toolkit with Ollama's keys, multi-line messages and history."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from omlx.cli.console import err, out
from omlx.cli.repl_help import WORDS

QUOTES = '"""'
HISTORY_LIMIT = 100
_PROMPT, _CONTINUED = ">>> ", "... "
_PLACEHOLDER = "Send a message (/? for help)"


class Interrupted(Exception):
    """Ctrl+C at an empty prompt."""


def block_is_open(text: str) -> bool:
    """Whether `text` begins a \"\"\" message (or system message) that is not closed yet."""
    body = text.lstrip()
    if body.startswith("/set system"):
        body = body.removeprefix("/set system").lstrip()
    return body.startswith(QUOTES) and not body[len(QUOTES) :].rstrip().endswith(QUOTES)


def unquoted(text: str) -> str:
    """`text` without the \"\"\" around it."""
    stripped = text.strip()
    if not stripped.startswith(QUOTES):
        return text
    return stripped.removeprefix(QUOTES).removesuffix(QUOTES)


class Lines(History):
    """The last hundred lines typed, in a file only the user may read. Switched off, nothing is remembered."""

    def __init__(self, path: Path, *, enabled: bool) -> None:
        super().__init__()
        self.path = path
        self.enabled = enabled

    def append_string(self, string: str) -> None:
        if self.enabled:
            super().append_string(string)

    def load_history_strings(self) -> Iterable[str]:
        """Newest first. A line that cannot be read is left out."""
        if self.enabled:
            yield from reversed(self._read())

    def store_string(self, string: str) -> None:
        lines = [*self._read(), string][-HISTORY_LIMIT:]
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("wb", dir=self.path.parent, delete=False) as file:
                file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            Path(file.name).replace(self.path)
        except OSError as error:
            err(f"warning: the history cannot be kept: {error}")
            self.enabled = False

    def _read(self) -> list[str]:
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError:
            return []
        read = []
        for line in lines:
            try:
                read.append(msgspec.json.decode(line, type=str))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return read


def history_file() -> Path:
    return Path(platformdirs.user_state_dir("omlx", appauthor=False)) / "history"


class _Slash(Completer):
    """Completes the session's commands on Tab."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        typed = document.text
        if typed.startswith("/"):
            yield from (Completion(word, -len(typed)) for word in WORDS if word.startswith(typed))


class LineReader:
    """Reads one message after the other from the terminal; `typed` is what was typed before it could read."""

    def __init__(self, history: Lines, typed: str = "") -> None:
        self.history = history
        self._typed = typed
        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            history=history,
            multiline=True,
            prompt_continuation=_CONTINUED,
            placeholder=_placeholder,
            key_bindings=_keys(),
            completer=_Slash(),
            complete_while_typing=False,
            enable_suspend=True,
        )

    async def read(self) -> str:
        """The next message. Raises EOFError (Ctrl+D) and Interrupted."""
        message, self._typed = first_message(self._typed)
        if message is None:
            typed, self._typed = self._typed, ""
            return await self._session.prompt_async(default=typed)
        out(_PROMPT + message.replace("\n", f"\n{_CONTINUED}"))
        if message.strip():
            self.history.append_string(message)
        return message


def first_message(typed: str) -> tuple[str | None, str]:
    """The first message in lines that were typed ahead, and what follows; None where none is complete."""
    lines = typed.split("\n")
    for end in range(1, len(lines)):
        message = "\n".join(lines[:end])
        if not block_is_open(message):
            return message, "\n".join(lines[end:])
    return None, typed


def _placeholder() -> FormattedText:
    """The grey hint of an empty line; it goes when the line is done, so that it is not left on the screen."""
    return FormattedText([] if get_app().is_done else [("fg:ansibrightblack", _PLACEHOLDER)])


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        if block_is_open(event.current_buffer.text):
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("c-j")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def give_up(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=Interrupted())

    @keys.add("c-g")
    async def edit(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = await run_in_terminal(lambda: _edited(buffer.text))
        _replace(buffer, text)

    return keys


def _replace(buffer: Buffer, text: str) -> None:
    buffer.document = Document(text, len(text))


def _edited(text: str) -> str:
    """`text` as the user leaves it in their editor; unchanged if the editor fails."""
    names = ("OLLAMA_EDITOR", "VISUAL", "EDITOR")
    editor = next((os.environ[name] for name in names if os.environ.get(name)), "vi")
    with tempfile.TemporaryDirectory(prefix="omlx-") as folder:
        path = Path(folder) / "message.txt"
        path.write_text(text, "utf-8")
        try:
            if subprocess.call([*shlex.split(editor), str(path)]) != 0:
                return text
        except (OSError, ValueError) as error:
            err(f"error: the editor {editor!r} cannot be started: {error}")
            return text
        return path.read_text("utf-8", "replace").rstrip("\n")
