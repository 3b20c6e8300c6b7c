"""Request bodies are read as Go reads them, and refused in Go's words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.protocols.ollama import gojson
from omlx.protocols.ollama import models as models_wire
from omlx.protocols.ollama import wire as wire


def test_keys_match_in_any_case_and_the_later_duplicate_wins() -> None:
    asked = gojson.decode(
        b'{"MODEL":"a","model":"b","Messages":[{"ROLE":"user","Content":"hi"}],"STREAM":false}', wire.ChatRequest
    )
    assert asked.model == "b"
    assert not asked.stream
    assert asked.messages == [wire.OllamaMessage(role="user", content="hi")]


def test_null_and_unknown_keys_and_trailing_bytes_do_not_count() -> None:
    body = (
        b' {"model":"a","stream":null,"options":null,"tools":null,"keep_alive":null,"format":null,"x":[1]} {"model":"b"'
    )
    assert gojson.decode(body, wire.ChatRequest) == wire.ChatRequest(model="a")


def test_broken_characters_are_replaced_not_refused() -> None:
    assert gojson.decode(b'{"model":"\xffx"}', wire.ChatRequest).model == "\ufffdx"
    assert gojson.decode(b'{"model":"\\ud800x"}', wire.ChatRequest).model == "\ufffdx"
    assert gojson.decode(b'{"model":"\\ud83d\\ude00"}', wire.ChatRequest).model == "😀"
    both = gojson.decode(rb'{"model":"\\ud800 \ud800\ud83d\uDE00\udc00\n"} {', wire.ChatRequest)
    assert both.model == "\\ud800 \ufffd😀\ufffd\n"


def test_a_null_in_a_list_is_the_empty_value() -> None:
    asked = gojson.decode(b'{"messages":[null,{"content":"x"}],"tools":[null]}', wire.ChatRequest)
    assert asked.messages == [wire.OllamaMessage(), wire.OllamaMessage(content="x")]
    assert asked.tools == [{"type": "", "function": {"name": "", "parameters": {"type": "", "properties": {}}}}]


def test_of_a_tool_ollamas_fields_and_its_whole_schema_are_kept_in_the_clients_order() -> None:
    body = {"tools": [{"type": "function", "strict": True, "function": {"NAME": "f", "parameters": {
        "type": "object", "additionalProperties": False,
        "properties": {"b": {"type": ["string"], "minLength": 1, "enum": ["x"]}, "a": {"anyOf": [{"type": "integer"}]}},
        "required": ["b"],
    }}}]}  # fmt: skip
    (tool,) = gojson.decode(json.dumps(body).encode(), wire.ChatRequest).tools
    assert json.dumps(tool) == json.dumps({"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "additionalProperties": False,
        "properties": {"b": {"type": ["string"], "minLength": 1, "enum": ["x"]}, "a": {"anyOf": [{"type": "integer"}]}},
        "required": ["b"],
    }}})  # fmt: skip


@pytest.mark.parametrize("body", [b"", b" \r\n\t"])
def test_an_empty_body_is_told_apart(body: bytes) -> None:
    with pytest.raises(gojson.EmptyBody, match=r"\Amissing request body\Z"):
        gojson.decode(body, wire.ChatRequest)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "unexpected EOF"),
        (b'{"model":"a', "unexpected EOF"),
        (b"hello", "invalid character 'h' looking for beginning of value"),
        (b"{'a':1}", "invalid character '\\'' looking for beginning of object key string"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        (b'{"a":"\x01"}', "invalid character '\\x01' in string literal"),
        (b'{"a":NaN}', "invalid character 'N' looking for beginning of value"),
        (b'{"a":' + b"9" * 5000 + b"}", "json: cannot unmarshal number: it is out of range"),
        (b'{"a":1e999}', "json: cannot unmarshal number: it is out of range"),
        (b"[" * 5000 + b"]" * 5000, "exceeded max depth"),
        (b"[]", "json: cannot unmarshal array into Go value of type api.ChatRequest"),
        (b'"x"', "json: cannot unmarshal string into Go value of type api.ChatRequest"),
        (b'{"model":1}', "json: cannot unmarshal number into Go struct field ChatRequest.model of type string"),
        (b'{"stream":"no"}', "json: cannot unmarshal string into Go struct field ChatRequest.stream of type bool"),
        (b'{"top_logprobs":1.5}',
         "json: cannot unmarshal number 1.5 into Go struct field ChatRequest.top_logprobs of type int"),
        (b'{"options":[]}',
         "json: cannot unmarshal array into Go struct field ChatRequest.options of type map[string]interface {}"),
        (b'{"messages":"x"}',
         "json: cannot unmarshal string into Go struct field ChatRequest.messages of type []api.Message"),
        (b'{"messages":[{"content":[{"type":"text"}]}]}',
         "json: cannot unmarshal array into Go struct field ChatRequest.messages of type string"),
        (b'{"messages":[{"tool_calls":[{"function":{"arguments":"{}"}}]}]}',
         "json: cannot unmarshal string into Go struct field ChatRequest.messages"
         " of type api.ToolCallFunctionArguments"),
        (b'{"messages":[{"images":["' + b"A" * 1048574 + b'==AAAA"]}]}', "illegal base64 data at input byte 1048574"),
        (b'{"messages":[{"images":["a b="]}]}', "illegal base64 data at input byte 1"),
        (b'{"messages":[{"images":["data:image/png;base64,aGk="]}]}', "illegal base64 data at input byte 4"),
        (b'{"think":"banana"}',
         'invalid think value: "banana" (must be "high", "medium", "low", "max", true, or false)'),
        (b'{"think":[]}', 'think must be a boolean or string ("high", "medium", "low", "max", true, or false)'),
        (b'{"keep_alive":"banana"}', 'time: invalid duration "banana"'),
        (b'{"keep_alive":"1d"}', 'time: unknown unit "d" in duration "1d"'),
        (b'{"keep_alive":true}', "Unsupported type: 'bool'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_gos_words(body: bytes, message: str) -> None:
    with pytest.raises(gojson.Malformed) as caught:
        gojson.decode(body, wire.ChatRequest)
    assert str(caught.value) == message


def test_base64_may_have_line_breaks() -> None:
    asked = gojson.decode(b'{"images":["aGVs\\nbG8=\\r\\n"]}', wire.OllamaGenerateRequest)
    assert asked.images == [b"hello"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KINDS = [
    wire.OllamaGenerateRequest,
    wire.ChatRequest,
    wire.EmbedRequest,
    models_wire.ShowRequest,
    models_wire.CreateRequest,
]


@given(
    st.sampled_from(_KINDS),
    st.dictionaries(
        st.sampled_from(sorted({name for kind in _KINDS for name in kind.__struct_encode_fields__})), _JSON
    ),
)
def test_any_json_object_is_read_or_refused(kind: type[Any], body: dict[str, Any]) -> None:
    try:
        assert isinstance(gojson.decode(json.dumps(body).encode(), kind), kind)
    except gojson.Malformed as error:
        assert str(error)


@given(st.binary(max_size=64), st.sampled_from([b"", b"{", b'{"model":', b'{"model":"m"}', b'["']))
def test_any_bytes_are_read_or_refused(tail: bytes, head: bytes) -> None:
    try:
        gojson.decode(head + tail, wire.OllamaGenerateRequest)
    except gojson.Malformed as error:
        assert str(error)
