"""A runner program that behaves like a model inside a coding agent: asked to, it calls a tool, then tells the result.

It looks for `@call NAME ARGUMENTS` (JSON in base64: agents quote what they pass on) in what the user wrote. Before
there is a tool's answer it says a word and calls that tool; after it, it says "The tool said: " and the answer.
Anything else, such as the title of the conversation, is answered "ok". The server in front of it is the real one.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import sys

from omlx.messages.request import Delta, GenerateRequest, ToolCall
from tests.server.scripted_runner import Runner

_CALL = re.compile(r"@call (\w+) ([A-Za-z0-9+/=]+)")


def wish(tool: str, **arguments: str) -> str:
    """The words that make it call `tool`."""
    return f"@call {tool} {base64.b64encode(json.dumps(arguments).encode()).decode()}"


class AgentRunner(Runner):
    def answer(self, request: GenerateRequest) -> None:
        offered = {tool["function"]["name"] for tool in request.tools}
        wanted = [found for message in request.messages if message.role == "user"
                  for found in _CALL.findall(message.content) if found[0] in offered]  # fmt: skip
        last = request.messages[-1] if request.messages else None
        if request.render_only:
            self.finish(request, rendered="")
            return
        if last is not None and last.role == "tool":
            self.delta(Delta(request.id, content="The tool said: "))
            self.delta(Delta(request.id, content=last.content))
        elif wanted:
            name, arguments = wanted[-1]
            self.delta(Delta(request.id, content="I will look. "))
            self.delta(Delta(request.id, tool_calls=[ToolCall(name, json.loads(base64.b64decode(arguments)))]))
        else:
            self.delta(Delta(request.id, content="ok"))
        self.finish(request)


if __name__ == "__main__":
    AgentRunner(socket.socket(fileno=int(sys.argv[1]))).run()
