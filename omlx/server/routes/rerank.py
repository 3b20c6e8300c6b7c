"""/v1/rerank, /v2/rerank and /rerank: a query and documents in, scores out."""

from __future__ import annotations

from litestar import post
from omlx_registry import ModelSpec

from omlx.pool import Pool, RequestFailed
from omlx.protocols.http_error import HTTPError
from omlx.protocols.rerank import translate as dialect
from omlx.protocols.rerank import wire as wire
from omlx.server.body import read_json
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.names import required
from omlx.server.resolve_model import served
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, LiveObject, encode


@post(["/v1/rerank", "/v2/rerank", "/rerank"], status_code=200, opt=route_opt("openai", "passed", body="texts"))
async def rerank(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, wire.RerankRequest, settings.max_body)

    def made(spec: ModelSpec) -> Answer:
        query, documents = dialect.read_query(body.query), dialect.read_documents(body.documents)
        dialect.check(body, spec.capabilities)
        return LiveObject(_rank(pool, spec, body, query, documents))

    return await served(registry, required(body.model), made)


async def _rank(pool: Pool, spec: ModelSpec, body: wire.RerankRequest, query: str, documents: list[str]) -> bytes:
    async with await pool.acquire(spec) as lease:
        try:
            ranked = await lease.rerank(query, documents)
        except RequestFailed as failure:
            # As with embeddings, only a dead runner is not the request's fault.
            raise failure if failure.kind == "crashed" else HTTPError(400, failure.message) from None
    return encode(dialect.answer(body, documents, ranked.scores, ranked.prompt_tokens))
