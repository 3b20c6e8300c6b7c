"""From what a runner is told to load to what serves it: model, template, KV store, engine, session, vectors.

Every rank of a divided model opens the same (`open_engine`); what a server talks to is prepared on top (`prepare`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from omlx_cache import PrefixStore
from omlx_cache.features import FeatureStore
from omlx_registry.templates import ChatTemplates, chat_templates

from omlx.engine import load_checks, tokenization
from omlx.engine.draft.speculative import open_draft
from omlx.engine.encode.embed import chat_embedder
from omlx.engine.engine import Engine
from omlx.engine.jsonfile import read_json
from omlx.engine.loader import LoadedModel, device, load_model
from omlx.engine.precision import use_tf32
from omlx.engine.ranks import Ranks
from omlx.engine.weights import held
from omlx.messages.context import effective_context
from omlx.messages.frames import Loading
from omlx.messages.load_checks import LoadChecks, basis
from omlx.messages.load_spec import RUNNER_OVERHEAD, LoadSpec
from omlx.prompting.jinja import JinjaTemplate
from omlx.prompting.output import OutputDialect, detect_output
from omlx.prompting.template import PromptTemplate
from omlx.runner.channel import Channel
from omlx.runner.encode_jobs import EncodeJobs
from omlx.runner.ledger import Ledger
from omlx.runner.prompt import Prompter, PromptTokenizer, marker_candidates, special_tokens
from omlx.runner.rendering import IsolatedTemplate, Renderers
from omlx.runner.session import Session

_LEAST_KV_BYTES = 64_000_000
"""A model that was let in may always hold this much: a short chat."""
_WARM_BYTES = 256_000_000
"""Most of the recently used prefixes that a load brings back from disk into RAM: a fraction of a second's reading."""
_STOP_COST = 2
"""A restore point of recurrent layers is not placed for fewer tokens than are computed in so many decode steps: it
splits a chunk of the prompt, which costs about one."""
_MOST_STOP_TOKENS = 256
_LEAST_RESTORED = 32
"""On an accelerator shorter prefixes, such as what all prompts of a template begin with, are computed again: that takes
no longer than a decode step, and prompts that start alike share a forward. On a CPU every token costs."""


class BuiltEngine(NamedTuple):
    """A model in memory and the engine that runs it: what every rank of it has."""

    model: LoadedModel
    template: PromptTemplate
    dialect: OutputDialect
    store: PrefixStore | None
    engine: Engine
    checks: LoadChecks
    renderers: Renderers | None
    """Where the model's Jinja template is rendered."""


class BuiltModel(NamedTuple):
    """A model ready to serve and what serves it."""

    model: LoadedModel
    engine: Engine
    session: Session
    ledger: Ledger
    vectors: EncodeJobs
    encoder: PromptTokenizer
    store: PrefixStore | None
    ranks: Ranks
    max_gap_s: float
    """The longest that other work may keep running requests from their next token."""
    checks: LoadChecks


def open_engine(
    spec: LoadSpec, ranks: Ranks, progress: Callable[[int, int], None] = lambda done, total: None
) -> BuiltEngine:
    """Load the model and start its engine: the same on every rank. Raises LoadError."""
    use_tf32(spec.tf32)
    renderers = Renderers() if ranks.rank == 0 and not spec.template else None
    try:
        model = load_model(spec, progress, ranks=ranks)
        template, dialect = read_template(spec, model.tokenizer, renderers)
    except BaseException:
        if renderers is not None:
            renderers.close()
        raise
    # Some models end their turns with tokens that their configuration does not list.
    model.end_tokens.update(model.tokenizer.convert_tokens_to_ids(list(dialect.end_tokens)))
    checks = check(spec, model, ranks, lambda: progress(model.weight_bytes, model.weight_bytes))
    model.can_batch = model.can_batch and checks.passed("batch")
    model.can_prefill_together = model.can_batch and checks.passed("prefill")
    store = open_store(spec, model, ranks) if checks.passed("restore") else None
    config = msgspec.structs.replace(spec.engine, warm_up=device() != "cpu" and ranks.rank == 0)
    if store is not None and model.vision is not None:
        model.vision.cache.tier = FeatureStore(store)
    if store is not None:
        store.warm(min(store.config.hot_bytes // 2, _WARM_BYTES))
    draft = open_draft(spec, model, processes=ranks.size)
    if draft is not None:
        model.draft_bytes = draft.weight_bytes + draft.kv_bytes_per_token * spec.engine.context_length
    return BuiltEngine(model, template, dialect, store, Engine(model, config, store, ranks, draft), checks, renderers)


def check(spec: LoadSpec, model: LoadedModel, ranks: Ranks, progress: Callable[[], None]) -> LoadChecks:
    """What the load checks find: as an earlier load found it, or made now."""
    holds_for = basis(device())
    if spec.checks is not None and load_checks.known(spec.checks, holds_for):
        return spec.checks
    subject = load_checks.CheckedModel(model.model, model.layout, model.vocabulary)
    return load_checks.run(subject, holds_for, ranks, progress)


def prepare(spec: LoadSpec, channel: Channel, ranks: Ranks) -> BuiltModel:
    """Load the model and build what serves it. Raises LoadError."""
    ranks.decide(lambda: spec, LoadSpec)
    model, template, dialect, store, engine, checks, renderers = open_engine(
        spec, ranks, lambda done, total: channel.send(Loading(done, total))
    )
    encoder = PromptTokenizer(model.tokenizer)
    ledger = Ledger(kv_budget(spec.memory_bytes, model), model.kv_bytes_per_token)
    session = Session(
        engine,
        Prompter(
            template,
            encoder,
            vision=model.vision,
            bounded=store is not None and store.wants_boundaries,
            new_request=renderers.new_request if renderers is not None else tokenization.nothing,
        ),
        dialect,
        model.tokenizer.get_added_vocab(),
        ledger=ledger,
        default_context=spec.engine.context_length,
        longest_context=model.max_context,
        wake=channel.wake,
    )
    # An embedding is a forward of its own, which the other ranks would not take part in.
    vectors = open_encode_jobs(spec, model, encoder, channel) if ranks.size == 1 else no_encode_jobs(channel)
    return BuiltModel(
        model, engine, session, ledger, vectors, encoder, store, ranks, spec.engine.max_decode_gap, checks
    )


def no_encode_jobs(channel: Channel) -> EncodeJobs:
    """Embedding requests get their refusal."""
    return EncodeJobs(channel.wake, embedder=None, reranker=None)


def open_encode_jobs(spec: LoadSpec, model: LoadedModel, encoder: PromptTokenizer, channel: Channel) -> EncodeJobs:
    """The embedding jobs of a text generator."""
    limit = effective_context(0, spec.engine.context_length, model.max_context)
    try:
        embedder = chat_embedder(model, lambda text, most: encoder.encode(text, add_special=True, most=most), limit)
    except ValueError:
        return no_encode_jobs(channel)
    return EncodeJobs(channel.wake, embedder=embedder, reranker=None, token_s=model.token_s)


def kv_budget(memory_bytes: int, model: LoadedModel) -> int:
    """Bytes for the KV of running requests: what the model itself leaves of the runner's allowance; 0: no limit."""
    if memory_bytes == 0:
        return 0
    features = model.vision.cache.max_bytes if model.vision is not None else 0
    fixed = model.weight_bytes + model.transient_bytes + model.draft_bytes + features + RUNNER_OVERHEAD
    return max(memory_bytes - fixed, _LEAST_KV_BYTES)


def open_store(spec: LoadSpec, model: LoadedModel, ranks: Ranks) -> PrefixStore | None:
    """The model's KV store, or None where caching is switched off. Each rank keeps what its share computes."""
    if spec.store is None:
        return None
    # What is computed depends on how the weights are held, not only on which they are.
    fingerprint = f"{spec.store.fingerprint} {held(model.weights)}"
    config = msgspec.structs.replace(
        spec.store,
        fingerprint=f"{fingerprint} rank {ranks.rank}" if ranks.size > 1 else fingerprint,
        snapshot_least=min(int(_STOP_COST * model.step_s / model.token_s), _MOST_STOP_TOKENS),
        restore_least=0 if device() == "cpu" else _LEAST_RESTORED,
    )
    return PrefixStore(model.layout, config)


def read_template(
    spec: LoadSpec, tokenizer: Any, renderers: Renderers | None = None
) -> tuple[PromptTemplate, OutputDialect]:
    """How this model reads prompts and marks its output: a Go template from the Modelfile, else its own, else none."""
    templates = _own_templates(Path(spec.path), tokenizer)
    source = spec.template or templates.text
    if spec.template:
        template = PromptTemplate.from_go(spec.template, tokens=marker_candidates(tokenizer))
    elif templates.default:
        names = special_tokens(tokenizer)
        template = PromptTemplate.from_jinja(
            templates.default,
            bos_token=names.pop("bos_token", ""),
            eos_token=names.pop("eos_token", ""),
            variables=names,
            tokens=marker_candidates(tokenizer),
            with_tools=templates.tool_use,
            compiled=JinjaTemplate if renderers is None else partial(IsolatedTemplate, renderers=renderers),
        )
    else:
        template = PromptTemplate.plain(tokens=marker_candidates(tokenizer))
    model_type = read_json(Path(spec.path) / "config.json").get("model_type", "")
    return template, detect_output(source, marker_candidates(tokenizer), model_type)


def _own_templates(folder: Path, tokenizer: Any) -> ChatTemplates:
    """Those among the model's files; a few kinds of tokenizer bring one by themselves."""

    def read(name: str) -> str | None:
        try:
            return (folder / name).read_text("utf-8", errors="replace")
        except OSError:
            return None

    try:
        templates = chat_templates(read)
    except ValueError:
        templates = ChatTemplates()
    own = tokenizer.chat_template
    return templates if templates.default or not isinstance(own, str) else ChatTemplates(own)
