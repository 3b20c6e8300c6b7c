"""The tools `omlx launch` knows: how each is told, for one start or for good, to use this server.

A start changes no file of the user: everything goes through the environment and the command line. `File` is what makes
the choice last, for those who want that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

NO_KEY = "omlx"
"""What tools are given that insist on a key, where the server asks for none."""


CONTEXT_HEADER = "X-OMLX-Num-Ctx"
"""Says with each request which context it is to be served with, for protocols that have no field for it."""
AGENT_CONTEXT = 65_536
"""Tokens that a coding agent should have: its instructions and tools take 10 to 25 thousand of them."""


class LaunchContext(NamedTuple):
    """The server, a key it takes, and the model to use. `context`: the tokens that requests are served with; 0: not
    known. `num_ctx`: what the tool has to ask for to get that; 0: nothing, it is the default.
    """

    url: str
    key: str
    model: str
    context: int = 0
    num_ctx: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """What the tool has to send with each request."""
        return {CONTEXT_HEADER: str(self.num_ctx)} if self.num_ctx else {}


def choose_context(default: int, largest: int, wanted: int, named: int = 0) -> tuple[int, int]:
    """`context` and `num_ctx` of a place, in tokens.

    A request that asks for nothing is served with `default`; there is memory for `largest` (0: not known). The tool
    wants at least `wanted` (0: it needs no more than a chat); the user may have `named` a number, which goes first.
    """
    if named:
        return named, named
    if wanted <= default or largest <= default:
        return default, 0
    context = min(wanted, largest)
    return context, context


class File(NamedTuple):
    """A configuration file. `content`: its text, or values to be merged into the JSON that is there."""

    path: Path
    content: str | Mapping[str, Any]


class Start(NamedTuple):
    """A command, what its environment has beside the user's, and a file of our own that it reads."""

    command: list[str]
    environment: dict[str, str]
    own_file: File | None = None


class CodingTool(NamedTuple):
    title: str
    install: str
    start: Callable[[LaunchContext], Start]
    file: Callable[[LaunchContext], File] | None = None
    context: int = AGENT_CONTEXT
    """Tokens it wants; 0: it needs no more than a chat, or asks the server itself."""


def _home(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default)


# ---------------------------------------------------------------- Claude Code
def _claude_environment(place: LaunchContext) -> dict[str, str]:
    models = {f"ANTHROPIC_DEFAULT_{size}_MODEL": place.model for size in ("OPUS", "SONNET", "HAIKU")}
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": place.key,
        # A key in the environment would win over the token.
        "ANTHROPIC_API_KEY": "",
        **models,
        "CLAUDE_CODE_SUBAGENT_MODEL": place.model,
        # Another line in front of each prompt would keep it out of the cache.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        # It would shorten a conversation only at the size of Anthropic's own models.
        **({"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(place.context)} if place.context else {}),
        **({"ANTHROPIC_CUSTOM_HEADERS": _lines(place.headers)} if place.headers else {}),
    }


def _lines(headers: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in headers.items())


def _claude(place: LaunchContext) -> Start:
    environment = _claude_environment(place)
    users = os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").strip()
    if users and place.headers:
        environment["ANTHROPIC_CUSTOM_HEADERS"] = f"{users}\n{_lines(place.headers)}"
    return Start(["claude", "--model", place.model], environment)


def _claude_file(place: LaunchContext) -> File:
    values = {"model": place.model, "env": _claude_environment(place)}
    return File(_home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json", values)


# ---------------------------------------------------------------- Codex
def _codex_provider(place: LaunchContext) -> dict[str, str]:
    """The values as TOML: its basic strings are written as JSON's."""
    values = {"name": "oMLX", "base_url": f"{place.url}/v1", "wire_api": "responses", "env_key": "OMLX_API_KEY"}
    provider = {name: json.dumps(value) for name, value in values.items()}
    if place.headers:
        pairs = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in place.headers.items())
        provider["http_headers"] = f"{{{pairs}}}"
    return provider


def _codex(place: LaunchContext) -> Start:
    provider = ", ".join(f"{name} = {value}" for name, value in _codex_provider(place).items())
    choice = ["-c", 'model_provider="omlx"', "-c", f"model_providers.omlx={{{provider}}}"]
    window = ["-c", f"model_context_window={place.context}"] if place.context else []
    return Start(["codex", *choice, *window, "-m", place.model], {"OMLX_API_KEY": place.key})


def _codex_file(place: LaunchContext) -> File:
    """A profile of its own: `codex --profile omlx`."""
    provider = "".join(f"{name} = {value}\n" for name, value in _codex_provider(place).items())
    window = f"model_context_window = {place.context}\n" if place.context else ""
    chosen = f'model = {json.dumps(place.model)}\nmodel_provider = "omlx"\n{window}'
    text = f"{chosen}\n[model_providers.omlx]\n{provider}"
    return File(_home("CODEX_HOME", ".codex") / "omlx.config.toml", text)


# ---------------------------------------------------------------- opencode
def _opencode_values(place: LaunchContext) -> dict[str, Any]:
    # It keeps room for a whole answer free: one as long as the context would leave none for the prompt.
    room = min(place.context // 4, 32_768)
    limit = {"limit": {"context": place.context, "output": room}} if place.context else {}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "oMLX",
        "options": {
            "baseURL": f"{place.url}/v1",
            "apiKey": place.key,
            **({"headers": place.headers} if place.headers else {}),
        },
        "models": {place.model: {"name": place.model, "tool_call": True, **limit}},
    }
    chosen = f"omlx/{place.model}"
    return {"provider": {"omlx": provider}, "model": chosen, "small_model": chosen}


def _opencode(place: LaunchContext) -> Start:
    return Start(["opencode"], {"OPENCODE_CONFIG_CONTENT": json.dumps(_opencode_values(place))})


def _opencode_file(place: LaunchContext) -> File:
    values = {"$schema": "https://opencode.ai/config.json", **_opencode_values(place)}
    return File(_home("XDG_CONFIG_HOME", ".config") / "opencode" / "opencode.json", values)


# ---------------------------------------------------------------- others
def _aider(place: LaunchContext) -> Start:
    environment = {"OLLAMA_API_BASE": place.url, "OLLAMA_API_KEY": place.key}
    return Start(["aider", "--model", f"ollama_chat/{place.model}"], environment)


def _aider_file(place: LaunchContext) -> File:
    text = (
        f"model: {json.dumps('ollama_chat/' + place.model)}\n"
        f"set-env:\n  - {json.dumps('OLLAMA_API_BASE=' + place.url)}\n  - {json.dumps('OLLAMA_API_KEY=' + place.key)}\n"
    )
    return File(Path.home() / ".aider.conf.yml", text)


def _continue_text(place: LaunchContext) -> str:
    fields = {"name": place.model, "provider": "openai", "model": place.model, "apiBase": f"{place.url}/v1",
              "apiKey": place.key, "roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"],
              **({"defaultCompletionOptions": {"contextLength": place.context}} if place.context else {}),
              **({"requestOptions": {"headers": place.headers}} if place.headers else {})}  # fmt: skip
    # YAML takes JSON's values.
    lines = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in fields.items())
    return f"name: oMLX\nversion: 0.0.1\nschema: v1\nmodels:\n  - {lines.lstrip()}"


def _continue(place: LaunchContext) -> Start:
    ours = Path(platformdirs.user_config_dir("omlx", appauthor=False)) / "launch" / "continue.yaml"
    return Start(["cn", "--config", str(ours)], {}, File(ours, _continue_text(place)))


def _continue_file(place: LaunchContext) -> File:
    return File(Path.home() / ".continue" / "config.yaml", _continue_text(place))


def _open_webui(place: LaunchContext) -> Start:
    environment = {"OLLAMA_BASE_URL": place.url, "DEFAULT_MODELS": place.model}
    if place.key != NO_KEY:
        # Its key for Ollama is a setting of its pages; for OpenAI's API it is a variable.
        environment |= {"OPENAI_API_BASE_URL": f"{place.url}/v1", "OPENAI_API_KEY": place.key,
                        "ENABLE_OLLAMA_API": "false"}  # fmt: skip
    return Start(["open-webui", "serve"], environment)


TOOLS = {
    "claude": CodingTool("Claude Code", "npm install -g @anthropic-ai/claude-code", _claude, _claude_file),
    "codex": CodingTool("Codex", "npm install -g @openai/codex", _codex, _codex_file),
    "opencode": CodingTool("opencode", "npm install -g opencode-ai", _opencode, _opencode_file),
    "aider": CodingTool("aider", "pip install aider-chat", _aider, _aider_file, context=0),
    "continue": CodingTool("Continue", "npm install -g @continuedev/cli", _continue, _continue_file),
    "open-webui": CodingTool("Open WebUI", "pip install open-webui", _open_webui, context=0),
}
