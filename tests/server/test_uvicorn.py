"""What of uvicorn's own is built on, beyond its public API, is there: a release that changes it fails here first.

pyproject.toml allows no release that this has not been run with.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

ROOT = Path(__file__).parents[2]
METHODS = (
    "connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing",
    "timeout_keep_alive_handler", "on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body",
    "on_message_complete", "on_response_complete", "_start_asgi_task", "_unset_keepalive_if_required",
)  # fmt: skip
ATTRIBUTES = (
    "flow", "headers", "loop", "parser", "pipeline", "timeout_keep_alive_task", "transport", "url", "cycle",
)  # fmt: skip
CYCLE = (
    "scope", "transport", "disconnected", "more_body", "response_complete", "chunked_encoding", "send",
    "expected_content_length",
)  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_extended_is_there(name: str) -> None:
    assert inspect.isfunction(getattr(HttpToolsProtocol, name))


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_of_the_protocol_is_there(name: str) -> None:
    assert re.search(rf"\bself\.{name}\b[^=\n]*=", inspect.getsource(HttpToolsProtocol))


@pytest.mark.parametrize("name", CYCLE)
def test_an_attribute_of_a_request_is_there(name: str) -> None:
    source = inspect.getsource(RequestResponseCycle)
    assert re.search(rf"\bself\.{name}\b[^=\n]*=", source) or hasattr(RequestResponseCycle, name)


def test_reading_is_paused_and_resumed_by_the_flow_control() -> None:
    assert inspect.isfunction(FlowControl.pause_reading) and inspect.isfunction(FlowControl.resume_reading)


def test_no_release_is_allowed_that_is_newer_than_the_one_at_hand() -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    (bound,) = [re.search(r"<0\.(\d+)$", text) for text in dependencies if text.startswith("uvicorn")]
    assert bound is not None, "uvicorn has an upper bound"
    assert int(version("uvicorn").split(".")[1]) == int(bound[1]) - 1
