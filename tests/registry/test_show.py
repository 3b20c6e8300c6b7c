"""What `show` says about a model: figures, capabilities and texts, in Ollama's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omlx_registry import InvalidModel, Registry, Texts
from omlx_registry.architecture import fingerprint, model_info
from omlx_registry.capabilities import derive_capabilities
from omlx_registry.goformat import go_float, go_quote, print_parameters
from omlx_registry.modelfile import interpret, parse_modelfile
from omlx_registry.spec import human_parameters
from omlx_registry.weights import TensorHeader, read_header, take_census

from tests.registry.folders import CONFIG, make_folder, write_safetensors

# Parameters and quantization, from headers alone


@pytest.mark.parametrize(
    ("tensors", "config", "count", "level"),
    [
        ({"a.weight": ("F32", (4, 8)), "b.weight": ("BF16", (2, 8))}, {}, 48, "F32"),
        ({"a.weight": ("BF16", (40, 8)), "norm.weight": ("F32", (8,))}, {}, 328, "BF16"),
        (
            {"a.weight": ("U32", (16, 8)), "a.scales": ("F16", (16, 1)), "a.biases": ("F16", (16, 1))},
            {"quantization": {"group_size": 64, "bits": 4}},
            16 * 64,
            "int4",
        ),
        (
            {"a.weight": ("U32", (16, 12)), "a.scales": ("BF16", (16, 1)), "a.biases": ("BF16", (16, 1))},
            {"quantization": {"group_size": 64, "bits": 6, "mode": "affine"}},
            16 * 64,
            "int6",
        ),
        (
            {"a.weight": ("U32", (16, 8)), "a.scales": ("U8", (16, 2))},
            {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
            16 * 64,
            "mxfp4",
        ),
        (
            {
                "a.weight": ("U32", (16, 8)), "a.scales": ("F16", (16, 1)), "a.biases": ("F16", (16, 1)),
                "b.weight": ("U32", (16, 16)), "b.scales": ("F16", (16, 1)), "b.biases": ("F16", (16, 1)),
            },
            {"quantization": {"group_size": 64, "bits": 4, "b": {"group_size": 64, "bits": 8}}},
            2 * 16 * 64,
            "int4+int8",
        ),
        ({"a.weight": ("U32", (16, 8)), "a.scales": ("F16", (16, 1)), "a.biases": ("F16", (16, 1))}, {}, 1024, "int4"),
        ({"e.gate_up_proj_blocks": ("U8", (4, 8)), "e.gate_up_proj_scales": ("U8", (4,))}, {}, 64, "mxfp4"),
        (
            {"a.qweight": ("I32", (4, 8)), "a.scales": ("F16", (1, 8)), "a.qzeros": ("I32", (1, 1))},
            {"quantization_config": {"bits": 4, "group_size": 32, "quant_method": "awq"}},
            256,
            "int4",
        ),
        (
            {"a.weight": ("U32", (16, 8)), "a.scales": ("F16", (16, 1)), "a.biases": ("F16", (16, 1))},
            {"quantization": {"group_size": 64, "bits": 0}},
            1024,
            "int4",
        ),
        ({"rotary_emb.inv_freq": ("F32", (4,)), "w": ("F16", (2, 2))}, {}, 4, "F16"),
    ],
)  # fmt: skip
def test_parameters_are_counted_as_what_they_stand_for(
    tensors: dict[str, tuple[str, tuple[int, ...]]], config: dict[str, Any], count: int, level: str
) -> None:
    census = take_census([TensorHeader(name, dtype, shape) for name, (dtype, shape) in tensors.items()], config)
    assert (census.parameter_count, census.level) == (count, level)


def test_a_model_that_mlx_quantized_is_counted_right(tmp_path: Path) -> None:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten

    for bits, group, mode in (
        (4, 64, "affine"),
        (8, 32, "affine"),
        (3, 64, "affine"),
        (4, 32, "mxfp4"),
        (4, 16, "nvfp4"),
    ):
        model = nn.Sequential(nn.Linear(128, 96, bias=True), nn.Embedding(32, 128))
        nn.quantize(model, group_size=group, bits=bits, mode=mode)
        path = tmp_path / f"{mode}{bits}.safetensors"
        mx.save_safetensors(str(path), dict(tree_flatten(model.parameters())))
        told = {"quantization": {"group_size": group, "bits": bits, "mode": mode}}
        for config in (told,) if (bits, group) in {(3, 64), (8, 32)} else (told, {}):
            census = take_census(read_header(path), config)
            assert census.parameter_count == 128 * 96 + 96 + 32 * 128, (bits, group, mode, config)
            assert census.level == (f"int{bits}" if mode == "affine" else mode)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"\xff" * 64, b"\x10" + b"\0" * 7 + b"not json at all!", b"\x40" + b"\0" * 7 + b"{}"],
    ids=["empty", "short", "absurd length", "no JSON", "truncated"],
)
def test_a_file_that_is_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    registry = Registry(tmp_path / "models", [])
    with pytest.raises(InvalidModel, match=r"model\.safetensors"):
        registry.add_model_folder("m", folder)
    assert registry.list() == [] and not list((tmp_path / "models" / "blobs").iterdir())


@pytest.mark.parametrize(
    ("count", "text"),
    [(8_030_000_000, "8.0B"), (7_000_000_000, "7B"), (134_515_008, "134.52M"), (22_000_000, "22M"), (512_300, "512K"),
     (999, "999")],
)  # fmt: skip
def test_parameter_sizes_read_as_ollamas(count: int, text: str) -> None:
    assert human_parameters(count) == text


# Capabilities

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    ("config", "given_", "found"),
    [
        (LLAMA, {"chat_template": "{{ messages }}"}, ["completion"]),
        (LLAMA, {"chat_template": "{% if tools %}{{ tools }}{% endif %}"}, ["completion", "tools"]),
        (LLAMA, {"chat_template": "no tools here: {{ messages }}"}, ["completion"]),
        (LLAMA, {"chat_template": "<think>{{ x }}</think>"}, ["completion", "thinking"]),
        (LLAMA, {"template": "{{ if .Tools }}t{{ end }}{{ .Suffix }}"}, ["completion", "tools", "insert"]),
        (LLAMA, {"template": "{{ .Prompt }}", "chat_template": "{% if tools %}{% endif %}"}, ["completion"]),
        (LLAMA, {"tokens": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]}, ["completion", "insert"]),
        (LLAMA, {"tokens": ["<|fim_prefix|>", "<|fim_suffix|>"]}, ["completion"]),
        ({"model_type": "gpt_oss"}, {"chat_template": "x"}, ["completion", "thinking"]),
        ({"model_type": "qwen3_vl", "vision_config": {"depth": 2}}, {"chat_template": "x"}, ["completion", "vision"]),
        ({"model_type": "gemma3", "vision_config": {"a": 1}, "audio_config": {"a": 1}}, {},
         ["completion", "vision"]),
        ({"model_type": "unheard_of", "vision_config": {"a": 1}}, {}, ["completion"]),
        ({"model_type": "bert", "architectures": ["BertModel"]}, {}, ["embedding"]),
        ({"model_type": "nomic_bert", "architectures": ["NomicBertModel"]}, {}, ["embedding"]),
        (LLAMA, {"pooling": True, "chat_template": "x"}, ["embedding"]),
        (LLAMA, {"explicit": ["embedding"]}, ["embedding"]),
        ({"model_type": "chatglm", "architectures": ["ChatGLMModel"]}, {}, ["completion"]),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, {}, ["rerank"]),
        (LLAMA, {"explicit": ["audio", "completion"]}, ["audio", "completion"]),
    ],
)  # fmt: skip
def test_capabilities_follow_template_and_configuration(
    config: dict[str, Any], given_: dict[str, Any], found: list[str]
) -> None:
    assert derive_capabilities(config, **({"template": None, "chat_template": None} | given_)) == found


# Configuration


def test_model_info_takes_the_language_model_of_a_multimodal_one() -> None:
    config = {
        "model_type": "qwen3_vl",
        "text_config": {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "max_position_embeddings": 2048,
            "num_attention_heads": 4,
        },
        "vision_config": {"hidden_size": 32, "depth": 2},
        "hidden_size": 1,
    }
    assert model_info(config, 1000) == {
        "general.architecture": "qwen3_vl",
        "general.parameter_count": 1000,
        "qwen3_vl.context_length": 2048,
        "qwen3_vl.embedding_length": 64,
        "qwen3_vl.block_count": 3,
        "qwen3_vl.attention.head_count": 4,
    }


def test_the_fingerprint_changes_with_what_changes_the_kv_cache_and_nothing_else() -> None:
    base = fingerprint(CONFIG, ["w"], ["t"])
    assert fingerprint({**CONFIG, "transformers_version": "9", "architectures": ["X"]}, ["w"], ["t"]) == base
    others = [
        fingerprint({**CONFIG, "rope_theta": 5}, ["w"], ["t"]),
        fingerprint({**CONFIG, "quantization": {"bits": 4, "group_size": 64}}, ["w"], ["t"]),
        fingerprint(CONFIG, ["v"], ["t"]),
        fingerprint(CONFIG, ["w", "adapter"], ["t"]),
        fingerprint(CONFIG, ["w"], ["u"]),
    ]
    assert len({base, *others}) == 6


def test_derived_models_share_the_fingerprint_where_only_texts_differ(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", [])
    folder = make_folder(tmp_path / "m")
    plain = registry.add_model_folder("plain", folder)
    pirate = registry.add_model_folder("pirate", folder, texts=Texts(system="Arr", template="{{ .Prompt }}"))
    assert plain.fingerprint == pirate.fingerprint and plain.digest != pirate.digest


# Texts


def test_parameters_are_printed_as_go_prints_them() -> None:
    parameters = {
        "stop": ["</s>", 'a"b\n\x07é\u200b\U0001f9d1'],
        "temperature": 0.7,
        "num_ctx": 4096,
        "seed": 1000000,
        "use_mmap": True,
        "odd": {"b": [1, None], "a": "x"},
    }
    assert print_parameters(parameters) == "\n".join(
        [
            'stop                           "</s>"',
            'stop                           "a\\"b\\n\\aé\\u200b🧑"',
            "temperature                    0.7",
            "num_ctx                        4096",
            "seed                           1e+06",
            "use_mmap                       true",
            'odd                            map[string]interface {}{"a":"x", "b":[]interface {}{1, interface {}(nil)}}',
        ]
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "-0"), (0.1, "0.1"), (1.0, "1"), (999999.0, "999999"), (1234567.0, "1.234567e+06"),
     (131072.0, "131072"), (1e21, "1e+21"), (0.0001, "0.0001"), (0.00001, "1e-05"), (1.5e-7, "1.5e-07"), (-2.5, "-2.5"),
     (123456.789, "123456.789"), (1e100, "1e+100"), (float("inf"), "+Inf")],
)  # fmt: skip
def test_numbers_are_gos(value: float, text: str) -> None:
    assert go_float(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_lose_nothing(value: float) -> None:
    assert float(go_float(value)) == value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_quoted_text_is_one_printable_line(text: str) -> None:
    printed = go_quote(text)
    assert printed.isprintable() and printed[0] == printed[-1] == '"' and printed.count('"') - 2 == text.count('"')


def test_the_printed_modelfile_makes_the_model_again(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", [])
    texts = Texts(
        template="{{ .System }}\n\"{{ .Prompt }}\"",
        system=" Be brief. ",
        parameters={"temperature": 0.25, "num_ctx": 1_048_576, "stop": ["</s>", "\n"], "use_mmap": False},
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He said:\n\"Ho\""}],
        licenses=["MIT\nfree", "Apache"],
    )  # fmt: skip
    registry.add_model_folder("Me/m:x", make_folder(tmp_path / "m"), texts=texts)
    shown = registry.show("me/m:X")
    lines = shown.modelfile.splitlines()
    assert lines[:2] == ['# Modelfile generated by "ollama show"', "FROM Me/m:x"]
    instructions = ["FROM", "TEMPLATE", "SYSTEM", "PARAMETER", "LICENSE", "MESSAGE"]
    order = [line.split()[0] for line in lines if line.split()[0] in instructions]
    assert list(dict.fromkeys(order)) == instructions
    meaning = interpret(parse_modelfile(shown.modelfile))
    assert meaning.bases == ["Me/m:x"]
    assert (
        Texts(meaning.template, meaning.system or "", meaning.parameters, meaning.messages, meaning.licenses) == texts
    )
    assert shown.template_text == texts.template


def test_what_a_modelfile_cannot_say_does_not_end_up_as_an_instruction(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", [])
    texts = Texts(
        system='Brief.\n"""\nFROM evil\nSYSTEM """',
        parameters={"stop": ['x"""\nFROM evil'], "odd": {"b": [1, None], "a": "x"}, "x 1\nFROM evil": 1},
        messages=[{"role": "user\nFROM evil", "content": "Hi"}, {"role": "user", "content": "Hi"}],
    )
    registry.add_model_folder("m", make_folder(tmp_path / "m"), texts=texts)
    printed = registry.show("m").modelfile
    commands = parse_modelfile(printed).commands
    assert [command.value for command in commands if command.name == "from"] == ["m:latest"]
    assert [command.key for command in commands if command.key] == ["stop", "odd", "user"]
    assert "PARAMETER odd map[a:x b:[1 <nil>]]\n" in printed
    assert 'FROM evil\nSYSTEM """"""\n' in printed


def test_show_has_info_always_and_tensors_only_when_asked(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models", [])
    tensors = {"model.embed_tokens.weight": ("F32", (16, 8))}
    spec = registry.add_model_folder("m", make_folder(tmp_path / "m", tensors=tensors))
    assert (spec.details.family, spec.details.families, spec.details.format) == ("llama", ["llama"], "safetensors")
    assert (spec.details.parameter_size, spec.details.quantization_level) == ("128", "F32")
    assert (spec.context_length, spec.embedding_length, spec.capabilities) == (4096, 8, ["completion"])
    shown = registry.show("m")
    assert shown.model_info["general.architecture"] == "llama" and shown.model_info["llama.block_count"] == 2
    assert shown.tensors is None and shown.projector_info is None
    assert shown.template_text == spec.chat_template
    tensors = registry.show("m", verbose=True).tensors
    assert tensors == [{"name": "model.embed_tokens.weight", "type": "F32", "shape": [16, 8]}]


def test_a_vision_model_shows_its_projector(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_vl",
        "text_config": {"hidden_size": 8},
        "vision_config": {"depth": 2, "hidden_size": 4},
    }
    tensors = {"vision_tower.w": ("F32", (4, 4)), "language_model.w": ("F32", (8, 8))}
    registry = Registry(tmp_path / "models", [])
    registry.add_model_folder("v", make_folder(tmp_path / "m", config=config, tensors=tensors))
    info = registry.show("v").projector_info
    assert info is not None
    assert info["general.architecture"] == "clip" and info["general.parameter_count"] == 16
    assert info["clip.vision.embedding_length"] == 4 and info["clip.vision.projection_dim"] == 8


NAMED = {"name": "default", "template": "d"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "jinja file"}, "jinja file"),
        ({"chat_template.json": '{"chat_template": "json file"}'}, "json file"),
        ({"tokenizer_config.json": json.dumps({"chat_template": [{"name": "x"}, NAMED]})}, "d"),
        ({"tokenizer_config.json": '{"chat_template": {"default": "d2"}}'}, "d2"),
        ({}, None),
    ],
)  # fmt: skip
def test_the_chat_template_is_found_wherever_it_is_kept(
    tmp_path: Path, files: dict[str, str], expected: str | None
) -> None:
    folder = make_folder(tmp_path / "m", template=None)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert Registry(tmp_path / "models", []).add_model_folder("m", folder).chat_template == expected


def test_only_data_files_are_taken_and_links_must_stay_inside(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    for name in (
        "modeling_x.py",
        "pytorch_model.bin",
        "README.md",
        ".hidden.json",
        "training_args.bin",
        "x.gguf",
        "x.onnx",
    ):
        (folder / name).write_text("x")
    (folder / "LICENSE").write_text("MIT")
    write_safetensors(folder / "consolidated.safetensors", {"w": ("F32", (2,))})
    registry = Registry(tmp_path / "models", [])
    spec = registry.add_model_folder("m", folder)
    assert spec.licenses == ["MIT"]
    assert {path.name for path in Path(registry.resolve("m").path).iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    }  # fmt: skip
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / "generation_config.json").symlink_to(secret)
    with pytest.raises(InvalidModel, match=r"insecure path: generation_config\.json"):
        registry.add_model_folder("evil", folder)
    assert registry.add_model_folder("trusted", folder, trusted=[tmp_path]).name == "trusted:latest"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"a":' + b"[" * 100_000, b"[" * 100_000])
def test_a_broken_json_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / name).write_bytes(content)
    with pytest.raises(InvalidModel, match=name):
        Registry(tmp_path / "models", []).add_model_folder("m", folder)
