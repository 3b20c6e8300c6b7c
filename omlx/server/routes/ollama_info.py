"""What the server is and which models it has: /, version, status, tags, ps, show."""

from __future__ import annotations

import asyncio

from litestar import HttpMethod, get, post, route
from omlx_registry import Details, ModelShow, ModelSpec, NotFound, commit_of

from omlx import __version__
from omlx.pool import SlotSnapshot
from omlx.protocols.http_error import HTTPError
from omlx.protocols.ollama import models as models_wire
from omlx.protocols.ollama.translate import local_time
from omlx.record import current
from omlx.server.body import read_json
from omlx.server.dashboard import page
from omlx.server.dependencies import GivenPool, GivenRegistry, GivenSettings, HttpRequest
from omlx.server.names import refuse_cloud, required, single_quoted
from omlx.server.route_info import route_opt
from omlx.server.stream import Answer, Complete, as_json

_READ = [HttpMethod.GET, HttpMethod.HEAD]
PROJECT_HEADER = "x-omlx-version"


@route("/", http_method=_READ, status_code=200, opt=route_opt("omlx", needs_key=False))
async def root(request: HttpRequest) -> Answer:
    """The dashboard for a browser, Ollama's words for everybody else."""
    if "text/html" in request.headers.get("accept", ""):
        return page()
    headers = ((PROJECT_HEADER, __version__), ("vary", "Accept"))
    return Complete(b"Ollama is running", content_type="text/plain; charset=utf-8", headers=headers)


@route("/api/version", http_method=_READ, status_code=200, opt=route_opt("ollama", needs_key=False))
async def version(settings: GivenSettings) -> Answer:
    """The Ollama version this server is compatible with (clients compare it), and its own."""
    body = models_wire.VersionResponse(settings.ollama_version, __version__)
    return as_json(body, headers=((PROJECT_HEADER, __version__),))


@get("/api/status", opt=route_opt("ollama"))
async def status() -> Answer:
    return as_json(models_wire.CloudStatusResponse(models_wire.CloudStatus(disabled=True, source="env")))


@route("/api/tags", http_method=_READ, status_code=200, opt=route_opt("ollama", "tags"))
async def tags(registry: GivenRegistry) -> Answer:
    specs = await asyncio.to_thread(registry.list)
    return as_json(models_wire.ListResponse([_listed(spec) for spec in specs]))


@get("/api/ps", opt=route_opt("ollama", "running"))
async def ps(pool: GivenPool) -> Answer:
    """The loaded models, the one that stays longest first; one that is just being unloaded counts as gone."""
    return as_json(models_wire.ProcessResponse([_loaded(model) for model in pool.loaded() if model.state != "leaving"]))


@post("/api/show", status_code=200, opt=route_opt("ollama", "passed"))
async def show(request: HttpRequest, registry: GivenRegistry, pool: GivenPool, settings: GivenSettings) -> Answer:
    body = await read_json(request, models_wire.ShowRequest, settings.max_body)
    name = required(body.wanted)
    current().names(name)
    refuse_cloud(name, "remote model details are unavailable")
    try:
        shown = await asyncio.to_thread(
            registry.show, name, verbose=body.verbose, system=body.system, options=body.options
        )
    except NotFound as error:
        raise HTTPError(404, single_quoted(error.normalized)) from None
    answer = _shown(shown)
    loaded = (model for model in pool.loaded() if model.state != "leaving")
    result = pool.selftest(shown.spec.digest)
    if result is not None:
        answer.capabilities = [name for name in answer.capabilities if name not in result.off]
    checks = pool.load_checks(shown.spec)
    answer.notes = [*(result.notes if result is not None else ()), *(checks.notes if checks is not None else ())]
    answer.weights = next((model.weights for model in loaded if model.spec.digest == shown.spec.digest), "")
    if request.headers.get("user-agent", "").startswith("GitHubCopilotChat/"):
        answer.model_info = {**answer.model_info, "general.basename": name}
    return as_json(answer)


def _listed(spec: ModelSpec) -> models_wire.ListedModel:
    return models_wire.ListedModel(
        name=spec.name,
        model=spec.name,
        modified_at=local_time(spec.modified_at),
        size=spec.size,
        digest=spec.digest,
        details=details(spec.details, context_length=spec.context_length, embedding_length=spec.embedding_length),
        capabilities=spec.capabilities,
    )


def _loaded(model: SlotSnapshot) -> models_wire.ProcessModelResponse:
    shown = details(model.spec.details)
    shown.parent_model = ""
    return models_wire.ProcessModelResponse(
        name=model.spec.name,
        model=model.spec.name,
        size=model.size,
        digest=model.spec.digest,
        details=shown,
        expires_at=local_time(model.expires_at),
        size_vram=model.size_vram,
        context_length=model.context_length,
    )


def _shown(shown: ModelShow) -> models_wire.ShowResponse:
    spec = shown.spec
    repository, commit = commit_of(spec.source)
    return models_wire.ShowResponse(
        repository=repository,
        revision=commit,
        license="\n".join(spec.licenses),
        modelfile=shown.modelfile,
        parameters=shown.parameters_text,
        template=shown.template_text,
        system=spec.system,
        renderer=spec.renderer,
        parser=spec.parser,
        requires=spec.requires,
        details=details(spec.details),
        messages=[models_wire.ShowMessage(item["role"], item["content"]) for item in spec.messages],
        model_info=shown.model_info,
        projector_info=shown.projector_info or {},
        tensors=shown.tensors or [],
        capabilities=spec.capabilities,
        modified_at=local_time(spec.modified_at),
    )


def details(source: Details, *, context_length: int = 0, embedding_length: int = 0) -> models_wire.ModelDetails:
    return models_wire.ModelDetails(
        parent_model=source.parent_model,
        format=source.format,
        family=source.family,
        families=source.families,
        parameter_size=source.parameter_size,
        quantization_level=source.quantization_level,
        context_length=context_length,
        embedding_length=embedding_length,
    )
