"""What tests that send files with a chat message need around it."""

from __future__ import annotations

import base64

import httpx


def text_of(data: bytes) -> str:
    """A file as JSON carries it."""
    return base64.b64encode(data).decode()


def content(answer: httpx.Response) -> str:
    """What the model said, in Ollama's form of a whole answer."""
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["message"]["content"]
    return found
