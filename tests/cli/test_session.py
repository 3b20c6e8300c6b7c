"""The interactive session, driven through a terminal as a person would, against a real server and taught models."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from omlx.cli.repl_input import first_message
from tests.cli.conftest import PLAIN, THINKER, Omlx
from tests.cli.standin import SHOWN, StandIn, answer, stream
from tests.support.lessons import STORY
from tests.support.server import ServerProcess

HELLO = "Hello! How can I help you today?"
PROMPT = ">>> "
CTRL_C, CTRL_D, CTRL_J = "\x03", "\x04", "\n"


class Terminal:
    """A session on a pseudo terminal. `say` types a line; `sees` waits for a text; `prompted` for the next prompt."""

    def __init__(self, host: str, *words: str, home: Path, **env: str) -> None:
        self.child: Any = pexpect.spawn(
            sys.executable,
            ["-m", "omlx", "run", *words],
            env={
                **os.environ, "OLLAMA_HOST": host, "OMLX_AUTOSTART": "false", "TERM": "xterm-256color",
                # Nobody answers this terminal's questions about its cursor.
                "PROMPT_TOOLKIT_NO_CPR": "1", "XDG_STATE_HOME": str(home), **env,
            },
            encoding="utf-8", dimensions=(40, 200), timeout=120,
        )  # fmt: skip

    def sees(self, text: str) -> None:
        self.child.expect_exact(text)

    def prompted(self) -> None:
        self.sees(PROMPT)

    def types(self, keys: str) -> None:
        self.child.send(keys)

    def say(self, line: str) -> None:
        """Type a line and Enter. The editor redraws its prompt with every key: wait for the reply before the prompt."""
        self.child.send(line + "\r")

    def leaves(self) -> int:
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def session(server: ServerProcess, home: Path) -> Iterator[Terminal]:
    terminal = Terminal(server.url, PLAIN, home=home)
    terminal.prompted()
    yield terminal
    terminal.child.close(force=True)


def test_a_conversation_remembers_what_was_said(session: Terminal) -> None:
    session.say("My name is Ada.")
    session.sees("Nice to meet you, Ada.")
    session.prompted()
    session.say("What is my name?")
    session.sees("Your name is Ada.")
    session.prompted()
    session.say("/clear")
    session.sees("Cleared session context")
    session.prompted()
    session.say("/bye")
    assert session.leaves() == 0


def test_what_is_typed_in_the_first_second_is_sent(server: ServerProcess, home: Path) -> None:
    terminal = Terminal(server.url, PLAIN, home=home)
    terminal.say("Hello")  # Python itself has hardly started
    terminal.types("/cle")
    terminal.sees(HELLO)
    terminal.types("ar\r")
    terminal.sees("Cleared session context")
    terminal.say("/bye")
    assert terminal.leaves() == 0


@pytest.mark.parametrize(
    ("typed", "message", "rest"),
    [
        ("", None, ""),
        ("half", None, "half"),
        ("one\ntwo\nhalf", "one", "two\nhalf"),
        ('"""a\nb\n"""\nmore', '"""a\nb\n"""', "more"),
        ('"""a\nb', None, '"""a\nb'),
        ("\nHi\n", "", "Hi\n"),
    ],
)
def test_the_first_message_of_what_was_typed_ahead(typed: str, message: str | None, rest: str) -> None:
    assert first_message(typed) == (message, rest)


def test_ctrl_d_leaves(session: Terminal) -> None:
    session.types(CTRL_D)
    assert session.leaves() == 0


def test_ctrl_c_at_an_empty_prompt_tells_how_to_leave(session: Terminal) -> None:
    session.types(CTRL_C)
    session.sees("Use Ctrl + d or /bye to exit.")
    session.prompted()
    session.types("half a line")
    session.sees("half a line")
    session.types(CTRL_C)
    session.say("Hello")
    session.sees(HELLO)


def test_ctrl_c_stops_the_answer_and_keeps_the_session(session: Terminal) -> None:
    session.say("Tell me a story.")
    session.sees("There was once")
    session.types(CTRL_C)
    session.prompted()
    session.say("/clear")
    session.sees("Cleared session context")
    session.prompted()
    session.say("Hello")
    session.sees(HELLO)


def test_ctrl_j_breaks_a_line_without_sending(session: Terminal) -> None:
    session.types(f"/set system You are{CTRL_J}a pirate.")
    session.sees("...")
    session.types("\r")
    session.sees("Set system message.")
    session.prompted()
    session.say("/show system")
    session.sees("You are\r\na pirate.")


def test_a_system_message_takes_effect(session: Terminal) -> None:
    session.say("/set system You are a pirate.")
    session.sees("Set system message.")
    session.prompted()
    session.say("Hello")
    session.sees("Ahoy there, sailor!")
    session.prompted()
    session.say("/show system")
    session.sees("You are a pirate.")


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("/set parameter seed 7", "Set parameter 'seed' to '7'"),
        ("/set parameter stop a b", "Set parameter 'stop' to 'a, b'"),
        ("/set parameter nonsense 7", "Couldn't set parameter: \"unknown parameter 'nonsense'\""),
        ("/set parameter top_k many", 'Couldn\'t set parameter: "invalid int value [many]"'),
        ("/set parameter", "Available Parameters:"),
        ("/set verbose", "Set 'verbose' mode."),
        ("/set quiet", "Set 'quiet' mode."),
        ("/set wordwrap", "Set 'wordwrap' mode."),
        ("/set nowordwrap", "Set 'nowordwrap' mode."),
        ("/set format json", "Set format to 'json' mode."),
        ("/set format yaml", "Invalid or missing format. For 'json' mode use '/set format json'"),
        ("/set noformat", "Disabled format."),
        ("/set nothink", "Set 'nothink' mode."),
        ("/set think high", "Set 'think' mode to 'high'."),
        ("/set colour", "Unknown command '/set colour'. Type /? for help"),
        ("/set", "/set parameter ...     Set a parameter"),
        ("/show license", "No license was specified for this model."),
        ("/show system", "No system message was specified for this model."),
        ("/show parameters", "Model defined parameters:"),
        ("/show modelfile", "# Modelfile generated by"),
        ("/show info", "context length"),
        ("/show", "/show info         Show details for this model"),
        ("/list", "NAME "),
        ("/load nobody", "Couldn't find model 'nobody'"),
        ("/save in/va/l/id", "error: The model name 'in/va/l/id' is invalid"),
        ("/?", 'Use """ to begin a multi-line message.'),
        ("/? shortcuts", "Available keyboard shortcuts:"),
        ("/helpful", "Available Commands:"),
        ("/dance", "Unknown command '/dance'. Type /? for help"),
    ],
)
def test_commands_answer_in_ollamas_words(everlasting: Terminal, line: str, reply: str) -> None:
    everlasting.say(line)
    everlasting.sees(reply)
    everlasting.prompted()


@pytest.fixture(scope="module")
def everlasting(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One session for all commands that leave nothing behind."""
    terminal = Terminal(server.url, PLAIN, home=tmp_path_factory.mktemp("state"))
    terminal.prompted()
    yield terminal
    terminal.say("/byebye")
    assert terminal.leaves() == 0


def test_a_session_can_be_saved_and_loaded_as_a_model(session: Terminal, real: Omlx) -> None:
    session.say("/set system You are a pirate.")
    session.sees("Set system message.")
    session.prompted()
    session.say("Hello")
    session.sees("Ahoy there, sailor!")
    session.prompted()
    session.say("/save kept")
    session.sees("Created new model 'kept'")
    session.prompted()
    session.say("/load kept")
    session.sees("Loading model 'kept'")
    session.sees(">>> Hello")
    session.sees("Ahoy there, sailor!")
    session.prompted()
    assert real("show", "kept", "--system").out == "You are a pirate."
    assert real("rm", "kept").code == 0


def test_thinking_is_shown_apart_from_the_answer(server: ServerProcess, home: Path) -> None:
    terminal = Terminal(server.url, THINKER, home=home, NO_COLOR="1")
    terminal.prompted()
    terminal.say("What is 2 + 2?")
    terminal.sees("Thinking...\r\nTwo and two make four.\r\n...done thinking.\r\n\r\n2 + 2 = 4")
    terminal.prompted()
    terminal.say("/bye")
    assert terminal.leaves() == 0


def test_typed_lines_come_back_in_the_next_session(server: ServerProcess, home: Path) -> None:
    first = Terminal(server.url, PLAIN, home=home)
    first.prompted()
    first.say("Hello")
    first.sees(HELLO)
    first.prompted()
    first.say("/bye")
    assert first.leaves() == 0
    file = home / "omlx" / "history"
    assert file.read_text().splitlines() == ['"Hello"', '"/bye"']
    assert file.stat().st_mode & 0o077 == 0, "nobody else may read what was typed"
    again = Terminal(server.url, PLAIN, home=home)
    again.prompted()
    again.types("\x1b[A\x1b[A")
    again.sees("Hello")
    again.types("\r")
    again.sees(HELLO)
    again.child.close(force=True)
    forgetful = Terminal(server.url, PLAIN, home=home / "none", OLLAMA_NOHISTORY="1")
    forgetful.prompted()
    forgetful.say("/bye")
    assert forgetful.leaves() == 0
    assert not (home / "none" / "omlx" / "history").exists()


def test_words_wrap_on_a_terminal_only(server: ServerProcess, home: Path, real: Omlx) -> None:
    terminal = Terminal(server.url, PLAIN, "Tell me a story.", home=home)
    terminal.child.setwinsize(40, 60)
    text = terminal.child.read()
    terminal.child.close()
    assert terminal.child.exitstatus == 0
    assert "\x1b[K\r\n" in text, "a word that did not fit was taken back"
    plain = real("run", PLAIN, "Tell me a story.").out
    assert plain == STORY + "\n\n"


def line(text: str, **fields: object) -> dict[str, object]:
    """A line of /api/chat."""
    message = {"role": "assistant", "content": text}
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False, **fields}


LOADED = {"model": "m", "created_at": "2026-01-01T00:00:00Z", "response": "", "done": True}
DONE = line("", done=True)


@pytest.fixture
def standin() -> Iterator[StandIn]:
    script = {
        "POST /api/show": answer(200, SHOWN),
        "POST /api/generate": answer(200, LOADED),
        "POST /api/chat": stream([line("Whole."), DONE]),
    }
    with StandIn(script) as running:
        yield running


def said(standin: StandIn) -> list[tuple[str, str]]:
    """The conversation the last chat was sent with."""
    return [(message["role"], message["content"]) for message in standin.body_of("/api/chat")["messages"]]


def test_an_error_of_an_answer_does_not_end_the_session(standin: StandIn, home: Path) -> None:
    standin.script["POST /api/chat"] = stream([line("Half an"), {"error": "the runner is gone"}])
    terminal = Terminal(standin.url, "m", home=home)
    terminal.prompted()
    terminal.say("Hi")
    terminal.sees("Error: the runner is gone")
    terminal.prompted()
    standin.script["POST /api/chat"] = answer(503, {"error": "server busy"})
    terminal.say("Lost")
    terminal.sees("Error: 503 Service Unavailable: server busy")
    terminal.prompted()
    standin.script["POST /api/chat"] = stream([line("Whole."), DONE])
    terminal.say("Again")
    terminal.sees("Whole.")
    terminal.prompted()
    assert said(standin) == [("user", "Hi"), ("assistant", "Half an"), ("user", "Again")]
    terminal.say("/bye")
    assert terminal.leaves() == 0


def test_pictures_and_videos_named_in_a_message_go_with_it(standin: StandIn, home: Path, tmp_path: Path) -> None:
    standin.script["POST /api/show"] = answer(200, {**SHOWN, "capabilities": ["completion", "vision"]})
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    terminal = Terminal(standin.url, "m", home=home)
    terminal.prompted()
    terminal.say(f"{tmp_path}/clip.mp4 and {tmp_path}/a.png: what is it?")
    terminal.sees("Added video")
    terminal.sees("Whole.")
    terminal.prompted()
    (message,) = standin.body_of("/api/chat")["messages"]
    assert message["content"] == "and : what is it?"
    assert (len(message["images"]), len(message["videos"])) == (1, 1)
    terminal.say("/bye")
    assert terminal.leaves() == 0


def test_what_was_said_before_ctrl_c_stays_in_the_conversation(standin: StandIn, home: Path) -> None:
    standin.script["POST /api/chat"] = stream([line("Half"), *[line("") for _ in range(100)]], pause_s=0.1)
    terminal = Terminal(standin.url, "m", home=home)
    terminal.prompted()
    terminal.say("Hi")
    terminal.sees("Half")
    terminal.types(CTRL_C)
    terminal.prompted()
    standin.script["POST /api/chat"] = stream([line("Whole."), DONE])
    terminal.say("Go on")
    terminal.sees("Whole.")
    assert said(standin) == [("user", "Hi"), ("assistant", "Half"), ("user", "Go on")]
    terminal.child.close(force=True)


def test_what_is_typed_during_an_answer_is_the_next_message(standin: StandIn, home: Path) -> None:
    standin.script["POST /api/chat"] = stream(
        [line("Begun"), *[line("") for _ in range(15)], line("."), DONE], pause_s=0.1
    )
    terminal = Terminal(standin.url, "m", home=home)
    terminal.prompted()
    terminal.say("Hi")
    terminal.sees("Begun")
    terminal.say("Ahead")
    terminal.sees(".\r\n\r\n")
    assert "Ahead" not in terminal.child.before, "it does not get into the answer"
    terminal.sees("Ahead")
    terminal.sees("Begun.")
    assert [text for role, text in said(standin) if role == "user"] == ["Hi", "Ahead"]
    terminal.child.close(force=True)


def test_pasted_and_quoted_lines_are_one_message_each(standin: StandIn, home: Path) -> None:
    terminal = Terminal(standin.url, "m", home=home)
    terminal.prompted()
    terminal.types("\x1b[200~one\ntwo\x1b[201~")
    terminal.say("")
    terminal.sees("Whole.")
    terminal.prompted()
    terminal.say('"""three')
    terminal.sees("...")
    terminal.say('four"""')
    terminal.sees("Whole.")
    terminal.prompted()
    terminal.say('"""five"""')
    terminal.sees("Whole.")
    assert [text for role, text in said(standin) if role == "user"] == ["one\ntwo", "three\nfour", "five"]
    terminal.child.close(force=True)


def test_settings_of_the_session_go_into_the_request(standin: StandIn, home: Path) -> None:
    terminal = Terminal(standin.url, "m", "--keepalive", "1h", home=home)
    terminal.prompted()
    assert standin.body_of("/api/generate") == {"model": "m", "prompt": "", "keep_alive": "1h"}
    for command, reply in (
        ("/set parameter temperature 0.5", "to '0.5'"),
        ("/set parameter stop a b", "to 'a, b'"),
        ("/set system Be brief.", "Set system message."),
        ("/set format json", "Set format to 'json' mode."),
        ("/set think low", "Set 'think' mode to 'low'."),
    ):
        terminal.say(command)
        terminal.sees(reply)
        terminal.prompted()
    terminal.say("Hi")
    terminal.sees("Whole.")
    assert standin.body_of("/api/chat") == {
        "model": "m", "keep_alive": "1h", "format": "json", "think": "low",
        "options": {"temperature": 0.5, "stop": ["a", "b"]},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    }  # fmt: skip
    terminal.child.close(force=True)


def test_the_session_needs_a_model_that_loads(standin: StandIn, home: Path) -> None:
    standin.script["POST /api/generate"] = answer(500, {"error": "model requires more system memory"})
    terminal = Terminal(standin.url, "m", home=home)
    terminal.sees("Error: model requires more system memory")
    assert terminal.leaves() == 1


def test_the_editor_of_the_environment_opens_on_ctrl_g(server: ServerProcess, home: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "Hello" > "$1"\n')
    editor.chmod(0o755)
    terminal = Terminal(server.url, PLAIN, home=home, OLLAMA_EDITOR=str(editor))
    terminal.prompted()
    terminal.types("\x07")
    terminal.sees("Hello")
    time.sleep(0.2)
    terminal.types("\r")
    terminal.sees(HELLO)
    terminal.child.close(force=True)
