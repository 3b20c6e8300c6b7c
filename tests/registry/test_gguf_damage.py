"""Damaged and hostile files: a clear error, never a traceback, and memory that does not follow what a file claims."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omlx_registry.errors import RegistryError
from omlx_registry.gguf.container import GgufError, GgufFile
from omlx_registry.gguf.importer import import_gguf

from tests.registry.tiny_gguf import make_pair


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(tensors: int = 0, metadata: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, metadata)


def tensor(name: bytes, shape: list[int], kind: int, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


STRING, ARRAY = struct.pack("<I", 8), struct.pack("<I", 9)

BROKEN = {
    "is not a GGUF file: it has only": b"GGUF",
    "does not begin with the letters GGUF": b"PK\x03\x04" + bytes(60),
    "GGUF version 1;": header(version=1) + bytes(8),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "claims 18446744073709551615 tensors": header(2**64 - 1),
    "and 4294967296 metadata entries": header(0, 2**32),
    "ends within a metadata key": header(0, 1) + struct.pack("<Q", 2**63) + b"general",
    "ends within metadata 'a'": header(0, 1) + text(b"a") + STRING + struct.pack("<Q", 2**40),
    "has the unknown type 77": header(0, 1) + text(b"a") + struct.pack("<I", 77) + bytes(16),
    "nests arrays more than": header(0, 1) + text(b"a") + ARRAY + (ARRAY + struct.pack("<Q", 1)) * 20,
    "metadata 'a' appears twice": header(0, 2) + (text(b"a") + struct.pack("<IB", 0, 1)) * 2,
    "has 5 dimensions": header(1) + text(b"t") + struct.pack("<I", 5) + bytes(64),
    "is empty": header(1) + tensor(b"t", [0], 0),
    "unsupported type I32": header(1) + tensor(b"t", [32], 26) + bytes(256),
    "unsupported type number 99": header(1) + tensor(b"t", [32], 99) + bytes(256),
    "do not hold whole Q4_0 blocks": header(1) + tensor(b"t", [33], 2) + bytes(256),
    "ends beyond the end of the file": header(1) + tensor(b"t", [1 << 40, 1 << 40], 0),
    "alignment is 0": header(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 0),
}


@pytest.mark.parametrize("sentence", sorted(BROKEN))
def test_a_broken_file_is_named_for_what_is_wrong(sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(BROKEN[sentence])
    with pytest.raises(GgufError, match=sentence):
        GgufFile(path)


@pytest.mark.parametrize("kind", [8, 9, 0, 12])
def test_an_array_that_claims_terabytes_costs_nothing(kind: int, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(header(0, 1) + text(b"a") + ARRAY + struct.pack("<IQ", kind, 2**40) + bytes(4096))
    tracemalloc.start()
    with pytest.raises(GgufError, match="ends within"):
        GgufFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"cannot open .*nowhere\.gguf: No such file"):
        GgufFile(tmp_path / "nowhere.gguf")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    _, path = make_pair(tmp_path_factory.mktemp("sound"), "llama", num_hidden_layers=1)
    return path.read_bytes()


def survives(data: bytes, folder: Path) -> None:
    """Import gives a model or a RegistryError; anything else fails the test."""
    path = folder / "mutated.gguf"
    path.write_bytes(data)
    try:
        import_gguf(path, folder / "out", "keep", lambda done, total: None)
    except RegistryError as error:
        assert len(str(error)) > 10


relaxed = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@relaxed
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_ends_in_an_error(share: float, sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(sound[: int(len(sound) * share)])
    with pytest.raises(GgufError):
        import_gguf(path, tmp_path / "out", "keep", lambda done, total: None)


@relaxed
@given(data=st.data())
def test_flipped_bytes_never_crash_the_import(data: Any, sound: bytes, tmp_path: Path) -> None:
    mutated = bytearray(sound)
    # Most of the structure is in the first and last part of the header; the vocabulary lies between.
    places = st.one_of(st.integers(0, 1200), st.integers(0, 40_000))
    for at in data.draw(st.lists(places, min_size=1, max_size=6)):
        mutated[at % len(sound)] = data.draw(st.integers(0, 255))
    survives(bytes(mutated), tmp_path)


@relaxed
@given(at=st.integers(0, 3000), value=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
def test_absurd_numbers_never_crash_the_import(at: int, value: int, sound: bytes, tmp_path: Path) -> None:
    survives(sound[:at] + struct.pack("<Q", value) + sound[at + 8 :], tmp_path)
