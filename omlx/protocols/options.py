"""*Options* are the knobs of one request as Ollama names them: a JSON object that becomes `Sampling` and `Limits`.

Values come from the first of: the request, the model's Modelfile PARAMETERs, Ollama's default. Unknown names are
ignored and null counts as not given. A value of the wrong type is refused with Ollama's own text (clients see it).
The options themselves are a table, `omlx_registry.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from omlx_registry.options import MIN_CONTEXT, OPTIONS, Option, stops_excess

from omlx.messages.request import Limits, Sampling
from omlx.protocols.http_error import HTTPError

_INT64 = (1 << 63) - 1
_FLOAT32 = 3.4028234e38
_TYPE_NAMES = {"int": "integer", "float": "float32", "bool": "boolean", "strings": "array"}
"""As Ollama's refusals call them."""


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
    """The known, non-null options, each with the type it is used with and within its range."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        option = OPTIONS.get(name)
        if option is None or value is None:
            continue
        if _is_of(value, option.type):
            values[name] = _in_range(_converted(value, option.type), option)
        elif not option.lenient:
            raise OptionError(f'option "{name}" must be of type {_TYPE_NAMES[option.type]}')
    return values


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or kind == "bool":
        return isinstance(value, bool) and kind == "bool"
    return isinstance(value, (list, tuple) if kind == "strings" else (int, float))


def _converted(value: Any, kind: str) -> Any:
    match kind:
        case "int":
            return _integer(value)
        case "float":
            return _float(value)
        case "strings":
            return _strings(value)
    return value


def _in_range(value: Any, option: Option) -> Any:
    if option.low is not None and value < option.low:
        return type(value)(option.low)
    if option.high is not None and value > option.high:
        return type(value)(option.high)
    return value


def _strings(value: list[Any] | tuple[Any, ...]) -> list[str]:
    if not all(isinstance(item, str) for item in value):
        raise OptionError('option "stop" must be of an array of strings')
    # An empty stop string would match before the first token.
    stops = [item for item in value if item]
    if excess := stops_excess(stops):
        raise HTTPError(400, excess)
    return stops


def _integer(value: int | float) -> int:
    """Truncated towards zero; out-of-range numbers (they must fit a frame) become the nearest that fits."""
    if value != value:  # NaN
        return 0
    return int(max(-_INT64, min(_INT64, value)))


def _float(value: int | float) -> float:
    return float(max(-_FLOAT32, min(_FLOAT32, value))) if value == value else 0.0


def _sampling(values: Mapping[str, Any]) -> Sampling:
    fields = {name: values[name] for name in Sampling.__struct_fields__ if name in values}
    if "seed" in fields:
        # Ollama's random seed is -1; any other negative number is a seed like any other.
        fields["seed"] = None if fields["seed"] == -1 else fields["seed"] % (1 << 63)
    if fields.get("repeat_penalty", 1.0) <= 0:
        fields["repeat_penalty"] = 1.0
    if fields.get("mirostat", 0) not in {1, 2}:
        fields.pop("mirostat", None)
    return Sampling(**fields)


def _limits(values: Mapping[str, Any], *, truncate: bool, shift: bool) -> Limits:
    fields = {name: values[name] for name in Limits.__struct_fields__ if name in values}
    if fields.get("num_predict", 0) < -2:
        fields["num_predict"] = -1
    if "num_ctx" in fields:
        fields["num_ctx"] = max(MIN_CONTEXT, fields["num_ctx"]) if fields["num_ctx"] > 0 else 0
    return Limits(truncate=truncate, shift=shift, **fields)
