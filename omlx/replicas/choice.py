"""Which replica serves a request: pure functions over what is known of them.

A *replica* is an oMLX or Ollama server with full copies of its models. A conversation goes back to the replica that
has its beginning cached, unless that one has clearly more to do than the others. The choice needs no memory: the
replica with the highest hash of (its URL, the conversation's beginning) is the one (rendezvous hashing). One that
comes or goes moves its own conversations only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from omlx_registry import InvalidName, parse_name

_BEGINNING = 4096
"""Bytes of a conversation's beginning that identify it: system prompt and first turn, as far as they go."""
_UNEVEN = 1.25
_SPARE = 2
"""A preferred replica may have so many times the mean load, and so many requests more."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice is made from. `load`: requests that run or wait there."""

    url: str
    models: Collection[str]
    load: int


class ReplicaRequest(msgspec.Struct, frozen=True):
    """What matters of a request: its model's full name ("" where it names none), and its beginning."""

    model: str = ""
    beginning: bytes = b""


def choose(views: Iterable[View], request: ReplicaRequest) -> View | None:
    """The replica for a request, None where there is none. Where none has the model, any: it knows the right error."""
    everybody = list(views)
    fitting = [view for view in everybody if request.model in view.models] or everybody
    if not fitting:
        return None
    idlest = min(fitting, key=lambda view: (view.load, _weight(view.url, request.beginning)))
    if not request.beginning:
        return idlest
    preferred = max(fitting, key=lambda view: _weight(view.url, request.beginning))
    mean = sum(view.load for view in fitting) / len(fitting)
    return preferred if preferred.load <= mean * _UNEVEN + _SPARE else idlest


def read(body: Any) -> ReplicaRequest:
    """What matters of the JSON value of a body, in whatever dialect; nothing of one that is no object."""
    if not isinstance(body, dict):
        return ReplicaRequest()
    fields = {str(name).lower(): value for name, value in body.items()}
    parts = [fields.get("system"), fields.get("instructions"), _opening(fields)]
    text = msgspec.json.encode([part for part in parts if part])[:_BEGINNING]
    return ReplicaRequest(full_name(fields.get("model")), text if any(parts) else b"")


def full_name(name: Any) -> str:
    """A model's name with everything that may be left out; "" where it is none."""
    try:
        return parse_name(name).full if isinstance(name, str) and name else ""
    except InvalidName:
        return ""


def _opening(fields: dict[str, Any]) -> Any:
    """What all requests of a conversation share: the turns up to the first of a user, or the prompt."""
    turns = fields.get("messages") or fields.get("input")
    if not isinstance(turns, list):
        return turns or fields.get("prompt")
    roles = [turn.get("role") if isinstance(turn, dict) else None for turn in turns]
    return turns[: roles.index("user") + 1] if "user" in roles else turns[:1]


def _weight(url: str, beginning: bytes) -> bytes:
    return hashlib.sha256(url.encode() + b"\0" + beginning).digest()
