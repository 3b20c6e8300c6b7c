"""Write docs/ollama-compatibility.md: every native route and field, from the routes, the wire structs and the tests.

Which fields exist comes from the structs in `omlx.protocols.ollama.wire`, which of them are proven from the recorded
exchanges in tests/server/golden; what is different from Ollama, and why, stands here. `page` raises where a note
names a route or field that does not exist, or a field is neither in an exchange nor explained. `make docs` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from omlx_registry.options import DEPRECATED, OPTIONS

from omlx.protocols.ollama import models as models_wire
from omlx.protocols.ollama import wire as wire
from omlx.protocols.options import parse_options
from tests.server.goldenfile import FOLDER as GOLDEN
from tests.server.goldenfile import Exchange, read

PAGE = Path(__file__).with_name("ollama-compatibility.md")


class Route(NamedTuple):
    """A native route, what it reads and what it answers; `note` says what is different."""

    methods: str
    path: str
    asked: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.methods} {self.path}"


ROUTES = (
    Route("GET, HEAD", "/", note="the header `x-omlx-version` tells oMLX from Ollama"),
    Route(
        "GET, HEAD",
        "/api/version",
        answer=models_wire.VersionResponse,
        note="`version` is the setting `ollama_version`",
    ),
    Route("GET", "/api/status", answer=models_wire.CloudStatusResponse, note="the cloud is always off"),
    Route("GET, HEAD", "/api/tags", answer=models_wire.ListedModel),
    Route(
        "GET",
        "/api/ps",
        answer=models_wire.ProcessModelResponse,
        note="a model that is being unloaded is left out at once",
    ),
    Route("POST", "/api/show", models_wire.ShowRequest, models_wire.ShowResponse),
    Route("POST", "/api/generate", wire.OllamaGenerateRequest, wire.GenerateResponse),
    Route("POST", "/api/chat", wire.ChatRequest, wire.ChatResponse),
    Route("POST", "/api/embed", wire.EmbedRequest, wire.EmbedResponse),
    Route("POST", "/api/embeddings", wire.EmbeddingRequest, wire.EmbeddingResponse),
    Route("POST", "/api/pull", models_wire.PullRequest, models_wire.StatusLine, "short names mean MLX repositories"),
    Route(
        "POST",
        "/api/push",
        models_wire.PushRequest,
        models_wire.StatusLine,
        "to Hugging Face; there is no account of ollama.com",
    ),
    Route(
        "POST",
        "/api/create",
        models_wire.CreateRequest,
        models_wire.StatusLine,
        "safetensors need no switch; GGUF is converted",
    ),
    Route("POST", "/api/copy", models_wire.CopyRequest),
    Route("DELETE", "/api/delete", models_wire.DeleteRequest),
    Route("HEAD, POST", "/api/blobs/{digest}"),
    Route("POST", "/api/me", note="401: nobody is signed in; without `signin_url`, since nobody can"),
    Route("POST", "/api/signout", note="401: nobody is signed in"),
    Route("DELETE", "/api/user/keys/{key}", note="401: nobody is signed in"),
    Route("POST", "/api/experimental/web_search", note="403: the cloud is off"),
    Route("POST", "/api/experimental/web_fetch", note="403: the cloud is off"),
    Route("GET", "/api/experimental/model-recommendations", note="always an empty list"),
)

_KEEP_ALIVE = "a text without a unit counts as seconds, where Ollama answers 400"
_FORMAT = "works for every model; Ollama's MLX engine ignores it"
_TRUNCATE = (
    "as with GGUF models, and the last question and whole tool calls are kept; "
    "Ollama's MLX engine never shortens a prompt"
)
_KWARGS = "oMLX only: variables for the model's Jinja template, as in vLLM"
_INSECURE = "accepted; pulls and pushes use HTTPS"
DIFFERENT: dict[str, str] = {
    "generate.keep_alive": _KEEP_ALIVE,
    "chat.keep_alive": _KEEP_ALIVE,
    "embed.keep_alive": _KEEP_ALIVE,
    "embeddings.keep_alive": _KEEP_ALIVE,
    "generate.format": _FORMAT,
    "chat.format": _FORMAT,
    "generate.truncate": _TRUNCATE,
    "chat.truncate": _TRUNCATE,
    "generate.context": "works; Ollama's MLX engine refuses it",
    "embed.input": "works for every embedding and chat model; Ollama's MLX engine has no embeddings",
    "pull.insecure": _INSECURE,
    "push.insecure": _INSECURE,
    "create.draft": "oMLX only: a draft model by its name, instead of `draft_files`",
    "create.remote_host": "400: this server runs no remote models",
    "create.quantize": "Ollama's names, and MLX's own (`mxfp4`, `nvfp4`, `int4`, `8bit`)",
    "create.parameters": "not checked here, as in Ollama: a value of a wrong type is told when the model is used (500)",
    "generate.cached_tokens": "oMLX only: tokens of the prompt that came from the KV cache",
    "chat.cached_tokens": "oMLX only: tokens of the prompt that came from the KV cache",
    "generate.think_budget": "oMLX only: most tokens of thinking",
    "chat.think_budget": "oMLX only: most tokens of thinking",
    "generate.chat_template_kwargs": _KWARGS,
    "chat.chat_template_kwargs": _KWARGS,
    "embeddings.truncate": "oMLX only: as in /api/embed",
    **{
        f"{route}.priority": "oMLX only: `interactive`, `batch` or `background`, as the header `X-OMLX-Priority`"
        for route in ("generate", "chat", "embed", "embeddings")
    },
    "version.omlx_version": "oMLX only",
    "show.modelfile": "`FROM` names the model, as Ollama does for safetensors",
    "show.weights": "oMLX only: how the weights of a loaded model are held",
    "show.notes": "oMLX only: what is switched off for this model, and why",
    "show.repository": "oMLX only: the repository on Hugging Face that the model was pulled from",
    "show.revision": "oMLX only: the commit of that repository",
    "pull.revision": "oMLX only: a branch, tag or commit, as in `hf.co/ORG/NAME@REVISION`",
    "tags.details": "always complete; Ollama leaves the family of some MLX models empty",
    "ps.size_vram": "0 on a CPU, else equal to `size`",
}
"""`route.field` → what is not as in Ollama."""

UNSEEN: dict[str, str] = {
    **{
        f"{route}.priority": "tests/server/test_request_headers.py"
        for route in ("generate", "chat", "embed", "embeddings")
    },
    "embeddings.truncate": "tests/server/test_embed.py",
    "generate.chat_template_kwargs": "tests/server/test_template_files.py",
    "chat.chat_template_kwargs": "tests/server/test_template_files.py",
    "show.repository": "tests/cli/test_own_verbs.py",
    "show.revision": "tests/cli/test_own_verbs.py",
    "pull.revision": "tests/registry/test_hub.py",
    "show.notes": "tests/server/test_selftest.py",
    "show.renderer": "tests/registry/test_show.py",
    "show.parser": "tests/registry/test_show.py",
    "show.projector_info": "tests/registry/test_show.py",
    "generate.tool_calls": "only where a parser finds calls that nobody offered: tests/server/test_chat.py",
    "create.digest": "conversions: tests/registry/test_create.py",
    "create.total": "conversions: tests/registry/test_create.py",
    "create.completed": "conversions: tests/registry/test_create.py",
    "push.digest": "pushes to a Hub: tests/registry/test_hub.py",
    "push.total": "pushes to a Hub: tests/registry/test_hub.py",
    "push.completed": "pushes to a Hub: tests/registry/test_hub.py",
}
"""`route.field` that no golden exchange holds → where it is tested instead."""

OTHERWISE = """\
## Elsewhere different, and why

| where | Ollama | oMLX | why |
|---|---|---|---|
| fields `remote_model`, `remote_host` | cloud models | never there | there is no cloud |
| `/v1/models` without models | `data` is null | `[]` | clients iterate over it |
| unknown paths below `/v1/` | `404 page not found` as text | the same in OpenAI's JSON | its clients read JSON only |
| an error in mid-stream on `/v1/*` | the stream ends | an error event | half an answer must not look whole |
| thirty equal tokens in a row | the stream ends without `done` | goes on to its limits | an answer must have an end |
| request bodies | no limit | the setting `max_body`, then 413 | memory is finite |
| an API key | never asked for | with the setting `api_key` | servers on a network |
| errors of loading | engine's text | a sentence that names what to do | |
"""


def page() -> str:
    """The text of the page. ValueError where it would say something that is not so."""
    exchanges = {path.stem: read(path) for path in sorted(GOLDEN.glob("*.txt"))}
    played = [exchange for found in exchanges.values() for exchange in found]
    used: set[str] = set()
    sections = "".join(_fields(route, _of_route(route, played), used) for route in ROUTES)
    if unknown := sorted((set(DIFFERENT) | set(UNSEEN)) - used):
        raise ValueError(f"notes about fields that do not exist, or that an exchange shows by now: {unknown}")
    table = "".join(
        f"| `{route.title}` | {len(_of_route(route, played))} | {route.note or 'same'} |\n" for route in ROUTES
    )
    return f"""# Ollama compatibility

Generated by `make docs` from the wire structs, {len(played)} recorded exchanges (`tests/server/golden`) and the notes
in `docs/compatibility.py`. A test plays every exchange against a real server and compares status, headers and body.
The OpenAI and Anthropic routes are in [api.md](api.md), the commands in [cli.md](cli.md), the environment variables in
[configuration.md](configuration.md).

## Routes

| route | exchanges | difference |
|---|---|---|
{table}
{sections}{_options()}
{OTHERWISE}"""


def _of_route(route: Route, played: list[Exchange]) -> list[Exchange]:
    methods, prefix = route.methods.split(", "), route.path.partition("{")[0]
    return [
        found
        for found in played
        if found.method in methods
        and (found.path.startswith(prefix) if "{" in route.path else found.path.partition("?")[0] == prefix)
    ]


def _fields(route: Route, exchanges: list[Exchange], used: set[str]) -> str:
    if not exchanges:
        raise ValueError(f"no golden exchange of {route.title}")
    sent = {key.lower() for found in exchanges for key in _keys(found.body)}
    got = {key for found in exchanges for key in _keys(found.answer)}
    rows = [_row(route, "request", name, name in sent, used) for name in _names(route.asked)]
    rows += [_row(route, "answer", name, name in got, used) for name in _names(route.answer)]
    if not rows:
        return ""
    return f"### `{route.title}`\n\n| field | in | difference |\n|---|---|---|\n{''.join(rows)}\n"


def _row(route: Route, side: str, name: str, seen: bool, used: set[str]) -> str:
    key = f"{route.path.rpartition('/')[2]}.{name}"
    note = DIFFERENT.get(key)
    if note is not None:
        used.add(key)
    if not seen:
        if key not in UNSEEN:
            raise ValueError(f"no golden exchange of {route.title} has {name!r} in its {side}")
        used.add(key)
    return f"| `{name}` | {side} | {note or 'same'} |\n"


def _names(kind: type[msgspec.Struct] | None) -> tuple[str, ...]:
    return kind.__struct_encode_fields__ if kind is not None else ()


def _keys(text: str) -> Iterator[str]:
    """The keys of all JSON objects in the lines of `text`, at any depth; masks are no JSON, so they are looked for."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield from _inside(json.loads(line))
            except ValueError:
                yield from (part.rpartition('"')[2] for part in line.split('":'))


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _inside(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _inside(inner)


def _options() -> str:
    """Whether an option has an effect is found by giving it."""
    neutral = parse_options({})
    examples: dict[str, Any] = {"int": 1, "float": 0.5, "bool": True, "strings": ["x"]}
    notes = {option.name: option.note for option in OPTIONS.values()}
    rows = ""
    for name, note in {**notes, **dict.fromkeys(DEPRECATED, "accepted without effect, as in Ollama")}.items():
        value = examples[OPTIONS[name].type] if name in OPTIONS else True
        if (parse_options({name: value}) != neutral) == ("without effect" in note):
            raise ValueError(f"the note on option {name} is not so: {note}")
        rows += f"| `{name}` | {note} |\n"
    head = "### `options`\n\nUnknown options are ignored, null is not given.\n\n| option | difference |\n|---|---|\n"
    return head + rows


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
