"""Tables are exactly Ollama's, blanks included: scripts cut them with awk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from omlx.cli.listing import model_table
from omlx.cli.ps import loaded_table, processor, until
from omlx.cli.show import describe
from omlx.cli.tables import render
from omlx.protocols.admin import wire as admin
from omlx.protocols.admin.power import PowerStatus
from omlx.protocols.ollama import models as models_wire

DETAILS = models_wire.ModelDetails(
    parent_model="",
    format="safetensors",
    family="test",
    families=["test"],
    parameter_size="7B",
    quantization_level="FP16",
)
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


def listed(name: str, size: int, age: timedelta) -> models_wire.ListedModel:
    when = (datetime.now(UTC) - age).isoformat()
    return models_wire.ListedModel(
        name=name, model=name, modified_at=when, size=size, digest="abcdef0123456789" * 4, details=DETAILS
    )


def shown(**fields: object) -> models_wire.ShowResponse:
    whole = {"details": DETAILS, "model_info": {}, "modified_at": NOW.isoformat(), **fields}
    return models_wire.ShowResponse(**whole)  # type: ignore[arg-type]


def test_a_list_is_padded_with_four_blanks_and_the_header_ends_with_one() -> None:
    models = [listed("model1", 1024, timedelta(hours=24)), listed("model2:7b", 4_700_000_000, timedelta(minutes=3))]
    assert model_table(models) == (
        "NAME         ID              SIZE      MODIFIED      \n"
        "model1       abcdef012345    1.0 KB    24 hours ago     \n"
        "model2:7b    abcdef012345    4.7 GB    3 minutes ago    \n"
    )


def test_a_prefix_filters_the_list_in_any_letter_case() -> None:
    models = [listed("Llama3:8b", 1, timedelta(1)), listed("qwen3:8b", 1, timedelta(1))]
    assert [line.split()[0] for line in model_table(models, "LLA").splitlines()] == ["NAME", "Llama3:8b"]


def test_an_empty_list_is_the_header_alone() -> None:
    assert model_table([]) == "NAME    ID    SIZE    MODIFIED \n"
    assert loaded_table([], NOW) == "NAME    ID    SIZE    PROCESSOR    CONTEXT    UNTIL \n"


def test_ps_shows_where_a_model_lies_and_until_when() -> None:
    loaded = models_wire.ProcessModelResponse(
        name="a:latest", model="a:latest", size=5_600_000_000, digest="0" * 64, details=DETAILS,
        size_vram=5_600_000_000, expires_at=(NOW + timedelta(seconds=290)).isoformat(), context_length=4096,
    )  # fmt: skip
    assert loaded_table([loaded], NOW) == (
        "NAME        ID              SIZE      PROCESSOR    CONTEXT    UNTIL              \n"
        "a:latest    000000000000    5.6 GB    100% GPU     4096       4 minutes from now    \n"
    )
    assert loaded_table([loaded], NOW, "A").count("\n") == 1, "ps filters by exact letter case"


def test_ps_verbose_says_what_names_share_and_what_they_do_not() -> None:
    def loaded(name: str, **shares: list[str]) -> admin.ModelStatus:
        return admin.ModelStatus(
            name=name, state="ready", pinned=False, pid=1, size=1, weights="", context_length=1, running=0, waiting=0,
            max_batch=0, steps=0, crashes=0, **shares,
        )  # fmt: skip

    alone = admin.StatusResponse(version="1", waiting=0, models=[loaded("a:latest")], pinned=[])
    assert loaded_table([], NOW, "", alone).count("\n") == 1
    models = [loaded("a:latest", other_names=["b:1", "b:2", "c:1"]), loaded("d:latest", same_weights=["a:latest"])]
    shared = admin.StatusResponse(version="1", waiting=0, models=models, pinned=[])
    assert loaded_table([], NOW, "", shared).splitlines()[1:] == [
        "",
        "a:latest is also called b:1, b:2 and c:1: they share memory, batches and cache",
        "d:latest has the same weights as a:latest: each has a copy in memory and batches of its own, only prompts "
        "cached on SSD are shared",
    ]
    assert "also called" not in loaded_table([], NOW, "d", shared)


def test_ps_verbose_says_what_the_power_policy_limits() -> None:
    def shown(power: PowerStatus) -> list[str]:
        status = admin.StatusResponse(version="1", waiting=0, models=[], pinned=[], power=power)
        return loaded_table([], NOW, "", status).splitlines()[1:]

    assert shown(PowerStatus(policy="quiet")) == []
    text = "quiet: user active; batch and background requests get 25% of the time"
    assert shown(PowerStatus(policy="quiet", reason="user active", text=text)) == ["", f"power: {text}"]


@pytest.mark.parametrize(
    ("size", "vram", "text"),
    [
        (10, 0, "100% CPU"),
        (10, 10, "100% GPU"),
        (10, 11, "Unknown"),
        (0, 0, "100% CPU"),
        (1000, 525, "48%/52% CPU/GPU"),
    ],
)
def test_processor_shares(size: int, vram: int, text: str) -> None:
    assert processor(size, vram) == text


@pytest.mark.parametrize(
    ("expires", "text"),
    [
        (NOW - timedelta(seconds=1), "Stopping..."),
        (NOW + timedelta(days=292 * 365), "Forever"),
        (datetime(1, 1, 1, tzinfo=UTC), "Never"),
        (NOW + timedelta(seconds=61), "About a minute from now"),
    ],
)
def test_until(expires: datetime, text: str) -> None:
    assert until(expires, NOW) == text


def test_show_lists_what_is_known() -> None:
    info = {
        "general.architecture": "test",
        "general.parameter_count": 8_000_000_000,
        "test.context_length": 1000.0,
        "test.embedding_length": 11434,
    }
    assert describe(shown(model_info=info, capabilities=["completion", "tools"])) == (
        "  Model\n"
        "    architecture        test     \n"
        "    parameters          7B       \n"
        "    context length      1000     \n"
        "    embedding length    11434    \n"
        "    quantization        FP16     \n"
        "\n"
        "  Capabilities\n"
        "    completion    \n"
        "    tools         \n"
        "\n"
    )


def test_show_prints_parameters_by_column_and_the_first_lines_of_long_texts() -> None:
    parameters = 'stop                           "never"\nstop                           "gonna"\ntemperature     99'
    text = describe(
        shown(parameters=parameters, system="You are a pirate!\n\nAhoy, matey!\nArr", license="MIT License\nCopyright")
    )
    assert text.partition("  Parameters\n")[2] == (
        '    stop           "never"    \n'
        '    stop           "gonna"    \n'
        "    temperature    99         \n"
        "\n"
        "  System\n"
        "    You are a pirate!    \n"
        "    Ahoy, matey!         \n"
        "    ...                  \n"
        "\n"
        "  License\n"
        "    MIT License    \n"
        "    Copyright      \n"
        "\n"
    )


def test_show_keeps_a_value_with_blanks_whole_and_texts_inside_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = shown(parameters='stop                           "a  b"', license="Permission is hereby granted " * 9)
    assert '    stop    "a  b"    \n' in describe(model)
    assert max(map(len, describe(model).splitlines())) > 80
    monkeypatch.setattr("omlx.cli.show.is_terminal", lambda stream: True)
    monkeypatch.setattr("omlx.cli.show.columns", lambda stream: 60)
    assert max(map(len, describe(model).splitlines())) <= 60


def test_show_verbose_adds_metadata_and_tensors() -> None:
    info = {
        "general.architecture": "test",
        "general.parameter_count": 8e9,
        "some.true_bool": True,
        "test.array": [1, 2, 3, 4, 5],
        "tokenizer.tokens": [f"token{i}" for i in range(50)],
    }
    tensors = [{"name": "blk.0.attn_k.weight", "type": "BF16", "shape": [42, 3117]}]
    text = describe(shown(model_info=info, tensors=tensors), verbose=True)
    assert text.partition("  Metadata\n")[2] == (
        "    general.architecture       test                    \n"
        "    general.parameter_count    8000000000              \n"
        "    some.true_bool             true                    \n"
        "    test.array                 [1 2 3 ...+2 more]      \n"
        "    tokenizer.tokens           [token0 ...+49 more]    \n"
        "\n"
        "  Tensors\n"
        "    blk.0.attn_k.weight    BF16    [42 3117]    \n"
        "\n"
    )


def test_show_describes_the_projector_of_a_vision_model() -> None:
    projector = {
        "general.architecture": "clip",
        "general.parameter_count": 133_700_000.0,
        "clip.vision.embedding_length": 0.0,
        "clip.vision.projection_dim": 512,
    }
    assert (
        "  Projector\n"
        "    architecture        clip       \n"
        "    parameters          133.70M    \n"
        "    embedding length    0          \n"
        "    dimensions          512        \n"
    ) in describe(shown(projector_info=projector))


def test_wide_characters_keep_columns_aligned() -> None:
    assert render([["日本", "x"], ["ab", "y"]]) == "日本    x    \nab      y    \n"


def test_long_cells_wrap_at_blanks_only() -> None:
    text = render([["a", "one two three"]], max_cell=7)
    assert text == "a    one two    \n     three      \n"
    assert render([["x" * 50]], max_cell=7) == "x" * 50 + "    \n"
