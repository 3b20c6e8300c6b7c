"""*Options* are the knobs of one request as Ollama names them: a JSON object that becomes `Sampling` and `Limits`.

Values come from the first of: the request, the model's Modelfile PARAMETERs, Ollama's default. Unknown names are
ignored and null counts as not given. A value of the wrong type is refused with Ollama's own text (clients see it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from omlx.messages.request import Limits, Sampling
from omlx.protocols.http_error import HTTPError

_INTEGERS = frozenset(
    {"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict", "num_keep", "seed",
     "num_predict", "top_k", "repeat_last_n", "think_budget"}
)  # fmt: skip
_FLOATS = frozenset(
    {"top_p", "min_p", "typical_p", "temperature", "repeat_penalty", "presence_penalty", "frequency_penalty"}
)
_BOOLEANS = frozenset({"use_mmap"})
# Ollama dropped these without refusing them, so a wrong type is no error there: it is ignored.
_LENIENT = frozenset({"mirostat", "mirostat_tau", "mirostat_eta"})

_LIMITS = ("num_predict", "num_ctx", "num_keep", "stop", "think_budget", "draft_num_predict")
_INT64 = (1 << 63) - 1
_FLOAT32 = 3.4028234e38
_TINY = 1e-9
MOST_STOPS, MOST_STOP_CHARACTERS = 1000, 100_000
"""Of one request. No client needs that many, and each of them is looked for with every token."""
MIN_CONTEXT = 4
"""Tokens. Ollama's floor for `num_ctx`."""


class OptionError(Exception):
    """An option has a value of the wrong type; the message is Ollama's, which answers it with status 500."""


class Options(NamedTuple):
    """What a request's options come to."""

    sampling: Sampling
    limits: Limits


def parse_options(
    options: Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None = None,
    *,
    truncate: bool = True,
    shift: bool = True,
) -> Options:
    """Sampling and limits of a request.

    `options` is the request's object as JSON gives it, `parameters` the Modelfile's (there `stop` may be one string);
    `truncate` and `shift` are the request fields of the same name. Raises OptionError, HTTPError.
    """
    values = {**_checked(_stop_as_list(parameters or {})), **_checked(options or {})}
    return Options(_sampling(values), _limits(values, truncate=truncate, shift=shift))


def _stop_as_list(parameters: Mapping[str, Any]) -> dict[str, Any]:
    stop = parameters.get("stop")
    return {**parameters, "stop": [stop]} if isinstance(stop, str) else dict(parameters)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The known, non-null options, each with the type it is used with."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _INTEGERS:
            values[name] = _integer(value) if number else _refuse(name, "integer")
        elif name in _FLOATS:
            values[name] = _float(value) if number else _refuse(name, "float32")
        elif name in _BOOLEANS:
            values[name] = value if isinstance(value, bool) else _refuse(name, "boolean")
        elif name == "stop":
            values[name] = _strings(value) if isinstance(value, list | tuple) else _refuse(name, "array")
        elif name in _LENIENT and number:
            values[name] = _float(value)
    return values


def _refuse(name: str, kind: str) -> Any:
    raise OptionError(f'option "{name}" must be of type {kind}')


def _strings(value: list[Any] | tuple[Any, ...]) -> list[str]:
    if not all(isinstance(item, str) for item in value):
        raise OptionError('option "stop" must be of an array of strings')
    # An empty stop string would match before the first token.
    stops = [item for item in value if item]
    if len(stops) > MOST_STOPS or sum(map(len, stops)) > MOST_STOP_CHARACTERS:
        raise HTTPError(
            400, f"stop may hold at most {MOST_STOPS} strings, of {MOST_STOP_CHARACTERS} characters together"
        )
    return stops


def _integer(value: int | float) -> int:
    """Truncated towards zero; out-of-range numbers (they must fit a frame) become the nearest that fits."""
    if value != value:  # NaN
        return 0
    return int(max(-_INT64, min(_INT64, value)))


def _float(value: int | float) -> float:
    return float(max(-_FLOAT32, min(_FLOAT32, value))) if value == value else 0.0


def _sampling(values: Mapping[str, Any]) -> Sampling:
    given = {name: values[name] for name in Sampling.__struct_fields__ if name in values}
    if "seed" in given:
        # Ollama's random seed is -1; any other negative number is a seed like any other.
        given["seed"] = None if given["seed"] == -1 else given["seed"] % (1 << 63)
    if "temperature" in given:
        given["temperature"] = max(0.0, given["temperature"])
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    if "min_p" in given:
        given["min_p"] = min(1.0, max(0.0, given["min_p"]))
    for name in ("top_p", "typical_p"):
        if name in given:
            # A share of 0 keeps the most likely token only, as in llama.cpp; 1 keeps all.
            given[name] = min(1.0, max(_TINY, given[name]))
    if given.get("repeat_penalty", 1.0) <= 0:
        given["repeat_penalty"] = 1.0
    if "repeat_last_n" in given:
        given["repeat_last_n"] = max(-1, given["repeat_last_n"])
    if "mirostat" in given:
        given["mirostat"] = int(given["mirostat"]) if given["mirostat"] in {1.0, 2.0} else 0
    return Sampling(**given)


def _limits(values: Mapping[str, Any], *, truncate: bool, shift: bool) -> Limits:
    given = {name: values[name] for name in _LIMITS if name in values}
    if given.get("num_predict", 0) < -2:
        given["num_predict"] = -1
    if "num_ctx" in given:
        given["num_ctx"] = max(MIN_CONTEXT, given["num_ctx"]) if given["num_ctx"] > 0 else 0
    if "think_budget" in given:
        given["think_budget"] = max(-1, given["think_budget"])
    if "num_keep" in given:
        given["num_keep"] = max(-1, given["num_keep"])
    if "draft_num_predict" in given:
        given["draft_num_predict"] = max(0, given["draft_num_predict"])
    return Limits(truncate=truncate, shift=shift, **given)
