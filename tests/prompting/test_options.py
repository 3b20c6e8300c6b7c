"""Ollama options become sampling and limits, with Ollama's defaults, precedence and refusals."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omlx_registry.errors import ModelfileError
from omlx_registry.modelfile import parse_parameter
from omlx_registry.options import NO_EFFECT, OPTIONS

from omlx.cli import repl_help
from omlx.messages.request import Limits, Sampling
from omlx.protocols.options import OptionError, parse_options


def test_no_options_are_ollamas_defaults() -> None:
    assert parse_options(None) == parse_options({}) == (Sampling(), Limits())


def test_request_beats_modelfile_beats_default() -> None:
    sampling, limits = parse_options(
        {"temperature": 0.1, "stop": ["A"], "top_k": None},
        {"temperature": 0.5, "top_k": 7, "stop": ["B"], "num_ctx": 2048, "license": 3},
    )
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.1, 7, 0.9)
    assert limits.stop == ["A"]
    assert limits.num_ctx == 2048


def test_a_modelfile_may_hold_one_stop_string() -> None:
    assert parse_options(None, {"stop": "END"}).limits.stop == ["END"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_predict": "4"}, 'option "num_predict" must be of type integer'),
        ({"top_k": True}, 'option "top_k" must be of type integer'),
        ({"main_gpu": "0"}, 'option "main_gpu" must be of type integer'),
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"temperature": []}, 'option "temperature" must be of type float32'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": ["x", 1]}, 'option "stop" must be of an array of strings'),
    ],
)
def test_wrong_types_are_refused_with_ollamas_text(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"num_predict": 4.9}, "num_predict", 4),
        ({"num_predict": -7}, "num_predict", -1),
        ({"num_predict": -2}, "num_predict", -2),
        ({"num_predict": 0}, "num_predict", 0),
        ({"think_budget": 256.5}, "think_budget", 256),
        ({"think_budget": -9}, "think_budget", -1),
        ({"num_ctx": 1}, "num_ctx", 4),
        ({"num_ctx": -5}, "num_ctx", 0),
        ({"seed": -1}, "seed", None),
        ({"seed": 0}, "seed", 0),
        ({"seed": 42.0}, "seed", 42),
        ({"temperature": 1}, "temperature", 1.0),
        ({"temperature": -1}, "temperature", 0.0),
        ({"top_k": -3}, "top_k", 0),
        ({"repeat_last_n": -9}, "repeat_last_n", -1),
        ({"repeat_penalty": 0}, "repeat_penalty", 1.0),
        ({"top_p": 5}, "top_p", 1.0),
        ({"mirostat": 2}, "mirostat", 2),
        ({"mirostat": "on"}, "mirostat", 0),
        ({"stop": ["", "x"]}, "stop", ["x"]),
        ({"penalize_newline": "what", "nonsense": {}}, "temperature", 0.8),
    ],
)
def test_values_are_brought_into_the_range_the_engine_knows(options: dict[str, Any], field: str, value: Any) -> None:
    sampling, limits = parse_options(options)
    found = getattr(sampling, field) if field in Sampling.__struct_fields__ else getattr(limits, field)
    assert found == value
    assert type(found) is type(value)


def test_truncate_and_shift_are_passed_on() -> None:
    limits = parse_options({}, truncate=False, shift=False).limits
    assert (limits.truncate, limits.shift) == (False, False)


_NAMES = st.sampled_from(
    ["num_ctx", "num_keep", "seed", "num_predict", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "stop",
     "temperature", "repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat", "use_mmap", "x"]
)  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(_NAMES, _VALUES))
def test_any_json_object_is_taken_or_refused_and_what_is_taken_travels_in_a_frame(options: dict[str, Any]) -> None:
    try:
        parsed = parse_options(options)
    except OptionError:
        return
    for part in parsed:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=type(part)) == part
    json.dumps(msgspec.to_builtins(parsed.sampling), allow_nan=False)


def test_the_table_names_every_field_that_a_request_can_set_with_its_default() -> None:
    set_by_the_protocol = {"logit_bias", "truncate", "shift"}
    fields = {
        **dict(zip(Sampling.__struct_fields__, msgspec.structs.astuple(Sampling()), strict=True)),
        **dict(zip(Limits.__struct_fields__, msgspec.structs.astuple(Limits()), strict=True)),
    }
    defaults = {name: option.default for name, option in OPTIONS.items() if option.note != NO_EFFECT}
    assert defaults == {name: value for name, value in fields.items() if name not in set_by_the_protocol}


def test_a_modelfile_takes_the_same_names_and_types() -> None:
    texts = {"int": ("2", 2), "float": ("0.5", 0.5), "bool": ("true", True), "strings": ("x", "x")}
    for option in OPTIONS.values():
        text, value = texts[option.type]
        if option.parameter:
            assert parse_parameter(option.name, text) == value
        else:
            with pytest.raises(ModelfileError, match=f"unknown parameter '{option.name}'"):
                parse_parameter(option.name, text)


def test_a_session_lists_the_options_that_ollama_lists_with_its_words() -> None:
    lines = repl_help.parameters().splitlines()
    assert lines[0] == "Available Parameters:"
    assert lines[1] == "  /set parameter seed <int>             Random number seed"
    assert lines[8] == "  /set parameter repeat_penalty <float> How strongly to penalize repetitions"
    assert lines[10:] == ["  /set parameter stop <string> <string> ...   Set the stop parameters"]
