"""Everything that reads what others wrote, fed with damaged copies of sound inputs for as long as one likes.

    FUZZ_SECONDS=60 python -m pytest -m slow -s tests/fuzz     an hour: FUZZ_SECONDS=400

`FUZZ_SECONDS` is the time of each target; each prints how many inputs it tried. An input may be taken or refused
with the error that its reader documents; anything else fails the test and shows the seed that makes the input again.
"""

from __future__ import annotations

import json
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from omlx_registry.errors import RegistryError
from omlx_registry.gguf.container import GgufFile
from omlx_registry.modelfile import interpret, parse_modelfile, print_commands
from omlx_registry.names import parse_name
from omlx_registry.weights import read_header, take_census

from omlx.prompting.errors import TemplateError
from omlx.prompting.gotemplate import GoTemplate
from omlx.prompting.jinja import JinjaTemplate
from omlx.prompting.output import OutputParser
from omlx.protocols.anthropic import wire as anthropic
from omlx.protocols.ollama import gojson
from omlx.protocols.ollama import wire as ollama
from omlx.protocols.openai import wire as openai
from tests.prompting.test_tools import FORMATS, HARMONY, SPOKEN, TOOLS, dialect
from tests.registry.tiny_gguf import make_pair
from tests.support.tiny import DATA
from tests.support.tiny_template import CHATML

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SECONDS = float(os.environ.get("FUZZ_SECONDS", "6"))
ALLOWED = (RegistryError, TemplateError, gojson.Malformed, RecursionError, OverflowError)
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
_WORDS = (b"{{", b"}}", b"{%", b"%}", b'"""', b'"', b"\\", b"\n", b"\x00", b"[", b"]", b"{", b"}", b":", b",", b"null",
          b"1e999", b"-1", b"99999999999999999999999", "é\u2028\ud7ff".encode(), b"\xff\xfe", b"../", b"<think>",
          b"</tool_call>", b"<|channel|>", b"FROM ", b"PARAMETER ", b"range ", b"end")  # fmt: skip
_MESSAGES = [{"role": "user", "content": "Hello"}]


class Target(NamedTuple):
    """A reader and sound inputs of it. `small`: most of an input's meaning is in its first so many bytes."""

    read: Callable[[bytes, Path], object]
    seeds: Callable[[Path], list[bytes]]
    small: int = 0


def mutated(data: bytes, dice: random.Random, small: int) -> bytes:
    """A copy with one to six wounds: flipped, inserted, removed, doubled, or absurd numbers."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        reach = min(len(found), small) if small and dice.random() < 0.8 else len(found)
        at = dice.randrange(reach) if reach else 0
        match dice.randrange(6):
            case 0 if found:
                found[at] = dice.choice(_INTERESTING) if dice.random() < 0.5 else dice.randrange(256)
            case 1:
                found[at:at] = dice.choice(_WORDS) * dice.choice((1, 1, 2, 50))
            case 2:
                del found[at : at + dice.choice((1, 2, 8, 100))]
            case 3:
                found[at:at] = found[at : at + dice.randint(1, 40)]
            case 4:
                found[at : at + 8] = struct.pack("<Q", dice.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
            case _:
                del found[dice.randrange(len(found) + 1) :]
    return bytes(found)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _modelfile(data: bytes, folder: Path) -> None:
    found = parse_modelfile(data)
    interpret(found)
    parse_modelfile(print_commands(found.commands))


def _go_template(data: bytes, folder: Path) -> None:
    GoTemplate(_text(data)).execute({"Messages": _MESSAGES, "System": "s", "Prompt": "p"}, cpu_s=0.5)


def _jinja(data: bytes, folder: Path) -> None:
    JinjaTemplate(_text(data), cpu_s=0.5).render({"messages": _MESSAGES, "add_generation_prompt": True})


def _gguf(data: bytes, folder: Path) -> None:
    path = folder / "x.gguf"
    path.write_bytes(data)
    with GgufFile(path):
        pass


def _safetensors(data: bytes, folder: Path) -> None:
    path = folder / "x.safetensors"
    path.write_bytes(data)
    take_census(read_header(path), {"quantization": {"bits": 4, "group_size": 64}})


def _spoken(data: bytes, folder: Path) -> None:
    for spoken in (dialect(*FORMATS), HARMONY):
        parser = OutputParser(spoken, tools=TOOLS, opens_thinking=False, new_id=lambda: "1")
        parser.feed(_text(data))
        parser.finish()


def _body(kind: type[Any]) -> Callable[[bytes, Path], None]:
    def read(data: bytes, folder: Path) -> None:
        gojson.decode(data, kind)

    return read


def _bodies(folder: Path) -> list[bytes]:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    bodies: list[dict[str, Any]] = [
        {"model": "m", "messages": _MESSAGES, "tools": tools, "format": {"type": "object"}, "keep_alive": "5m"},
        {"model": "m", "prompt": "p", "options": {"num_ctx": 5, "stop": ["a"]}, "images": ["aGk="], "think": "low"},
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 1},
    ]
    return [json.dumps(body).encode() for body in bodies]


def _weights(folder: Path) -> list[bytes]:
    header = {
        "a.weight": {"dtype": "U32", "shape": [8, 4], "data_offsets": [0, 128]},
        "a.scales": {"dtype": "F16", "shape": [8, 1], "data_offsets": [128, 144]},
        "__metadata__": {"format": "mlx"},
    }
    encoded = json.dumps(header).encode()
    return [struct.pack("<Q", len(encoded)) + encoded + bytes(144)]


def _gguf_files(folder: Path) -> list[bytes]:
    return [make_pair(folder, "llama", num_hidden_layers=1)[1].read_bytes()]


def _go_templates(folder: Path) -> list[bytes]:
    return [b'{{ if .System }}{{ .System }}{{ end }}{{ range $i, $m := .Messages }}{{ $m.role }}: {{ printf "%s" '
            b'$m.content }}{{ else }}-{{ end }}{{ with .Prompt }}{{ . | len }}{{ end }}']  # fmt: skip


TARGETS = {
    "modelfile": Target(_modelfile, lambda folder: [
        b'FROM x\nPARAMETER stop "a"\nPARAMETER num_ctx 5\nSYSTEM """\nBe kind.\n"""\nTEMPLATE "{{ .Prompt }}"\n'
        b"MESSAGE user hi\nLICENSE free\nADAPTER ./a\nREQUIRES 0.14.0\n"]),
    "name": Target(lambda data, folder: parse_name(_text(data)), lambda folder: [
        b"qwen3:8b", b"hf.co/mlx-community/Qwen3-8B-4bit:latest", b"host:11434/a/b:c", b"https://x.y/a/b"]),
    "go template": Target(_go_template, _go_templates),
    "jinja template": Target(_jinja, lambda folder: [
        CHATML.encode(), (DATA / "taught-qwen3" / "tokenizer_config.json").read_bytes()[:4000]]),
    "gguf": Target(_gguf, _gguf_files, small=3000),
    "safetensors": Target(_safetensors, _weights),
    "model output": Target(_spoken, lambda folder: [case[1].encode() for case in SPOKEN]),
    "ollama chat": Target(_body(ollama.ChatRequest), _bodies),
    "ollama generate": Target(_body(ollama.OllamaGenerateRequest), _bodies),
    "openai chat": Target(_body(openai.ChatCompletionRequest), _bodies),
    "anthropic messages": Target(_body(anthropic.MessagesRequest), _bodies),
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_taken_or_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    seeds = target.seeds(tmp_path)
    end, tried, refused = time.monotonic() + SECONDS, 0, 0
    first = random.SystemRandom().randrange(2**32)
    while time.monotonic() < end:
        dice = random.Random(first + tried)
        data = mutated(dice.choice(seeds), dice, target.small)
        try:
            target.read(data, tmp_path)
        except ALLOWED as error:
            refused += 1
            assert str(error) or isinstance(error, RecursionError)
        except Exception as error:
            raise AssertionError(f"seed {first + tried}, {data[:2000]!r}") from error
        tried += 1
    print(f"\n{name}: {tried} inputs, {refused} refused")
    assert tried > 10
