"""docs/troubleshooting.md quotes messages that oMLX really has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FROM_OUTSIDE = {"address already in use", "Failed to connect to bus"}
"""Words of the operating system."""


def quoted() -> list[str]:
    """The messages: code in the first cell of a row."""
    rows = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8").splitlines()
    return [found[1] for row in rows if (found := re.match(r"\| `([^`]+)`", row))]


@pytest.fixture(scope="module")
def texts() -> str:
    """Every text in our code, those that are split over lines in one piece, one below the other."""
    found = []
    for folder in ("omlx", "registry", "cache"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    found.append(
                        "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                    )
    return "\n".join(found)


@pytest.mark.parametrize("message", quoted())
def test_the_message_exists(message: str, texts: str) -> None:
    pieces = [piece.strip(" :.()") for piece in message.split("…")]
    said = [piece for piece in pieces if len(piece) > 3]
    assert said
    for piece in said:
        known = any(piece.endswith(words) for words in FROM_OUTSIDE)
        assert known or piece in texts, piece
