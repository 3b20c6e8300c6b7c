"""/health (the process lives) and /ready (a model can make progress): two questions with different answers."""

from __future__ import annotations

from litestar import get

from omlx.server.given import GivenPool, GivenSettings
from omlx.server.stream import Answer, as_json


@get("/health")
async def health() -> Answer:
    return as_json({"status": "ok"})


@get("/ready")
async def ready(pool: GivenPool, settings: GivenSettings) -> Answer:
    """503 while a request would be turned away at once; a server without any loaded model is ready to load one."""
    full = pool.waiting >= settings.max_queue
    body = {
        "status": "busy" if full else "ready",
        "waiting": pool.waiting,
        "models": [{"name": model.spec.name, "state": model.state} for model in pool.loaded()],
    }
    return as_json(body, status=503 if full else 200)
