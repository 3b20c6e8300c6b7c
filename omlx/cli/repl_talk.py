"""A *talk* is the state of an interactive session: model, conversation, system message and options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from omlx.cli.console import columns, is_terminal, out
from omlx.cli.progress import Display
from omlx.cli.session import ChatSession, adopt
from omlx.cli.wordwrap import WordWrap

if TYPE_CHECKING:
    from omlx.client import Client
    from omlx.protocols.ollama import models as models_wire


class Talk:
    """`messages` are what was said since the start or the last /clear, without the system message."""

    def __init__(self, client: Client, session: ChatSession, shown: models_wire.ShowResponse) -> None:
        self.client = client
        self.session = session
        self.shown = shown
        self.system = ""
        self.options: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []

    def request(self) -> dict[str, Any]:
        """The body of the next /api/chat."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        options = {"options": self.options} if self.options else {}
        return {
            "model": self.session.model, "messages": [*system, *self.messages], **options, **self.session.fields()
        }  # fmt: skip

    async def load(self) -> None:
        """Have the server load the model, with a spinner."""
        fields = {name: value for name, value in self.session.fields().items() if name != "format"}
        if self.options:
            fields["options"] = self.options
        with Display() as waiting:
            waiting.step("")
            try:
                await self.client.load(self.session.model, **fields)
            finally:
                waiting.stop(clear=True)

    async def switch(self, model: str) -> None:
        """Go on with another model and an empty conversation. The old one stays if that fails."""
        before, shown = self.session.model, await self.client.show(model)
        self.session.model = model
        adopt(self.session, shown)
        try:
            await self.load()
        except BaseException:
            self.session.model = before
            adopt(self.session, self.shown)
            raise
        self.shown, self.messages = shown, []
        self.replay()

    def replay(self) -> None:
        """Print the conversation the model was made with. The server puts it in front of every chat by itself."""
        wrap = WordWrap(lambda: columns(sys.stdout)) if self.session.wrap and is_terminal(sys.stdout) else None
        for message in self.shown.messages:
            if message.role == "user":
                out(f">>> {message.content}")
            elif message.role == "assistant":
                out((wrap.feed(message.content) if wrap else message.content) + "\n")

    def as_model(self, name: str) -> dict[str, Any]:
        """The body of an /api/create that keeps this session as a model."""
        messages = [{"role": message.role, "content": message.content} for message in self.shown.messages]
        messages += [{"role": message["role"], "content": message["content"]} for message in self.messages]
        body: dict[str, Any] = {"model": name, "from": self.session.model}
        if self.system:
            body["system"] = self.system
        if self.options:
            body["parameters"] = self.options
        if messages:
            body["messages"] = messages
        return body
