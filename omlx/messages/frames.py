"""Frames between the server and a runner: msgspec structs with a tag, msgpack, each behind a 4-byte big-endian length.

A *runner* is the process that holds one model; *frames* travel over a Unix socket pair the server creates. Imported
by both sides: nothing here may import MLX.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from omlx.messages.load_checks import LoadChecks
from omlx.messages.load_spec import LoadSpec
from omlx.messages.request import Delta, Failure, Finish, GenerateRequest, Priority
from omlx.messages.speech import Segments, Transcribe, Transcribed
from omlx.messages.work_limits import WorkLimits

MAX_FRAME = 1 << 30
"""Bytes. A longer frame is a protocol error (images travel in frames, so the bound is generous)."""


Backend = Literal["ring", "jaccl", "mpi", "nccl"]
"""How the processes of a distributed model talk: MLX's names."""
Parallel = Literal["auto", "tensor", "pipeline"]
"""How a model is divided: every layer over all processes, or whole layers to each; auto: the first that it can."""


# ---------------------------------------------------------------- server -> runner


class Load(msgspec.Struct, tag="load"):
    spec: LoadSpec


class Generate(msgspec.Struct, tag="generate"):
    request: GenerateRequest


class Embed(msgspec.Struct, tag="embed", kw_only=True, omit_defaults=True):
    id: int = 0
    """Unique within a runner connection; the host assigns it."""
    inputs: Sequence[str | list[int]]
    """Texts, or token ids of the model's own tokenizer without special tokens."""
    truncate: bool = True
    num_ctx: int = 0
    """Tokens of one input at most; 0, or more than the model takes: as many as it takes."""
    dimensions: int = 0
    priority: Priority = "batch"
    trace: str = ""
    """As in GenerateRequest."""


class Rerank(msgspec.Struct, tag="rerank", kw_only=True, omit_defaults=True):
    id: int = 0
    """Unique within a runner connection; the host assigns it."""
    query: str
    documents: list[str]
    priority: Priority = "batch"
    trace: str = ""


class Cancel(msgspec.Struct, tag="cancel"):
    """End request `id` at the next step; the runner answers with nothing."""

    id: int


CacheCall = Literal["stats", "clear", "explain", "checkpoint", "save", "load"]


class CacheOp(msgspec.Struct, tag="cache", kw_only=True, omit_defaults=True):
    """Ask the runner's KV store something; answered by `Reply` with the same id."""

    id: int
    op: CacheCall
    text: str = ""
    """`explain`, `save`: the prompt; "" in `save` is the conversation that was answered last."""
    session: str = ""
    """`save`, `load`: the name of the conversation."""


class HotCacheShare(msgspec.Struct, tag="share", kw_only=True):
    """What this runner may use from now on: models that come and go share one machine. Bytes, as in `LoadSpec`."""

    hot_bytes: int
    memory_bytes: int


RunnerLimits = HotCacheShare | WorkLimits
"""What a runner may use, and how much it may work."""


class GetStats(msgspec.Struct, tag="stats"):
    id: int


class Shutdown(msgspec.Struct, tag="shutdown"):
    """Finish nothing, free the model, exit 0."""


ToRunner = (
    Load | Generate | Embed | Rerank | Transcribe | Cancel | CacheOp | HotCacheShare | WorkLimits | GetStats | Shutdown
)


# ---------------------------------------------------------------- runner -> server
class Hello(msgspec.Struct, tag="hello", omit_defaults=True):
    """Imports are done; the runner waits for `Load`."""

    pid: int
    device: str
    """"cpu", "metal" or "cuda"."""
    blas: str
    """Which BLAS is active, for the log: "openblas (path)", "bundled", "accelerate"."""
    versions: dict[str, str]
    device_memory: int = 0
    """Bytes of device memory that a model may use; 0: the machine's RAM is all there is (CPU)."""


class Loading(msgspec.Struct, tag="loading"):
    """Load progress: `done` of `total` bytes."""

    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", kw_only=True):
    """The model can generate."""

    weights: str
    """What the loader chose, e.g. "float32 (dequantized: CPU)"; for log, show and ps."""
    memory_bytes: int
    """Measured after the load: device memory held by the weights."""
    transient_bytes: int = 0
    """Measured at the load: what a forward over a chunk of a prompt needs beside weights and KV."""
    kv_bytes_per_token: int
    num_ctx: int
    longest_text: int = 0
    """Characters beyond which a text has more tokens than the longest context; 0: not known."""
    checks: LoadChecks | None = None
    """Of a text generator."""


class LoadFailed(msgspec.Struct, tag="load_failed"):
    message: str


class Events(msgspec.Struct, tag="events"):
    """Everything that one engine step has to say, for all requests."""

    items: list[Delta | Finish | Failure]


class PrefillProgress(msgspec.Struct, tag="prefill"):
    """How much of a prompt has been read, in tokens; or of an audio file, in hundredths of a second."""

    id: int
    done: int
    total: int


class Embedded(msgspec.Struct, tag="embedded"):
    """Answer to `Embed`: one row per input, L2-normalised."""

    id: int
    vectors: list[bytes]
    """float32, in the order of this machine: as numbers they would take seconds to encode and to decode."""
    prompt_tokens: int


class Ranked(msgspec.Struct, tag="ranked"):
    id: int
    scores: list[float]
    prompt_tokens: int


class Reply(msgspec.Struct, tag="reply"):
    """Answer to `CacheOp` and `GetStats`."""

    id: int
    body: dict[str, Any]


class PrefixUse(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How often prompts were found in the KV store since the load."""

    lookups: int = 0
    hits: int = 0
    tokens_looked_up: int = 0
    tokens_from_ram: int = 0
    tokens_from_disk: int = 0


class Heartbeat(msgspec.Struct, tag="heartbeat", kw_only=True, omit_defaults=True):
    """Once a second, from the I/O thread: says whether the engine makes *progress*, not only that the process lives."""

    steps: int
    running: int
    waiting: int
    memory_bytes: int
    """What MLX holds: weights, KV, cached prefixes."""
    max_batch: int
    """Largest number of sequences decoded in one step so far."""
    buffer_bytes: int = 0
    """Freed buffers that MLX keeps for the next use."""
    reserved_bytes: int = 0
    """KV that the present requests have been promised."""
    decode_steps: int = 0
    decoded_rows: int = 0
    """Sequences in all decode steps together: over `decode_steps`, the mean batch."""
    tokens_read: int = 0
    """Prompt tokens computed since the load."""
    tokens_generated: int = 0
    guessed: int = 0
    """Tokens guessed since the load, by a draft model or from the text."""
    accepted: int = 0
    """Guesses that were right."""
    prefixes: PrefixUse | None = None
    """None: the model caches no prefixes."""


FromRunner = (
    Hello
    | Loading
    | Ready
    | LoadFailed
    | Events
    | PrefillProgress
    | Embedded
    | Ranked
    | Segments
    | Transcribed
    | Reply
    | Heartbeat
)

_HEADER = struct.Struct(">I")
HEADER_SIZE = _HEADER.size
_encoder = msgspec.msgpack.Encoder()
_to_runner = msgspec.msgpack.Decoder(ToRunner)
_from_runner = msgspec.msgpack.Decoder(FromRunner)


def encode(frame: ToRunner | FromRunner) -> bytes:
    """The frame's wire bytes, length header included."""
    body = _encoder.encode(frame)
    return _HEADER.pack(len(body)) + body


def body_length(header: bytes | bytearray) -> int:
    """Length in bytes of the body behind `header`; ValueError when it exceeds `MAX_FRAME`."""
    (length,) = _HEADER.unpack(header)
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
    return int(length)


def decode_to_runner(body: bytes | bytearray) -> ToRunner:
    return _to_runner.decode(body)


def decode_from_runner(body: bytes | bytearray) -> FromRunner:
    return _from_runner.decode(body)
