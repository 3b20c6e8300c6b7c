"""Cloud and account routes: this server behaves as an Ollama whose cloud is switched off and who is not signed in."""

from __future__ import annotations

from litestar import delete, get, post
from litestar.params import FromPath

from omlx.protocols.http_error import HTTPError
from omlx.server.names import CLOUD_OFF
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, as_json

_NOT_SIGNED_IN = "you are not currently signed in"


@post("/api/me", opt=route_opt("ollama"))
async def me() -> Answer:
    raise HTTPError(401, "unauthorized")


@post("/api/signout", opt=route_opt("ollama"))
async def signout() -> Answer:
    raise HTTPError(401, _NOT_SIGNED_IN)


@delete("/api/user/keys/{key:str}", status_code=200, opt=route_opt("ollama"))
async def remove_key(key: FromPath[str]) -> Answer:
    raise HTTPError(401, _NOT_SIGNED_IN)


@post("/api/experimental/web_search", opt=route_opt("ollama"))
async def web_search() -> Answer:
    raise HTTPError(403, f"{CLOUD_OFF}: web search is unavailable")


@post("/api/experimental/web_fetch", opt=route_opt("ollama"))
async def web_fetch() -> Answer:
    raise HTTPError(403, f"{CLOUD_OFF}: web fetch is unavailable")


@get("/api/experimental/model-recommendations", opt=route_opt("ollama"))
async def recommendations() -> Answer:
    return as_json({"recommendations": []})
