"""The *load spec*: what a runner is told to load, and how to run it.

It holds the configuration of the engine and of the KV store as they take it. A field that is a setting has the name of
the setting, where the struct says what it belongs to without its prefix (`StoreConfig.block_size` is
`cache_block_size`). Imported by both sides: nothing here may import MLX.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from omlx_cache.config import StoreConfig

from omlx.messages.load_checks import LoadChecks

Backend = Literal["ring", "jaccl", "mpi", "nccl"]
"""How the processes of a distributed model talk: MLX's names."""
Parallel = Literal["auto", "tensor", "pipeline"]
"""How a model is divided: every layer over all processes, or whole layers to each; auto: the first that it can."""
ModelKind = Literal["generate", "embed", "rerank", "transcribe"]
"""What a runner does with its model."""
RUNNER_OVERHEAD = 300_000_000
"""Bytes of a runner process beside the model: the interpreter, MLX, the tokenizer."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an engine runs its model."""

    context_length: int
    """Context in tokens for requests that ask for none; already clamped to the model's maximum."""
    max_concurrent_requests: int = 8
    """Sequences that are prefilled or decoded at once; the others wait."""
    max_decode_gap: float = 0.1
    """Longest wanted pause of a running sequence during a prefill, in seconds."""
    prompt_lookup: bool = False
    """Guess tokens of lone sequences from their own text, where there is no draft model."""
    warm_up: bool = False
    """Run `Engine.warm_up` at once."""


class LoadSpec(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a runner is told to load: a materialized model folder and how to run it."""

    name: str
    path: str
    fingerprint: str
    """Digest over weights, quantization, tokenizer and KV-relevant config: it keys the KV store."""
    kind: ModelKind = "generate"
    """What the model is for. One that generates can embed too."""
    template: str | None = None
    """Go template from the Modelfile; None: the model's own chat template."""
    adapter_path: str | None = None
    draft_path: str | None = None
    weights: str = "auto"
    tf32: bool = False
    """Round the factors of float32 products on a GPU to TF32."""
    trust_remote_code: bool = False
    memory_bytes: int = 0
    """The most the model, its KV and the process may take together; 0: no limit."""
    vision_cache_max_size: int = 512_000_000
    """Bytes of RAM for image features, in a model that sees."""
    engine: EngineConfig
    store: StoreConfig | None = None
    """None: no prefix caching."""
    checks: LoadChecks | None = None
    """What an earlier load found; made again where they hold for other versions."""
