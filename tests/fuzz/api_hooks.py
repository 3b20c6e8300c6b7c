"""What schemathesis is told about our API; it loads this file itself (SCHEMATHESIS_HOOKS), without oMLX at hand."""

from __future__ import annotations

import json
import zlib
from typing import Any

import schemathesis

from tests.fuzz.known import KNOWN_500

MODELS = ("taught", "taught", "taught", "copied", "nope")
_KEPT = ("taught", "copied")
_CHANGES = ("/api/delete", "/api/copy", "/api/pull", "/api/push", "/api/omlx/aliases", "/api/omlx/pulls")
"""Routes that take away, bring or rename models: names are left as they come, but for those that others need."""


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Most bodies name a model that is there, and ask for few tokens: else nearly all would end at `not found`."""
    path = context.operation.path
    if not isinstance(body, dict):
        return body
    if path in _CHANGES:
        return {key: "made0" if str(value).lower().startswith(_KEPT) else value for key, value in body.items()}
    dice = zlib.crc32(json.dumps(body, sort_keys=True, default=repr).encode("utf-8", "surrogatepass"))
    if path == "/api/create":
        return {**body, "from": MODELS[dice % len(MODELS)], "model": f"made{dice % 7}"}
    if dice % 10 == 0:
        return body
    body = {**body, "model": MODELS[dice % len(MODELS)]}
    if path in ("/api/generate", "/api/chat"):
        options = body.get("options")
        body["options"] = {**(options if isinstance(options, dict) else {}), "num_predict": dice % 20}
    elif path in ("/v1/chat/completions", "/v1/completions", "/v1/messages"):
        body["max_tokens"] = dice % 20 + 1
    elif path == "/v1/responses":
        body["max_output_tokens"] = dice % 20 + 1
    return body


@schemathesis.check
def an_error_is_defined(context: Any, response: Any, case: Any) -> None:
    """No traceback, no "internal error"; a 500 says what to do in words that are known."""
    text = response.text
    assert "Traceback" not in text
    assert "internal error" not in text
    if response.status_code >= 400 and text and "json" in (response.headers.get("content-type") or [""])[0]:
        told = response.json()
        message = told.get("error", told)
        message = message.get("message", message) if isinstance(message, dict) else message
        assert isinstance(message, str) and message, text
        assert response.status_code != 500 or KNOWN_500.search(message), message
    assert response.status_code not in (501, 502, 504), text
