"""The commands of the interactive session. They are recognised by their beginning, as in Ollama (`/byebye` leaves)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omlx.cli import repl_help
from omlx.cli.command import CliError
from omlx.cli.console import err, out, until_interrupted
from omlx.cli.listing import model_table
from omlx.cli.repl_input import Lines, unquoted
from omlx.cli.session import THINK_VALUES, parse_think
from omlx.cli.show import describe
from omlx.client import ClientError

if TYPE_CHECKING:
    from omlx.cli.repl_talk import Talk


class Commands:
    """Acts on "/…" lines of one talk."""

    def __init__(self, talk: Talk, history: Lines) -> None:
        self._talk = talk
        self._history = history

    async def run(self, line: str) -> bool:
        """Do what `line` says; False if it says to leave."""
        words = line.split()
        if line.startswith(("/bye", "/exit")):
            return False
        if line.startswith("/list"):
            out(model_table(await self._talk.client.tags()), end="")
        elif line.startswith("/load"):
            await self._load(words)
        elif line.startswith("/save"):
            await self._save(words)
        elif line.startswith("/clear"):
            self._talk.messages = []
            out("Cleared session context")
        elif line.startswith("/set"):
            self._set(words, line)
        elif line.startswith("/show"):
            self._show(words)
        elif line.startswith(("/help", "/?")):
            self._help(words)
        else:
            out(f"Unknown command '{words[0]}'. Type /? for help")
        return True

    async def _load(self, words: list[str]) -> None:
        if len(words) != 2:
            out("Usage:\n  /load <modelname>")
            return
        out(f"Loading model '{words[1]}'")
        try:
            await until_interrupted(self._talk.switch(words[1]))
        except ClientError as error:
            if error.status != 404:
                raise
            out(f"Couldn't find model '{words[1]}'")

    async def _save(self, words: list[str]) -> None:
        if len(words) != 2:
            out("Usage:\n  /save <modelname>")
            return
        try:
            async for _ in self._talk.client.create(self._talk.as_model(words[1])):
                pass
        except ClientError as error:
            if "invalid model name" not in error.message:
                raise
            out(f"error: The model name '{words[1]}' is invalid")
            return
        out(f"Created new model '{words[1]}'")

    def _help(self, words: list[str]) -> None:
        texts = {
            "set": repl_help.SET, "/set": repl_help.SET, "show": repl_help.SHOW, "/show": repl_help.SHOW,
            "shortcut": repl_help.SHORTCUTS, "shortcuts": repl_help.SHORTCUTS,
        }  # fmt: skip
        general = repl_help.COMMANDS + (repl_help.MEDIA if self._talk.session.multimodal else "")
        err(texts.get(words[1], general) if len(words) > 1 else general)

    def _set(self, words: list[str], line: str) -> None:
        if len(words) < 2:
            err(repl_help.SET)
            return
        session, name, values = self._talk.session, words[1], words[2:]
        match name:
            case "parameter":
                self._set_parameter(values)
            case "system":
                self._set_system(line)
            case "history" | "nohistory":
                self._history.enabled = name == "history"
            case "wordwrap" | "nowordwrap":
                session.wrap = name == "wordwrap"
                out(f"Set '{name}' mode.")
            case "verbose" | "quiet":
                session.verbose = name == "verbose"
                out(f"Set '{name}' mode.")
            case "think":
                self._set_think(values)
            case "nothink":
                session.think = False
                out("Set 'nothink' mode.")
            case "format":
                if values != ["json"]:
                    out("Invalid or missing format. For 'json' mode use '/set format json'")
                    return
                session.format = "json"
                out("Set format to 'json' mode.")
            case "noformat":
                session.format = None
                out("Disabled format.")
            case _:
                out(f"Unknown command '/set {name}'. Type /? for help")

    def _set_parameter(self, words: list[str]) -> None:
        # The registry takes 150 ms to import, before the first prompt; few sessions set a parameter.
        from omlx_registry.errors import ModelfileError
        from omlx_registry.modelfile import parse_parameter

        if len(words) < 2:
            err(repl_help.parameters())
            return
        name, values = words[0], words[1:]
        try:
            parsed: Any = values if name == "stop" else parse_parameter(name, values[0])
        except ModelfileError as error:
            out(f'Couldn\'t set parameter: "{error}"')
            return
        self._talk.options[name] = parsed
        out(f"Set parameter '{name}' to '{', '.join(values)}'")

    def _set_system(self, line: str) -> None:
        text = unquoted(line.split("system", 1)[1].strip()).strip()
        if not text:
            err(repl_help.SET)
            return
        self._talk.system = text
        out("Set system message.")

    def _set_think(self, values: list[str]) -> None:
        session = self._talk.session
        try:
            session.think = parse_think(values[0] if values else "true")
        except CliError:
            out(f"Invalid think value '{values[0]}': use one of {', '.join(THINK_VALUES)}")
            return
        out(f"Set 'think' mode to '{values[0]}'." if values else "Set 'think' mode.")
        if not session.can_think:
            err(f'warning: model "{session.model}" does not support thinking output')

    def _show(self, words: list[str]) -> None:
        if len(words) < 2:
            err(repl_help.SHOW)
            return
        shown = self._talk.shown
        match words[1]:
            case "info":
                out(describe(shown), end="")
            case "license":
                out(shown.license or "No license was specified for this model.")
            case "modelfile":
                out(shown.modelfile)
            case "parameters":
                self._show_parameters()
            case "system":
                text = self._talk.system or shown.system
                out(f"{text}\n" if text else "No system message was specified for this model.")
            case "template":
                out(shown.template or "No prompt template was specified for this model.")
            case other:
                out(f"Unknown command '/show {other}'. Type /? for help")

    def _show_parameters(self) -> None:
        out("Model defined parameters:")
        for line in self._talk.shown.parameters.splitlines() or [
            "No additional parameters were specified for this model."
        ]:
            out(f"  {line}")
        out("")
        if self._talk.options:
            out("User defined parameters:")
            for name, value in self._talk.options.items():
                out(f"  {name:<30} {' '.join(value) if isinstance(value, list) else value}")
            out("")
