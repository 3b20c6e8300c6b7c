"""A pull from the Hub is resumed, verified and atomic, and every failure says what to do.

The real huggingface_hub client and the real worker process talk to a stand-in Hub on loopback.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from omlx_registry import InvalidName, Progress, PullError, Registry
from omlx_registry.blobs import hash_file
from omlx_registry.hub.download import partial_path
from omlx_registry.hub.source import HubSource
from omlx_registry.manifest import WEIGHTS as WEIGHTS_TYPE
from omlx_registry.transfer import RemoteFile, RetryPolicy
from omlx_registry.verified import VerifiedBlobs

from tests.support.hub import FakeHub
from tests.support.processes import Children, command_line
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio
NAME = "hf.co/org/tiny"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    root = tmp_path_factory.mktemp("hub")
    shutil.copytree(tiny_model("llama"), root / "org" / "tiny")
    (root / "org" / "tiny" / "modeling_evil.py").write_text("raise SystemExit")
    (root / "org" / "tiny" / "pytorch_model.bin").write_bytes(b"x" * 9000)
    (root / "org" / "empty").mkdir()
    (root / "org" / "empty" / "README.md").write_text("nothing")
    with FakeHub(root) as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in hub.env.items():
            patch.setenv(name, value)
        patch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture
def hub(running: FakeHub) -> Iterator[FakeHub]:
    running.reset()
    yield running
    running.reset()


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "models", [HubSource(attempts=3)])


async def pull(registry: Registry, name: str = NAME) -> list[Progress]:
    return [line async for line in registry.pull(name)]


async def failed_pull(registry: Registry, name: str = NAME) -> str:
    """The sentence of a pull that must fail and must leave nothing listed."""
    with pytest.raises(PullError) as caught:
        await pull(registry, name)
    assert registry.list() == []
    return caught.value.message


def size_of_weights(hub: FakeHub) -> int:
    return (hub.root / "org" / "tiny" / WEIGHTS).stat().st_size


async def test_a_pull_brings_what_the_model_needs_and_nothing_else(hub: FakeHub, registry: Registry) -> None:
    lines = await pull(registry)
    assert lines[0].status == "pulling manifest"
    assert [line.status for line in lines][-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    weights = [line for line in lines if line.total == size_of_weights(hub)]
    assert weights[-1].completed == weights[-1].total
    assert weights[-1].status == f"pulling {weights[-1].digest.removeprefix('sha256:')[:12]}"
    files = {path.name for path in Path(registry.resolve(NAME).path).rglob("*")}
    assert {"config.json", "tokenizer.json", WEIGHTS} <= files
    assert not {name for name in files if name.endswith((".py", ".bin"))}
    assert not {"modeling_evil.py", "pytorch_model.bin"} & set(hub.requests)


async def test_a_second_pull_downloads_no_weights_again(hub: FakeHub, registry: Registry) -> None:
    await pull(registry)
    sent = hub.bytes_sent
    await pull(registry)
    assert hub.bytes_sent - sent < 50_000
    assert len(registry.list()) == 1


async def test_a_revision_is_pulled_under_a_name_of_its_own(hub: FakeHub, registry: Registry) -> None:
    other = hub.root / "org" / "tiny@v1"
    shutil.copytree(hub.root / "org" / "tiny", other, dirs_exist_ok=True)
    (other / "generation_config.json").write_text('{"temperature": 0.125}')
    await pull(registry)
    await pull(registry, f"{NAME}@v1")
    commit = hub.commit("org/tiny@v1")
    await pull(registry, f"{NAME}@{commit}:q4")
    by_name = {spec.name: spec.source for spec in registry.list()}
    assert by_name == {
        "hf.co/org/tiny:latest": f"hf:org/tiny@{hub.commit('org/tiny')}",
        "hf.co/org/tiny@v1:latest": f"hf:org/tiny@{commit}",
        f"hf.co/org/tiny@{commit}:q4": f"hf:org/tiny@{commit}",
    }
    with pytest.raises(PullError, match="org/tiny has no such revision"):
        await pull(registry, f"{NAME}@v2")


async def test_a_pull_tells_whether_anything_changed(hub: FakeHub, registry: Registry) -> None:
    assert "already up to date" not in [line.status for line in await pull(registry)]
    assert [line.status for line in await pull(registry)][-2:] == ["already up to date", "success"]
    config = hub.root / "org" / "tiny" / "generation_config.json"
    before = config.read_bytes() if config.exists() else None
    config.write_text('{"temperature": 0.375}')
    try:
        assert "already up to date" not in [line.status for line in await pull(registry)]
    finally:
        if before is None:
            config.unlink()
        else:
            config.write_bytes(before)


async def test_a_revision_may_stand_beside_the_name(hub: FakeHub, registry: Registry) -> None:
    other = hub.root / "org" / "tiny@v3"
    shutil.copytree(hub.root / "org" / "tiny", other, dirs_exist_ok=True)
    for name in (NAME, "org/tiny"):
        assert [line async for line in registry.pull(name, revision="v3")][-1].status == "success"
    assert [spec.name for spec in registry.list()] == ["hf.co/org/tiny@v3:latest"]
    for name, revision, words in (
        ("smollm2", "v3", "is no repository, so it has no revisions"),
        (f"{NAME}@v3", "v4", "names the revision 'v3', not 'v4'"),
        (NAME, "../../etc", "cannot be used as a revision"),
    ):
        with pytest.raises(InvalidName, match=words):
            [line async for line in registry.pull(name, revision=revision)]


async def test_outdated_asks_once_for_each_repository(hub: FakeHub, registry: Registry) -> None:
    here = hub.commit("org/tiny")
    await pull(registry)
    await pull(registry, f"{NAME}:q4")
    await pull(registry, f"{NAME}@{here}")
    registry.copy(NAME, "a-copy")
    registry.add_model_folder("mine", tiny_model("llama"))
    config = hub.root / "org" / "tiny" / "added_tokens.json"
    config.write_text("{}")
    try:
        asked = hub.requests["api"]
        found = {it.name: it for it in await registry.outdated()}
        assert hub.requests["api"] - asked == 1
        assert {name: it.outdated for name, it in found.items()} == {
            "hf.co/org/tiny:latest": True, "hf.co/org/tiny:q4": True, f"hf.co/org/tiny@{here}:latest": False,
        }  # fmt: skip
        assert found["hf.co/org/tiny:latest"].latest == hub.commit("org/tiny") != here
        hub.faults.gated = True
        gated = {it.name: (it.outdated, it.error) for it in await registry.outdated()}
        assert gated["hf.co/org/tiny:latest"][0] is False
        assert "is gated" in gated["hf.co/org/tiny:latest"][1]
    finally:
        config.unlink()


async def test_outdated_without_a_network_is_a_sentence(
    hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await registry.outdated() == []
    await pull(registry)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    async with asyncio.timeout(15):
        with pytest.raises(PullError, match="cannot be reached"):
            await registry.outdated()


async def test_a_converted_model_that_did_not_change_is_not_fetched_again(hub: FakeHub, registry: Registry) -> None:
    await pull(registry, f"{NAME}:q4")
    sent = hub.bytes_sent
    assert [line.status for line in await pull(registry, f"{NAME}:q4")][-2:] == ["already up to date", "success"]
    assert hub.bytes_sent == sent


@pytest.mark.parametrize("name", [NAME, f"{NAME}:q4"])
async def test_a_damaged_blob_of_the_right_size_is_replaced(hub: FakeHub, registry: Registry, name: str) -> None:
    await pull(registry, name)
    before = registry.resolve(name)
    blobs = registry.store.blobs
    for digest, status in sorted(blobs.list(), key=lambda entry: -entry[1].st_size)[:2]:
        content = bytearray(blobs.read(digest))
        content[len(content) // 2] ^= 1
        blobs.path(digest).write_bytes(content)
        assert blobs.size(digest) == status.st_size
    assert len(registry.verify().damaged) == 2
    assert "note: 2 damaged files are replaced" in [line.status for line in await pull(registry, name)]
    assert registry.verify().damaged == []
    assert registry.resolve(name).digest == before.digest
    for layer in registry.store.get(name).manifest.of_type(WEIGHTS_TYPE):
        assert hash_file(Path(before.path) / layer.name)[0] == layer.digest


async def test_what_was_verified_is_hashed_again_only_when_it_was_written(
    hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pull(registry)
    verified, hashed = VerifiedBlobs(registry.store.blobs), []
    digests = registry.store.get(NAME).manifest.digests
    right = {digest: verified.is_right(digest) for digest in digests}
    monkeypatch.setattr(
        "omlx_registry.verified.hash_file", lambda path: hashed.append(path.name) or hash_file(path)  # type: ignore[func-returns-value]
    )  # fmt: skip
    assert {digest: verified.is_right(digest) for digest in digests} == right == dict.fromkeys(digests, True)
    assert hashed == []
    weights = registry.store.get(NAME).manifest.of_type(WEIGHTS_TYPE)[0]
    os.utime(registry.store.blobs.path(weights.digest), ns=(1, 1))
    assert verified.is_right(weights.digest)
    assert len(hashed) == 1


async def test_a_truncated_file_of_the_store_is_fetched_again(hub: FakeHub, registry: Registry) -> None:
    await pull(registry)
    digest = max(registry.store.blobs.list(), key=lambda entry: entry[1].st_size)[0]
    os.truncate(registry.store.blobs.path(digest), 1000)
    await pull(registry)
    assert registry.verify().damaged == []
    assert hub.sent[WEIGHTS] == 2 * size_of_weights(hub)
    assert (Path(registry.resolve(NAME).path) / WEIGHTS).stat().st_size == size_of_weights(hub)


async def test_a_token_goes_to_the_hub_and_never_to_the_cdn(
    hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    await pull(registry)
    assert "Bearer hf_secret" in hub.authorizations["hub"]
    assert hub.authorizations["cdn"] == {""}


@pytest.mark.parametrize("count", [1, 4])
async def test_a_dropped_connection_resumes_where_it_broke(hub: FakeHub, registry: Registry, count: int) -> None:
    hub.faults.drop_after = [100_000] * count
    await pull(registry)
    assert hub.requests[WEIGHTS] == count + 1
    assert hub.sent[WEIGHTS] == size_of_weights(hub)


async def test_a_server_that_ignores_range_is_started_over(hub: FakeHub, registry: Registry) -> None:
    hub.faults.drop_after = [100_000]
    hub.faults.no_range = True
    await pull(registry)
    assert hub.sent[WEIGHTS] == size_of_weights(hub) + 100_000


async def test_a_pull_that_broke_off_goes_on_later(hub: FakeHub, registry: Registry) -> None:
    hub.faults.drop_after = [200_000] + [0] * 20
    assert "failed 3 times in a row" in await failed_pull(registry)
    hub.faults.drop_after = []
    sent = hub.sent[WEIGHTS]
    await pull(registry)
    assert hub.sent[WEIGHTS] - sent == size_of_weights(hub) - 200_000
    assert registry.resolve(NAME).name == "hf.co/org/tiny:latest"


async def test_errors_and_limits_of_the_hub_are_waited_out(hub: FakeHub, registry: Registry) -> None:
    hub.faults.file_status = [500, 503, 429]
    hub.faults.retry_after = "0"
    await pull(registry)
    assert len(registry.list()) == 1


async def test_a_wrong_byte_is_never_installed(hub: FakeHub, registry: Registry) -> None:
    hub.faults.flip_byte = True
    message = await failed_pull(registry)
    assert message.startswith("digest mismatch, file must be downloaded again")
    assert not list((registry.store.root / "blobs").glob("*-partial"))
    hub.faults.flip_byte = False
    await pull(registry)
    assert registry.verify().damaged == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"gated": True}, ["unauthorized: access denied", "licence", "HF_TOKEN"]),
        ({"api_status": 429, "retry_after": "0"}, ["429", "wait a while"]),
        ({"api_status": 500, "retry_after": "0"}, ["500", "try again later"]),
    ],
)
async def test_a_refusal_says_what_to_do(
    hub: FakeHub, registry: Registry, fault: dict[str, object], words: list[str]
) -> None:
    for name, value in fault.items():
        setattr(hub.faults, name, value)
    message = await failed_pull(registry)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"gated": True}, "is gated, and the account of HF_TOKEN has no access: accept the licence at"),
        ({"gated": True, "message": "Please enable access in your fine-grained token settings"}, "may not read gated"),
        ({"api_status": 401, "message": "Invalid credentials in Authorization header"}, "does not accept the token"),
        ({"portal": True}, "a web page instead of the file: sign in to the network"),
    ],
)
async def test_a_wrong_token_is_told_from_a_gate_and_from_a_portal(
    hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch, fault: dict[str, object], words: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for name, value in fault.items():
        setattr(hub.faults, name, value)
    assert words in await failed_pull(registry)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf.co/org/nobody", ["file does not exist", "org/nobody"]),
        ("hf.co/org/empty", ["no model oMLX can run", "safetensors"]),
        ("hf.co/org/tiny:q99", ["q99 is no quantization"]),
        ("qwen9", ["file does not exist", "qwen3", "omlx search"]),
    ],
)
async def test_what_is_not_there_is_said(hub: FakeHub, registry: Registry, name: str, words: list[str]) -> None:
    message = await failed_pull(registry, name)
    for word in words:
        assert word in message


async def test_no_network_is_said(hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    message = await failed_pull(registry)
    assert "cannot be reached" in message
    assert "Errno" not in message
    assert "network" in message


async def test_a_quantized_pull_is_smaller_and_says_what_was_done(hub: FakeHub, registry: Registry) -> None:
    await pull(registry)
    await pull(registry, f"{NAME}:q4")
    whole, quantized = registry.resolve(NAME), registry.resolve(f"{NAME}:q4")
    assert quantized.size < whole.size / 2
    assert quantized.details.quantization_level == "int4"
    assert quantized.fingerprint != whole.fingerprint


async def test_a_quantized_pull_keeps_no_unquantized_copy(hub: FakeHub, registry: Registry) -> None:
    await pull(registry, f"{NAME}:q4")
    largest = max(path.stat().st_size for path in (registry.store.root / "blobs").iterdir())
    assert largest < size_of_weights(hub) / 2


async def test_two_clients_share_one_download(hub: FakeHub, registry: Registry) -> None:
    hub.faults.bytes_per_s = 2_000_000
    both = await asyncio.gather(pull(registry), pull(registry))
    assert [lines[-1].status for lines in both] == ["success"] * 2
    assert hub.requests[WEIGHTS] == 1


async def test_two_names_that_wait_for_one_download_both_show_how_far_it_is(hub: FakeHub, registry: Registry) -> None:
    hub.faults.bytes_per_s = 400_000
    both = await asyncio.gather(pull(registry), pull(registry, f"{NAME}@main"))
    assert hub.sent[WEIGHTS] == size_of_weights(hub)
    for lines in both:
        shown = [line.completed for line in lines if line.total == size_of_weights(hub)]
        assert len({done for done in shown if 0 < done < size_of_weights(hub)}) > 2
        assert shown[-1] == size_of_weights(hub)


async def test_a_wrong_small_file_is_told_in_gits_own_hash(hub: FakeHub, registry: Registry) -> None:
    """Small files have no SHA-256 on the Hub: both hashes of the sentence are of one kind."""
    hub.faults.flip_small = True
    message = await failed_pull(registry)
    found = re.search(r"want ([0-9a-f]+), got ([0-9a-f]+) \(", message)
    assert found is not None and len(found[1]) == len(found[2]) == 40 and found[1] != found[2]


async def test_two_processes_share_the_bytes(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.bytes_per_s = 2_000_000
    first, second = Registry(tmp_path / "models"), Registry(tmp_path / "models")
    await asyncio.gather(pull(first), pull(second))
    assert hub.sent[WEIGHTS] == size_of_weights(hub)


async def test_a_client_that_leaves_ends_the_worker_and_keeps_the_part(hub: FakeHub, registry: Registry) -> None:
    hub.faults.bytes_per_s = 300_000
    new_children = Children()
    lines = registry.pull(NAME)
    async for line in lines:
        if line.total == size_of_weights(hub) and line.completed > line.total // 3:
            break
    await lines.aclose()
    while any("omlx_registry.worker" in command_line(child) for child in new_children()):
        await asyncio.sleep(0.02)
    assert list((registry.store.root / "blobs").glob("*-partial"))
    assert registry.list() == []
    hub.faults.bytes_per_s = 0
    before = hub.sent[WEIGHTS]
    await pull(registry)
    assert hub.sent[WEIGHTS] - before < size_of_weights(hub)


_PULLER = """
import asyncio, sys
from pathlib import Path
from omlx_registry import Registry
async def main():
    async for line in Registry(Path(sys.argv[1])).pull(sys.argv[2]):
        print(line.completed, flush=True)
asyncio.run(main())
"""


async def test_kill_9_in_mid_pull_leaves_nothing_listed_and_the_next_pull_resumes(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults.bytes_per_s = 300_000
    root = tmp_path / "models"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", _PULLER, str(root), NAME], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    while int(process.stdout.readline() or 0) < 100_000:
        pass
    worker = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    _, alive = await asyncio.to_thread(psutil.wait_procs, worker, 120)
    assert not alive
    registry = Registry(root)
    assert registry.list() == []
    hub.faults.bytes_per_s = 0
    before = hub.sent[WEIGHTS]
    await pull(registry)
    assert hub.sent[WEIGHTS] - before <= size_of_weights(hub) - 100_000
    assert registry.verify().damaged == []
    registry.store.prune(grace_s=0, partial_grace_s=0)
    assert not list((root / "blobs").glob("*-partial"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
async def test_a_full_disk_is_said_and_nothing_is_half_installed(hub: FakeHub, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        registry = Registry(small)
        assert "disk is full" in await failed_pull(registry)
    finally:
        subprocess.run(["umount", str(small)], check=True)


async def test_files_of_the_hugging_face_cache_are_linked_not_downloaded(
    hub: FakeHub, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    fill = "import huggingface_hub, sys; huggingface_hub.snapshot_download(sys.argv[1])"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", fill, "org/tiny"], check=True, capture_output=True)
    before = hub.sent[WEIGHTS]
    await pull(registry)
    assert hub.sent[WEIGHTS] == before
    cached = next((tmp_path / "hf").rglob(WEIGHTS)).resolve()
    assert (Path(registry.resolve(NAME).path) / WEIGHTS).stat().st_ino == cached.stat().st_ino


# ---------------------------------------------------------------- push, search, import
async def test_a_pushed_model_can_be_pulled_again(
    hub: FakeHub, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    registry.add_model_folder("mine", tiny_model("llama"))
    registry.copy("mine", "hf.co/me/pushed")
    lines = [line async for line in registry.push("hf.co/me/pushed")]
    statuses = [line.status for line in lines]
    assert (statuses[0], statuses[-1]) == ("retrieving manifest", "success")
    assert "pushing model" in statuses
    other = Registry(tmp_path / "other")
    await pull(other, "hf.co/me/pushed")
    assert other.resolve("hf.co/me/pushed").fingerprint == registry.resolve("mine").fingerprint


@pytest.mark.parametrize(
    ("name", "token", "words"),
    [
        ("hf.co/me/pushed", "", ["unauthorized", "HF_TOKEN"]),
        ("mine", "hf_secret", ["no repository of yours", "hf.co/YOUR-NAME/mine"]),
    ],
)
async def test_a_push_that_cannot_be_says_what_to_do(
    hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch, name: str, token: str, words: list[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    registry.add_model_folder(name, tiny_model("llama"))
    with pytest.raises(PullError) as caught:
        [line async for line in registry.push(name)]
    for word in words:
        assert word in caught.value.message


async def test_a_search_that_fails_is_not_repeated(hub: FakeHub, registry: Registry) -> None:
    hub.faults.api_status = 503
    with pytest.raises(PullError, match="503: Hugging Face answered with an error"):
        await registry.search("tiny")
    assert hub.requests["search"] == 1


@pytest.mark.parametrize("listens", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_search_without_a_network_ends_within_seconds(
    hub: FakeHub, registry: Registry, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    """Nobody answers at all, or a connection is made and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        async with asyncio.timeout(15):
            with pytest.raises(PullError, match="cannot be reached"):
                await registry.search("tiny")


async def test_a_search_lists_repositories(hub: FakeHub, registry: Registry) -> None:
    found = await registry.search("tiny")
    assert [(model.repository, model.downloads, model.size) for model in found] == [("org/tiny", 7, 1000)]


async def test_models_of_other_programs_are_registered_by_link(
    hub: FakeHub, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hf" / "hub" / "models--org--cached"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    shutil.copytree(tiny_model("llama"), cache / "snapshots" / "abc")
    shutil.copytree(tiny_model("llama"), tmp_path / ".lmstudio" / "models" / "org" / "studio")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    # Small files are copied: a program that edits its own must not change ours.
    monkeypatch.setattr("omlx_registry.blobs._LINKED_FROM", 100_000)
    for expected in ("importing hf.co/org/cached:latest", "hf.co/org/cached:latest is already here"):
        lines = [line.status async for line in registry.imports.import_found()]
        assert expected in lines
        assert lines[-1] == "success"
    assert {spec.name for spec in registry.list()} == {"hf.co/org/cached:latest", "hf.co/org/studio:latest"}
    ours = Path(registry.resolve("hf.co/org/cached").path) / WEIGHTS
    assert ours.stat().st_ino == (cache / "snapshots" / "abc" / WEIGHTS).stat().st_ino


def test_patience_grows_and_obeys_the_server() -> None:
    policy = RetryPolicy()
    assert [policy.pause(failures) for failures in (1, 2, 3, 10)] == [0.5, 1.0, 2.0, 30.0]
    assert policy.pause(1, 7.0) == 7.0
    assert policy.pause(1, 3600.0) == 60.0


def test_a_partial_file_is_named_by_its_content(registry: Registry) -> None:
    large = RemoteFile(path="a", size=1, url="", sha256="ab" * 32)
    small = RemoteFile(path="a", size=1, url="", git_sha1="cd" * 20)
    assert partial_path(large, registry.store.blobs).name == f"sha256-{'ab' * 32}-partial"
    assert partial_path(small, registry.store.blobs).name == f"sha1-{'cd' * 20}-partial"
