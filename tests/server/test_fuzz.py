"""No body, however odd, brings out a status or a text that is not documented."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docs.compatibility import ROUTES
from tests.fuzz.known import KNOWN_500
from tests.server.local import MODELS

KINDS: dict[str, tuple[str, type[Any]]] = {
    route.path: (route.methods, route.asked) for route in ROUTES if route.asked is not None
}
OTHERS = [(method, route.path) for route in ROUTES if route.asked is None for method in route.methods.split(", ")]
_scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
_json = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
_digests = st.sampled_from(["", "sha256:1", "sha256:" + "0" * 64, "sha256-" + "f" * 64])
_plausible: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["plain", "thinker", "embedder", "nope", "", "a b", "x:cloud"]),
    "name": st.sampled_from(["", "nope"]),
    "prompt": st.sampled_from(["", "say a", "think a / b", "logprobs"]),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "tool", "?"]), "content": st.sampled_from(["say a", "", "b"])},
            optional={"tool_calls": _json, "thinking": _json, "tool_name": _scalars},
        ),
        max_size=2,
    ),
    "options": st.dictionaries(
        st.sampled_from(["num_ctx", "seed", "stop", "temperature", "top_k", "num_predict", "x"]), _json, max_size=3
    ),
    "keep_alive": st.sampled_from(["5m", "x", -1, 10, "1d", None, [], 1e308]),
    "think": st.sampled_from([True, False, "low", "max", "x", 1, None]),
    "format": st.sampled_from(["json", "", "xml", {"type": "object"}, {}, [], 5, None]),
    "images": st.lists(st.sampled_from(["aGk=", "!", "", None, 5]), max_size=2),
    "source": st.sampled_from(["nope", "", "a b"]),
    "destination": st.sampled_from(["copied", "", "../x"]),
    "from": st.sampled_from(["nope", "", "a b"]),
    "tools": st.lists(
        st.fixed_dictionaries(
            {"type": st.just("function")},
            optional={
                "function": st.fixed_dictionaries(
                    {"name": _scalars}, optional={"parameters": _json, "description": _scalars}
                )
            },
        ),
        max_size=2,
    ),
    "stream": st.booleans(),
    "top_logprobs": st.integers(-2, 22),
    "context": st.lists(st.integers(-3, 10**6), max_size=3),
    "dimensions": st.integers(-2, 5000),
    "files": st.dictionaries(st.sampled_from(["a.gguf", "../a", "m.safetensors", ""]), _digests, max_size=2),
    "adapters": st.dictionaries(st.sampled_from(["a.gguf", "/a", "a.safetensors"]), _digests, max_size=2),
    "draft_files": st.dictionaries(st.sampled_from(["a.gguf", "a.safetensors"]), _digests, max_size=2),
    "parameters": st.dictionaries(st.sampled_from(["stop", "num_ctx", "x", ""]), _json, max_size=2),
    "license": st.sampled_from(["L", ["L", "M"], [], [1], 5]),
    "quantize": st.sampled_from(["", "q4_K_M", "q9", "F16"]),
    "info": st.dictionaries(st.sampled_from(["capabilities", "context_length", "model_family"]), _json, max_size=2),
    "input": st.sampled_from(["a", ["a", "b"], [], None, [1], {"a": 1}]),
}


@st.composite
def _requests(draw: st.DrawFn) -> tuple[str, str, bytes]:
    path = draw(st.sampled_from(sorted(KINDS)))
    method, kind = KINDS[path]
    fields = draw(st.lists(st.sampled_from(kind.__struct_encode_fields__), unique=True, max_size=6))
    body = {name: draw(_plausible.get(name, _json) | _json) for name in dict.fromkeys([*fields, "model"])}
    if method == "DELETE" and str(body["model"]) in MODELS:
        body["model"] = "nope"  # the store is shared with other tests
    return method, path, json.dumps(body).encode()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(_requests())
def test_every_answer_is_documented(http: httpx.Client, asked: tuple[str, str, bytes]) -> None:
    method, path, content = asked
    response = http.request(method, path, content=content)
    assert response.status_code in {200, 400, 403, 404, 500}
    assert "Traceback" not in response.text
    assert "internal error" not in response.text
    if response.status_code != 200:
        (message,) = response.json().values()
        assert isinstance(message, str)
        if response.status_code == 500:
            assert KNOWN_500.match(message), message
    elif response.headers.get("content-type") == "application/x-ndjson":
        assert response.text.endswith("\n")
        assert all(isinstance(json.loads(part), dict) for part in response.text.splitlines())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=80), st.sampled_from([b"", b'{"model":"', b"[", b'{"a":']))
def test_bytes_that_are_no_request_are_refused(http: httpx.Client, path: str, tail: bytes, head: bytes) -> None:
    response = http.request(KINDS[path][0], path, content=head + tail)
    assert response.status_code in {200, 400, 404}
    assert "internal error" not in response.text


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(OTHERS), st.text(max_size=70) | _digests, st.binary(max_size=40))
def test_routes_without_fields_take_any_body(
    http: httpx.Client, route: tuple[str, str], segment: str, content: bytes
) -> None:
    method, path = route
    path = re.sub(r"{\w+}", quote(segment or "x", safe=""), path)
    response = http.request(method, path, content=content)
    assert response.status_code in {200, 201, 400, 401, 403, 404}
    assert "internal error" not in response.text
    assert "Traceback" not in response.text
