"""A tag of a GGUF repository means what the Hub's "Use this model" button says it means."""

from __future__ import annotations

import pytest
from omlx_registry import PullError
from omlx_registry.hub.gguf_choice import Choice, choose_gguf, find_models

GB = 10**9
UNSLOTH = {
    "Qwen3-30B-A3B-Q4_K_M.gguf": 18 * GB,
    "Qwen3-30B-A3B-UD-Q4_K_XL.gguf": 17 * GB,
    "Qwen3-30B-A3B-Q8_0.gguf": 32 * GB,
    "Qwen3-30B-A3B-MXFP4_MOE.gguf": 16 * GB,
    "Qwen3-30B-A3B-TQ2_0.gguf": 9 * GB,
    "BF16/Qwen3-30B-A3B-BF16-00001-of-00002.gguf": 40 * GB,
    "BF16/Qwen3-30B-A3B-BF16-00002-of-00002.gguf": 21 * GB,
    "imatrix_unsloth.gguf": GB,
    "README.md": 1,
}


def choose(
    sizes: dict[str, int], tag: str | None, memory: int = 0, repository: str = "org/Qwen3-30B-A3B-GGUF"
) -> Choice:
    choice = choose_gguf(sizes, repository, tag, memory)
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    ("tag", "paths"),
    [
        ("UD-Q4_K_XL", ["Qwen3-30B-A3B-UD-Q4_K_XL.gguf"]),
        ("ud-q4_k_xl", ["Qwen3-30B-A3B-UD-Q4_K_XL.gguf"]),
        ("Q4_K_XL", ["Qwen3-30B-A3B-UD-Q4_K_XL.gguf"]),
        ("q8_0", ["Qwen3-30B-A3B-Q8_0.gguf"]),
        ("MXFP4_MOE", ["Qwen3-30B-A3B-MXFP4_MOE.gguf"]),
        ("TQ2_0", ["Qwen3-30B-A3B-TQ2_0.gguf"]),
        ("Qwen3-30B-A3B-Q8_0.gguf", ["Qwen3-30B-A3B-Q8_0.gguf"]),
        ("qwen3-30b-a3b-q8_0", ["Qwen3-30B-A3B-Q8_0.gguf"]),
        ("BF16", sorted(path for path in UNSLOTH if path.startswith("BF16/"))),
        ("Qwen3-30B-A3B-BF16-00001-of-00002.gguf", sorted(path for path in UNSLOTH if path.startswith("BF16/"))),
        (None, ["Qwen3-30B-A3B-Q4_K_M.gguf"]),
    ],
)  # fmt: skip
def test_a_tag_is_a_kind_or_a_file_name(tag: str | None, paths: list[str]) -> None:
    assert choose(UNSLOTH, tag).files.paths == paths


@pytest.mark.parametrize(
    ("memory", "kind"), [(64 * GB, "Q4_K_M"), (23 * GB, "UD-Q4_K_XL"), (22 * GB, "MXFP4_MOE"), (13 * GB, "TQ2_0")]
)
def test_the_default_is_the_usual_kind_that_fits_the_machine(memory: int, kind: str) -> None:
    choice = choose(UNSLOTH, None, memory)
    assert (choice.files.kind, choice.notes) == (kind, [])


def test_what_does_not_fit_is_said() -> None:
    choice = choose(UNSLOTH, None, 4 * GB)
    assert choice.files.kind == "TQ2_0"
    assert "TQ2_0 takes 9.0 GB, more than this machine has memory for" in choice.notes[0]


def test_an_unknown_kind_lists_those_there_are() -> None:
    with pytest.raises(PullError) as caught:
        choose(UNSLOTH, "Q2_K")
    assert caught.value.message == (
        "pull model manifest: file does not exist: org/Qwen3-30B-A3B-GGUF has no GGUF file of kind Q2_K; it has "
        "TQ2_0, MXFP4_MOE, UD-Q4_K_XL, Q4_K_M, Q8_0, BF16"
    )


@pytest.mark.parametrize(
    ("paths", "chosen"),
    [
        (["X-Q4_K_M.gguf", "X-Q4_K_M-imat.gguf", "X.i1-Q4_K_M.gguf"], "X-Q4_K_M.gguf"),
        (["Tiny-Q4_K_M.gguf", "mtp-Q4_K_M.gguf"], "Tiny-Q4_K_M.gguf"),
        (["Other-Q4_K_M.gguf", "X-Q4_K_M.gguf"], "X-Q4_K_M.gguf"),
        (["x.Q4_K_M.gguf", "other.Q4_K_M.gguf"], "x.Q4_K_M.gguf"),
    ],
)
def test_several_files_of_one_kind_are_no_split(paths: list[str], chosen: str) -> None:
    assert choose(dict.fromkeys(paths, 1), "Q4_K_M", repository="org/X-GGUF").files.paths == [chosen]


def test_two_models_of_one_kind_are_listed() -> None:
    with pytest.raises(PullError, match=r"several models of kind Q8_0: name one of them .*: A-Q8_0.gguf, B-Q8_0.gguf"):
        choose({"A-Q8_0.gguf": 1, "B-Q8_0.gguf": 1}, "Q8_0", repository="org/X-GGUF")


def test_a_missing_part_is_said() -> None:
    with pytest.raises(PullError, match=r"has 1 of the 3 parts of X-Q8_0\.gguf"):
        choose({"X-Q8_0-00002-of-00003.gguf": 1}, "Q8_0")


def test_a_projector_is_named_and_no_model() -> None:
    choice = choose({"X-Q8_0.gguf": 5, "mmproj-X-F16.gguf": 1}, None)
    assert choice.files.paths == ["X-Q8_0.gguf"]
    assert choice.notes == ["mmproj-X-F16.gguf is not used: a GGUF model reads text only"]
    assert find_models({"mmproj-X-F16.gguf": 1, "X.mmproj.gguf": 1}) == []


def test_files_without_a_kind_go_by_their_names() -> None:
    assert choose({"only.gguf": 1}, None).files.paths == ["only.gguf"]
    assert choose_gguf({"model.safetensors": 1}, "org/x", None, 0) is None
