"""The *options* of a request, in one table: type, range and default of each, and its texts for help and docs.

A request gives options as a JSON object, a Modelfile as PARAMETERs, a session with `/set parameter`. The names are
Ollama's. The server reads a request by this table, the registry a Modelfile, the CLI prints its help from it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

LEAST_SHARE: Final = 1e-9
"""A share of 0 keeps the most likely token only, as in llama.cpp."""
MOST_STOPS: Final = 1000
MOST_STOP_CHARACTERS: Final = 100_000
"""Of one request. No client needs that many, and each of them is searched for with every token."""
MIN_CONTEXT: Final = 4
"""Tokens. Ollama's floor for `num_ctx`."""

NO_EFFECT: Final = "accepted without effect: MLX decides where and how a model runs"
_DROPPED: Final = "works; Ollama dropped it"


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option. Numbers below `low` or above `high` are taken as that; None: no bound."""

    name: str
    type: Literal["int", "float", "bool", "strings"]
    default: Any = None
    """What a request gets that says nothing; None: nothing is set, or it has no effect."""
    low: float | None = None
    high: float | None = None
    help: str = ""
    """The line of `/set parameter`; "": not listed there."""
    note: str = "same"
    """How it differs from Ollama's, for the docs."""
    lenient: bool = False
    """A value of the wrong type in a request is ignored, not refused."""
    parameter: bool = True
    """A Modelfile may set it."""


OPTIONS: Final[dict[str, Option]] = {
    option.name: option
    for option in (
        Option(name="seed", type="int", help="Random number seed"),
        Option(name="num_predict", type="int", default=-1, help="Max number of tokens to predict"),
        Option(name="top_k", type="int", default=40, low=0, help="Pick from top k num of tokens"),
        Option(
            name="top_p", type="float", default=0.9, low=LEAST_SHARE, high=1,
            help="Pick token based on sum of probabilities",
        ),
        Option(
            name="min_p", type="float", default=0.0, low=0, high=1,
            help="Pick token based on top token probability * min_p",
        ),
        Option(name="num_ctx", type="int", default=0, help="Set the context size"),
        Option(name="temperature", type="float", default=0.8, low=0, help="Set creativity level"),
        Option(name="repeat_penalty", type="float", default=1.0, help="How strongly to penalize repetitions"),
        Option(
            name="repeat_last_n", type="int", default=64, low=-1, help="Set how far back to look for repetitions"
        ),
        Option(
            name="stop", type="strings", default=[], help="Set the stop parameters",
            note="works for every model; Ollama's MLX engine ignores it. "
            f"At most {MOST_STOPS} strings of {MOST_STOP_CHARACTERS} characters together",
        ),
        Option(name="typical_p", type="float", default=1.0, low=LEAST_SHARE, high=1),
        Option(name="presence_penalty", type="float", default=0.0),
        Option(name="frequency_penalty", type="float", default=0.0),
        Option(name="num_keep", type="int", default=4, low=-1),
        Option(name="draft_num_predict", type="int", default=4, low=0),
        Option(
            name="think_budget", type="int", default=-1, low=-1, parameter=False,
            note="oMLX only: most tokens of thinking",
        ),
        Option(name="mirostat", type="int", default=0, lenient=True, note=_DROPPED),
        Option(name="mirostat_tau", type="float", default=5.0, lenient=True, note=_DROPPED),
        Option(name="mirostat_eta", type="float", default=0.1, lenient=True, note=_DROPPED),
        Option(name="num_batch", type="int", note=NO_EFFECT),
        Option(name="num_gpu", type="int", note=NO_EFFECT),
        Option(name="main_gpu", type="int", note=NO_EFFECT),
        Option(name="use_mmap", type="bool", note=NO_EFFECT),
        Option(name="num_thread", type="int", note=NO_EFFECT),
    )
}  # fmt: skip
DEPRECATED: Final = (
    "tfs_z", "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "numa",
)  # fmt: skip
"""Ignored in a request, with a warning in a Modelfile, as in Ollama."""


def stops_excess(stops: list[Any]) -> str:
    """Why these stop strings are too many for a request; "": they are not."""
    if len(stops) <= MOST_STOPS and sum(len(str(stop)) for stop in stops) <= MOST_STOP_CHARACTERS:
        return ""
    return f"stop may hold at most {MOST_STOPS} strings, of {MOST_STOP_CHARACTERS} characters together"
