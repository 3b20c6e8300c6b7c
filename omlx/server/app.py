"""The *application*: Litestar with all routes, their dependencies and the one error handler, behind its middlewares."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple

from litestar import Litestar
from litestar.di import Provide
from omlx_registry import Registry

from omlx.pool import Pool
from omlx.server import error_formats, errors
from omlx.server.body_memory import BodyLimits, BodyMemory
from omlx.server.guards import guarded
from omlx.server.hidden_paths import folders_of_the_program
from omlx.server.hosts import Hosts
from omlx.server.keys import keys_of
from omlx.server.origins import Origins
from omlx.server.request_log import RequestLog
from omlx.server.responses_store import ResponsesStore
from omlx.server.route_info import RouteTable, routes_of
from omlx.server.routes import (
    admin,
    anthropic,
    audio,
    cache,
    dashboard,
    ollama_account,
    ollama_embed,
    ollama_generate,
    ollama_info,
    ollama_models,
    openai,
    openai_responses,
    rerank,
)
from omlx.server.telemetry import Telemetry
from omlx.settings import Settings, bind_address

if TYPE_CHECKING:
    from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Send

HANDLERS: Sequence[ControllerRouterHandler] = (
    *(ollama_info.root, ollama_info.version, ollama_info.status),
    *(ollama_info.tags, ollama_info.ps, ollama_info.show),
    *(ollama_generate.generate, ollama_generate.chat),
    *(ollama_embed.embed, ollama_embed.embeddings, rerank.rerank),
    *(ollama_models.copy, ollama_models.remove, ollama_models.pull, ollama_models.push, ollama_models.create),
    *(ollama_models.has_blob, ollama_models.put_blob),
    *(ollama_account.me, ollama_account.signout, ollama_account.remove_key),
    *(ollama_account.web_search, ollama_account.web_fetch, ollama_account.recommendations),
    *(*openai.HANDLERS, *openai_responses.HANDLERS, *audio.HANDLERS, *anthropic.HANDLERS),
    *(admin.health, admin.ready, admin.omlx_status, admin.aliases, admin.set_alias, admin.search),
    *(
        admin.context,
        admin.importable,
        admin.import_found,
        admin.export,
        admin.export_file,
        admin.pin,
        admin.prune,
        admin.verify,
        admin.selftest,
        admin.outdated,
    ),
    *cache.HANDLERS,
    *dashboard.HANDLERS,
)


class Balancer(NamedTuple):
    """Another application in front of the routes: it answers what other servers are there for."""

    wrap: Callable[[ASGIApp, RouteTable], ASGIApp]
    start: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


class Application:
    """The server as an ASGI application: Litestar (`app`) within its middlewares, of which `stack` is the outermost."""

    def __init__(self, app: Litestar, telemetry: Telemetry, body_memory: BodyMemory, stack: ASGIApp) -> None:
        self.app = app
        self.telemetry = telemetry
        self.body_memory = body_memory
        self._stack = stack

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._stack(scope, receive, send)


def create_app(
    settings: Settings,
    registry: Registry,
    pool: Pool,
    address: str = "127.0.0.1",
    balancer: Balancer | None = None,
) -> Application:
    """The whole server as one ASGI application; its lifespan starts and closes the pool. `address`: the IP address of
    the socket that it listens on.

    Raises OriginError where `settings.origins` holds an entry that cannot be used.
    """
    errors.hide_paths([settings.models, settings.paged_ssd_cache_dir, gettempdir(), *folders_of_the_program()])
    responses, telemetry = ResponsesStore(), Telemetry(settings, registry, pool)
    origins, hosts = Origins(settings.origins), Hosts(address, bind_address(settings)[0])
    with _hidden("pydantic", "attrs"):
        app = Litestar(
            route_handlers=list(HANDLERS),
            dependencies={
                "registry": Provide(lambda: registry, sync_to_thread=False),
                "pool": Provide(lambda: pool, sync_to_thread=False),
                "settings": Provide(lambda: settings, sync_to_thread=False),
                "telemetry": Provide(lambda: telemetry, sync_to_thread=False),
                "responses": Provide(lambda: responses, sync_to_thread=False),
            },
            exception_handlers={Exception: error_formats.answer},
            on_startup=[pool.start, telemetry.start, *([balancer.start] if balancer else [])],
            on_shutdown=[*([balancer.close] if balancer else []), telemetry.close, pool.close],
            openapi_config=None,
            logging_config=None,
        )
    routes, body_memory = RouteTable(routes_of(app)), BodyMemory(settings.max_body)
    inner = balancer.wrap(app, routes) if balancer else app
    inner = guarded(inner, origins=origins, hosts=hosts, keys=keys_of(settings), routes=routes)
    return Application(app, telemetry, body_memory, RequestLog(BodyLimits(inner, body_memory), routes, telemetry))


@contextmanager
def _hidden(*modules: str) -> Iterator[None]:
    """Litestar imports pydantic and attrs where it finds them: a sixth of the start, for types no route here has."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    # None makes `import` say that there is no such module.
    sys.modules.update(dict.fromkeys(modules))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(before)
