"""A *session* is what a run was asked to do: the model, and how its answers are made and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from omlx.cli.command import CliError

if TYPE_CHECKING:
    from omlx.protocols.ollama import models as models_wire

THINK_VALUES = ("true", "false", "high", "medium", "low", "max")


class ChatSession(msgspec.Struct, kw_only=True):
    """What a run was asked to do; the interactive session changes some of it."""

    model: str
    format: Any = None
    """None, "json" or a JSON schema."""
    think: bool | str | None = None
    """What the user chose; None: think if the model can."""
    can_think: bool = False
    hide_thinking: bool = False
    keep_alive: str | None = None
    verbose: bool = False
    wrap: bool = True
    multimodal: bool = False

    def fields(self) -> dict[str, Any]:
        """What goes into every request."""
        think = self.think if self.think is not None or not self.can_think else True
        fields = {"format": self.format, "think": think, "keep_alive": self.keep_alive}
        return {name: value for name, value in fields.items() if value is not None}


def parse_think(text: str | None) -> bool | str | None:
    """The value of `--think`. Raises CliError."""
    if text is None or text in {"true", "false"}:
        return None if text is None else text == "true"
    if text not in THINK_VALUES:
        raise CliError(f'invalid value for --think: "{text}" (must be true, false, high, medium, low, or max)')
    return text


def adopt(session: ChatSession, shown: models_wire.ShowResponse) -> None:
    """Fit the session to what the model can do."""
    session.multimodal = bool({"vision", "audio"} & set(shown.capabilities))
    session.can_think = "thinking" in shown.capabilities
