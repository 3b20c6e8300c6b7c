"""Names people know from Ollama mean an MLX repository; others get near names and a way to search."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from omlx_registry import InvalidName, PullError, RegistryError, catalog_file
from omlx_registry.aliases import Aliases
from omlx_registry.catalog import PullTarget, families, near, resolve, unknown_name
from omlx_registry.catalog_update import update
from omlx_registry.model_files import is_safe_path, is_wanted, select
from omlx_registry.names import parse_name

PROMISED = [
    "llama3.1", "llama3.2", "llama3.3", "qwen2.5", "qwen2.5-coder", "qwen3", "qwen3-coder", "qwen2.5vl", "qwen3-vl",
    "gemma3", "gemma3n", "mistral", "mistral-small", "devstral", "phi4", "phi4-mini", "deepseek-r1", "gpt-oss",
    "smollm2", "granite", "olmo2", "glm4", "nomic-embed-text", "mxbai-embed-large", "all-minilm", "bge-m3",
    "qwen3-embedding", "qwen3-reranker",
]  # fmt: skip

TYPED = [
    "olmo-3", "glm-4.7-flash", "snowflake-arctic-embed", "snowflake-arctic-embed2", "llava", "minicpm-v", "qwen3.6",
    "qwen3-coder-next", "qwen3-next", "ministral-3", "devstral-small-2", "nemotron-3-nano", "mixtral", "qwq", "llama4",
    "llama2", "codellama", "phi3", "phi3.5", "phi4-reasoning", "magistral", "codestral", "mistral-large", "deepseek-v3",
    "deepseek-v3.1", "deepseek-coder", "deepseek-coder-v2", "granite4.1", "smollm3", "lfm2", "command-r", "aya",
    "hermes3", "dolphin3", "falcon3", "tinyllama", "moondream", "functiongemma", "nomic-embed-text-v2-moe",
]  # fmt: skip


@pytest.mark.parametrize("name", PROMISED)
def test_a_name_people_use_with_ollama_resolves(name: str) -> None:
    target = resolve(parse_name(name))
    assert target is not None
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", target.repository)


def test_every_entry_of_the_catalog_is_reachable_and_well_formed() -> None:
    for family, entry in families().items():
        assert bool(entry.refused) != bool(entry.sizes), family
        if entry.refused:
            continue
        assert entry.seen, family
        assert entry.latest in entry.sizes, family
        for size, made in entry.sizes.items():
            assert made.repositories(), (family, size)
            assert resolve(parse_name(f"{family}:{size}")) is not None, (family, size)
            for repository in made.repositories().values():
                assert re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", repository)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("qwen3", PullTarget("mlx-community/Qwen3-8B-4bit")),
        ("whisper", PullTarget("mlx-community/whisper-large-v3-turbo-asr-fp16")),
        ("whisper:tiny", PullTarget("mlx-community/whisper-tiny-asr-fp16")),
        ("whisper:large", PullTarget("mlx-community/whisper-large-v3-asr-fp16")),
        ("whisper:small-q4", PullTarget("mlx-community/whisper-small-asr-4bit")),
        ("QWEN3:0.6B", PullTarget("mlx-community/Qwen3-0.6B-4bit")),
        ("qwen3:8b-q8_0", PullTarget("mlx-community/Qwen3-8B-8bit")),
        ("qwen3:8b-mxfp4", PullTarget("mlx-community/Qwen3-8B-bf16", "mxfp4")),
        ("llama3.1:8b-instruct-q4_K_M", PullTarget("mlx-community/Meta-Llama-3.1-8B-Instruct-4bit")),
        ("llama3.1:8b-instruct-fp16", PullTarget("mlx-community/Meta-Llama-3.1-8B-Instruct-bf16")),
        ("gemma3:4b-it-qat", PullTarget("mlx-community/gemma-3-4b-it-qat-4bit")),
        ("qwen3-embedding:0.6b", PullTarget("Qwen/Qwen3-Embedding-0.6B", capabilities=["embedding"])),
        ("phi4-mini:3.8b-fp16", PullTarget("microsoft/Phi-4-mini-instruct")),
        ("hf.co/Qwen/Qwen3-8B", PullTarget("Qwen/Qwen3-8B")),
        ("hf.co/Qwen/Qwen3-8B:q4", PullTarget("Qwen/Qwen3-8B", "q4")),
        ("huggingface.co/Qwen/Qwen3-8B:8bit", PullTarget("Qwen/Qwen3-8B", "8bit")),
        ("mlx-community/Qwen3-8B-4bit", PullTarget("mlx-community/Qwen3-8B-4bit")),
        ("mistral:7b-instruct-v0.3-q4_K_M", PullTarget("mlx-community/Mistral-7B-Instruct-v0.3-4bit")),
        ("mistral:7b-instruct-v0.2-q4_K_M", None),
        ("mistral:v0.3", PullTarget("mlx-community/Mistral-7B-Instruct-v0.3-4bit")),
        ("all-minilm:l6-v2", PullTarget("sentence-transformers/all-MiniLM-L6-v2")),
        ("all-minilm:l12-v2", PullTarget("sentence-transformers/all-MiniLM-L12-v2")),
        ("all-minilm:v2", None),
        ("llama3.1:8b-instruct-q8_0", PullTarget("mlx-community/Meta-Llama-3.1-8B-Instruct-8bit")),
        ("deepseek-r1:7b-qwen-distill-q8_0", PullTarget("mlx-community/DeepSeek-R1-Distill-Qwen-7B-8bit")),
        ("qwen3:4b-2507", None),
        ("qwen3:4b", PullTarget("mlx-community/Qwen3-4B-Thinking-2507-4bit")),
        ("qwen3:4b-q4_K_M", PullTarget("mlx-community/Qwen3-4B-4bit")),
        ("qwen3:4b-fp16", PullTarget("mlx-community/Qwen3-4B-bf16")),
        ("qwen3:30b", PullTarget("mlx-community/Qwen3-30B-A3B-Thinking-2507-4bit")),
        ("qwen3:235b", PullTarget("mlx-community/Qwen3-235B-A22B-Thinking-2507-4bit")),
        ("qwen3:235b-a22b-q8_0", PullTarget("mlx-community/Qwen3-235B-A22B-8bit")),
        ("gemma4:e2b", PullTarget("mlx-community/gemma-4-e2b-it-4bit")),
        ("gemma4:12b", PullTarget("mlx-community/gemma-4-12B-it-4bit")),
        ("qwen3-coder-next:q8_0", PullTarget("mlx-community/Qwen3-Coder-Next-8bit")),
        ("llama4:scout", PullTarget("mlx-community/Llama-4-Scout-17B-16E-Instruct-4bit")),
        ("tinyllama", PullTarget("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "4bit")),
        ("olmo-3:7b-think-q8_0", PullTarget("allenai/Olmo-3-7B-Think", "q8_0")),
        ("phi3:medium", PullTarget("mlx-community/Phi-3-medium-4k-instruct-4bit")),
        ("qwen3:30b-a3b-q4_K_M", PullTarget("mlx-community/Qwen3-30B-A3B-4bit")),
        ("qwen2.5-coder:7b-base-q4_K_M", None),
        ("qwen3:9b", None),
        ("llama3.1:8b-text", None),
        ("llama3.1:8b-text-q4_0", None),
        ("nothing-like-it", None),
    ],
)
def test_tags_choose_size_and_quantization(name: str, target: PullTarget | None) -> None:
    assert resolve(parse_name(name)) == target


def test_an_unknown_name_suggests_near_ones_and_a_search() -> None:
    assert "llama3" in near(parse_name("lama3"))
    assert "qwen3:8b" in near(parse_name("qwen3:9b"))
    sentence = unknown_name(parse_name("lama3"))
    assert sentence.startswith("pull model manifest: file does not exist")
    assert "omlx search lama3" in sentence


def test_what_has_to_be_known_comes_with_the_name() -> None:
    target = resolve(parse_name("mistral-large"))
    assert target is not None
    assert "2407" in target.note


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("llava", "qwen3-vl"),
        ("parakeet", "whisper"),
        ("qwen3-asr:0.6b", "whisper"),
        ("voxtral", "whisper"),
        ("llava:7b-v1.6-q4_0", "gemma3"),
        ("bakllava", "qwen3-vl"),
        ("minicpm-v:8b", "qwen3-vl"),
        ("moondream", "qwen3-vl:2b"),
        ("llama3.2-vision:11b", "gemma3"),
        ("nomic-embed-text-v2-moe", "bge-m3"),
        ("gpt-oss:120b-cloud", "gpt-oss:120b"),
        ("qwen3-coder:480b-cloud", "qwen3-coder:480b"),
        ("deepseek-v3.1:cloud", "deepseek-v3.1:671b"),
        ("kimi-k2:1t-cloud", "omlx search"),
    ],
)
def test_a_model_that_does_not_run_here_is_refused_with_what_to_use_instead(
    name: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises(PullError) as refused:
        resolve(parse_name(name))
    assert instead in refused.value.message
    with pytest.raises(PullError):
        Aliases(tmp_path / "aliases.json").set("mine", name)


def test_the_catalog_knows_the_names_people_type() -> None:
    assert len(families()) >= 120
    for name in TYPED:
        assert name in families(), name


def test_aliases_are_kept_and_must_mean_something(tmp_path: Path) -> None:
    aliases = Aliases(tmp_path / "omlx" / "aliases.json")
    aliases.set("mine", "hf.co/Qwen/Qwen3-8B:q4")
    again = Aliases(tmp_path / "omlx" / "aliases.json")
    assert again.resolve(parse_name("MINE:latest")) == PullTarget("Qwen/Qwen3-8B", "q4")
    assert again.resolve(parse_name("other")) is None
    with pytest.raises(InvalidName, match="neither in the catalog"):
        aliases.set("mine", "nothing-like-it")
    aliases.remove("mine")
    assert again.all() == {}
    with pytest.raises(InvalidName, match="no alias"):
        aliases.remove("mine")


def test_a_broken_alias_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "aliases.json").write_text("{")
    with pytest.raises(RegistryError, match=r"aliases\.json"):
        Aliases(tmp_path / "aliases.json").all()


# ---------------------------------------------------------------- files of a repository
def test_only_what_a_model_needs_is_taken() -> None:
    paths = [
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
        "consolidated.safetensors", "pytorch_model.bin", "model.onnx", "onnx/model.onnx", "modeling_x.py", "README.md",
        "original/params.json", "1_Pooling/config.json", "2_Dense/model.safetensors",
        "LICENSE", ".gitattributes", "x.pt",
    ]  # fmt: skip
    chosen = select(paths)
    assert set(paths) - set(chosen) == {
        "consolidated.safetensors", "pytorch_model.bin", "model.onnx", "onnx/model.onnx", "modeling_x.py", "README.md",
        "original/params.json", ".gitattributes", "x.pt",
    }  # fmt: skip
    assert chosen[-1].endswith(".safetensors")


@pytest.mark.parametrize(
    "path",
    ["../config.json", "/config.json", "a/../../b.json", "a//b.json", "./a.json", "a\\b.json", "a\0.json", "C:/a.json",
     "a/./b.json", "a/ b.json", "a./b.json", "", "x" * 500 + ".json"],
)  # fmt: skip
def test_a_path_that_could_leave_the_folder_is_never_taken(path: str) -> None:
    assert not is_safe_path(path)
    assert not is_wanted(path)


@given(st.text(max_size=40))
def test_whatever_is_taken_stays_inside(path: str) -> None:
    if is_wanted(path):
        base = Path("/base")
        assert (base / path).resolve().is_relative_to(base)


def test_the_users_own_models_are_suggested_first() -> None:
    own = [parse_name(name) for name in ("ex-pirates", "me/ex-pirate:v2", "qwen3-mine:1b", "unrelated")]
    assert near(parse_name("ex-pirate"), own)[:2] == ["me/ex-pirate:v2", "ex-pirates"]
    assert near(parse_name("qwen3:9b"), own)[0] == "qwen3-mine:1b"
    assert "Did you mean\n    me/ex-pirate:v2\n    ex-pirates\n" in unknown_name(parse_name("ex-pirat"), own)
    assert len(near(parse_name("ex-pirate"), [parse_name(f"ex-pirate{n}") for n in range(9)])) == 3


# ---------------------------------------------------------------- a newer catalog from a publisher
NEWER = """
version = 2999010100
[newcomer]
latest = "1b"
seen = "publisher"
[newcomer.sizes]
"1b" = { files = { "bf16" = "org/newcomer-1b" } }
"""


class Publisher:
    """A key, and files under an address."""

    def __init__(self) -> None:
        self._private = Ed25519PrivateKey.generate()
        self.key = base64.b64encode(self._private.public_key().public_bytes_raw()).decode()
        self.files: dict[str, bytes] = {}

    def publish(self, text: str) -> None:
        self.files = {"u": text.encode(), "u.sig": base64.b64encode(self._private.sign(text.encode()))}

    def fetch(self, url: str) -> bytes:
        return self.files[url]


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    yield Publisher()
    catalog_file.keep_in(Path("/nowhere"))


def test_a_signed_newer_catalog_replaces_the_shipped_one(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(NEWER)
    assert resolve(parse_name("newcomer")) is None
    now, changed = update(tmp_path, publisher.fetch, "u", publisher.key)
    assert (now.version, changed) == (2999010100, True)
    assert resolve(parse_name("newcomer:1b-fp16")) == PullTarget("org/newcomer-1b")
    # Address and key are known from now on, and an older catalog is not taken.
    assert update(tmp_path, publisher.fetch)[1] is False
    publisher.publish(NEWER.replace("2999", "2998"))
    with pytest.raises(RegistryError, match="is older than 2999010100"):
        update(tmp_path, publisher.fetch)
    publisher.publish(NEWER.replace("2999", "3000").replace("newcomer", "latecomer"))
    assert update(tmp_path, publisher.fetch)[1] is True
    assert resolve(parse_name("latecomer")) is not None


def test_a_catalog_that_the_publisher_did_not_sign_changes_nothing(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(NEWER)
    publisher.files["u"] += b"# changed on the way"
    with pytest.raises(RegistryError, match="not signed with the publisher's key"):
        update(tmp_path, publisher.fetch, "u", publisher.key)
    publisher.publish(NEWER)
    with pytest.raises(RegistryError, match="not signed with the publisher's key"):
        update(tmp_path, publisher.fetch, "u", Publisher().key)
    with pytest.raises(RegistryError, match="no public key"):
        update(tmp_path, publisher.fetch, "u", "abc")
    with pytest.raises(RegistryError, match="no publisher is known"):
        update(tmp_path, publisher.fetch)
    assert list(tmp_path.iterdir()) == []


def test_another_key_than_before_is_not_taken(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(NEWER)
    update(tmp_path, publisher.fetch, "u", publisher.key)
    other = Publisher()
    other.publish(NEWER)
    with pytest.raises(RegistryError, match="another key was used before"):
        update(tmp_path, other.fetch, "u", other.key)


def test_a_catalog_of_another_format_asks_for_a_newer_version(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(NEWER + "future = 1")
    with pytest.raises(RegistryError, match="install a newer oMLX"):
        update(tmp_path, publisher.fetch, "u", publisher.key)


def test_a_damaged_kept_catalog_counts_as_none(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(NEWER)
    update(tmp_path, publisher.fetch, "u", publisher.key)
    (tmp_path / "catalog.toml").write_bytes(b"\xff{")
    assert resolve(parse_name("newcomer")) is None
    assert resolve(parse_name("qwen3")) is not None
