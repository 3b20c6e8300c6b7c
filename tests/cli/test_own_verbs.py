"""The verbs that Ollama does not have: pins, aliases, search, push, import, care of the store; on a stand-in Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, run_omlx
from tests.registry.tiny_gguf import make_pair
from tests.support.hub import FakeHub
from tests.support.ollama_store import OllamaFolder
from tests.support.server import ServerProcess
from tests.support.tiny import tiny_model


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(tiny_model("llama"), root / "org" / "tiny")
    with FakeHub(root) as running:
        yield running


@pytest.fixture(scope="module")
def server(hub: FakeHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    env = {
        **hub.env,
        "HF_TOKEN": "hf_secret",
        "HF_HOME": str(folder / "hf"),
        "HOME": str(folder / "home"),
        "OMLX_SPARE_RUNNER": "false",
    }
    with ServerProcess(folder, env=env) as running:
        yield running


def omlx(server: ServerProcess, *words: str) -> Ran:
    return run_omlx(*words, host=f"127.0.0.1:{server.port}")


def test_pull_under_an_alias_then_pin_push_and_verify(server: ServerProcess, hub: FakeHub) -> None:
    assert omlx(server, "alias", "mine", "hf.co/org/tiny:q4").out == "'mine' means 'hf.co/org/tiny:q4' now\n"
    assert omlx(server, "alias").out.splitlines()[1].split() == ["mine:latest", "hf.co/org/tiny:q4"]
    pulled = omlx(server, "pull", "mine")
    assert (pulled.code, pulled.out) == (0, "")
    assert "success" in pulled.err
    assert omlx(server, "list").out.splitlines()[1].startswith("mine:latest ")

    pinned = omlx(server, "pin", "mine")
    assert pinned.out == "pinned 'mine'\n"
    assert pinned.err.startswith("warning: 1 of 1 models are pinned")
    assert omlx(server, "pin").out == "mine:latest\n"
    assert omlx(server, "unpin", "mine").out == "unpinned 'mine'\n"
    assert omlx(server, "pin").out == ""
    assert omlx(server, "models", "pin", "mine").out == "pinned 'mine'\n"
    assert omlx(server, "models", "pin").out == "mine:latest\n"
    assert omlx(server, "models", "unpin", "mine").out == "unpinned 'mine'\n"
    assert omlx(server, "models").out.startswith("NAME ")

    omlx(server, "cp", "mine", "hf.co/me/pushed")
    pushed = omlx(server, "push", "hf.co/me/pushed")
    assert pushed.code == 0
    assert "https://huggingface.co/me/pushed" in pushed.out
    assert (hub.root / "me" / "pushed" / "config.json").exists()

    checked = omlx(server, "registry", "verify")
    assert checked.code == 0
    assert checked.out.endswith("0 damaged\n")
    assert omlx(server, "registry", "prune").out.startswith("removed ")
    assert omlx(server, "alias", "--remove", "mine").out == "'mine' is no alias any more\n"


def test_verify_names_what_is_damaged_and_a_pull_mends_it(server: ServerProcess) -> None:
    assert omlx(server, "pull", "hf.co/org/tiny").code == 0
    blob = max((server.models / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    found = omlx(server, "registry", "verify", "--repair")
    assert f"corrupt: {blob.name.replace('-', ':')} of hf.co/org/tiny:latest" in found.out
    assert omlx(server, "pull", "hf.co/org/tiny").code == 0
    assert omlx(server, "registry", "verify").out.endswith("0 damaged\n")


def test_outdated_lists_what_a_pull_would_change(hub: FakeHub, server: ServerProcess) -> None:
    assert omlx(server, "pull", "hf.co/org/tiny").code == 0
    assert "already up to date" in omlx(server, "pull", "hf.co/org/tiny").err
    current = omlx(server, "outdated")
    assert (current.code, current.out) == (0, "")
    assert current.err.endswith("all models are up to date\n")
    here = hub.commit("org/tiny")
    added = hub.root / "org" / "tiny" / "generation_config.json"
    before = added.read_bytes() if added.exists() else None
    added.write_text('{"temperature": 0.25}')
    try:
        found = omlx(server, "outdated")
        assert found.out.splitlines()[1].split() == [
            "hf.co/org/tiny:latest", "org/tiny", here[:12], hub.commit("org/tiny")[:12],
        ]  # fmt: skip
        listed = {it["name"]: it for it in json.loads(omlx(server, "outdated", "--json").out)}
        assert listed["hf.co/org/tiny:latest"] == {
            "name": "hf.co/org/tiny:latest", "repository": "org/tiny", "revision": "main", "commit": here,
            "latest": hub.commit("org/tiny"), "outdated": True, "error": "",
        }  # fmt: skip
        assert here[:12] in omlx(server, "show", "hf.co/org/tiny").out
        hub.faults.portal = True
        offline = omlx(server, "outdated")
        assert (offline.code, offline.out) == (1, "")
        assert "the network answered with a web page" in offline.err
    finally:
        hub.reset()
        added.unlink() if before is None else added.write_bytes(before)


def test_search_prints_names_that_can_be_pulled(server: ServerProcess) -> None:
    lines = omlx(server, "search", "tiny").out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "DOWNLOADS"]
    assert lines[1].split() == ["hf.co/org/tiny", "1", "KB", "7"]


def test_import_registers_what_the_hugging_face_cache_holds(server: ServerProcess) -> None:
    nothing = omlx(server, "import")
    assert (nothing.code, nothing.out, nothing.err.startswith("note: ")) == (0, "", True)
    snapshot = server.folder / "hf" / "hub" / "models--org--cached" / "snapshots" / "abc"
    shutil.copytree(tiny_model("llama"), snapshot)
    assert omlx(server, "import").out == "importing hf.co/org/cached:latest\n"
    assert "hf.co/org/cached:latest" in omlx(server, "list").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pin", "nobody"), "model 'nobody' not found"),
        (("models", "burn"), "use `omlx models`, `omlx models pin MODEL`"),
        (("stop",), "accepts 1 arg(s), received 0"),
        (("stop", "--server", "mine"), "accepts 0 arg(s), received 1"),
        (("unpin",), "requires at least 1 arg(s), only received 0"),
        (("alias", "one"), "use `omlx alias NAME TARGET`"),
        (("alias", "mine", "nothing-like-it"), "neither in the catalog nor a repository"),
        (("alias", "--remove", "nobody"), "there is no alias nobody:latest"),
        (("registry", "burn"), 'unknown command "burn"'),
        (("import", "--from", "huggingface", "--dry-run"), "--dry-run is for models of Ollama: leave it out"),
        (("import", "--from", "huggingface", "--folder", "x"), "--folder is for models of Ollama"),
        (("import", "--from", "huggingface", "qwen3"), "MODEL names a model of Ollama"),
        (("import", "--from", "ollama", "--folder", "/nowhere"), "`omlx import --from ollama --folder PATH`"),
        (("push", "nobody"), "model 'nobody' not found"),
        (("pull", "lama3"), "Did you mean\n    llama3"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(server: ServerProcess, words: tuple[str, ...], message: str) -> None:
    done = omlx(server, *words)
    assert done.code == 1
    assert message in done.err
    assert "Traceback" not in done.err


def test_import_brings_the_models_of_an_ollama(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    _, path = make_pair(tmp_path / "gguf", "llama", lambda name: "Q8_0")
    folder = OllamaFolder(server.folder / "home" / ".ollama" / "models")
    folder.add("moved:1b", [("model", path.read_bytes()), ("system", b"Be brief.")])
    (digest,) = folder.add("gone:1b", [("model", b"GGUF")])
    folder.path(digest).unlink()
    assert "Ollama has 2 models of " in omlx(server, "import").out
    planned = omlx(server, "import", "--dry-run")
    assert (planned.code, planned.out.startswith("1 to import, 1 not imported, ")) == (1, True)
    assert "of Q8_0 become" in planned.err and "moved" not in omlx(server, "list").out

    moved = omlx(server, "import", "--from", "ollama")
    assert (moved.code, moved.out) == (1, "1 imported, 1 not imported\n")
    assert "skipping gone:1b: blob" in moved.err
    assert "SYSTEM Be brief." in omlx(server, "show", "moved:1b", "--modelfile").out
    assert omlx(server, "run", "moved:1b", "hello").code == 0
    again = omlx(server, "import", "--from", "ollama", "moved:1b")
    assert (again.code, again.out) == (0, "1 already here\n")


def test_the_server_log_has_no_traceback(server: ServerProcess) -> None:
    assert "Traceback" not in server.log_text()
    assert Path(server.log).exists()
