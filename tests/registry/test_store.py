"""The store keeps what is needed, forgets what is not, and never shows half a model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import omlx_registry
import pytest
from omlx_registry import Damaged, DigestMismatch, InvalidDigest, InvalidName, NotFound, Registry, StorageError
from omlx_registry.manifest import Manifest
from omlx_registry.names import parse_name
from omlx_registry.store import PruneReport

from tests.registry.folders import blobs_in, files_below, make_folder, write_safetensors

SHA = "sha256:" + hashlib.sha256(b"data").hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def registry(root: Path) -> Registry:
    return Registry(root, [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "source")


def foreign_model(root: Path, name: str = "gguf") -> set[str]:
    """A model as Ollama itself stores it; the names of its blobs."""
    blobs = []
    for data in (b"GGUF weights", b'{"model_format":"gguf"}'):
        path = root / "blobs" / f"sha256-{hashlib.sha256(data).hexdigest()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        blobs.append({"digest": path.name.replace("-", ":"), "size": len(data)})
    path = root / "manifests/registry.ollama.ai/library" / name / "latest"
    path.parent.mkdir(parents=True)
    document = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": blobs[1] | {"mediaType": "application/vnd.docker.container.image.v1+json"},
        "layers": [blobs[0] | {"mediaType": "application/vnd.ollama.image.model"}],
    }
    path.write_text(json.dumps(document))
    return {blob["digest"].replace(":", "-") for blob in blobs}  # type: ignore[attr-defined]


# Reading


def test_a_model_is_found_in_any_letter_case_and_keeps_its_own(registry: Registry, folder: Path) -> None:
    registry.add_model_folder("Me/Llama3:8B", folder)
    assert registry.resolve("mE/llAMA3:8b").name == "Me/Llama3:8B"
    registry.add_model_folder("me/LLAMA3:8b", folder)
    assert [spec.name for spec in registry.list()] == ["Me/Llama3:8B"]
    registry.copy("ME/llama3:8b", "me/llama3:Other")
    assert {spec.name for spec in registry.list()} == {"Me/Llama3:8B", "Me/Llama3:Other"}


def test_the_manifest_is_ollamas_and_its_hash_is_the_digest(registry: Registry, folder: Path, root: Path) -> None:
    spec = registry.add_model_folder("tiny", folder)
    path = root / "manifests/registry.ollama.ai/library/tiny/latest"
    data = path.read_bytes()
    document = json.loads(data)
    assert spec.digest == hashlib.sha256(data).hexdigest()
    assert document["schemaVersion"] == 2
    assert document["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert document["config"]["mediaType"] == "application/vnd.docker.container.image.v1+json"
    config = json.loads((root / "blobs" / document["config"]["digest"].replace(":", "-")).read_bytes())
    assert config["model_format"] == "safetensors" and config["model_family"] == "llama"
    for layer in document["layers"]:
        blob = root / "blobs" / layer["digest"].replace(":", "-")
        assert blob.stat().st_size == layer["size"]
    assert {layer["name"] for layer in document["layers"]} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
    }  # fmt: skip
    assert spec.size == document["config"]["size"] + sum(layer["size"] for layer in document["layers"])


def test_the_list_is_newest_first_and_skips_what_is_not_ours(registry: Registry, folder: Path, root: Path) -> None:
    for age, name in enumerate(("new", "old", "older")):
        registry.add_model_folder(name, folder)
        os.utime(root / f"manifests/registry.ollama.ai/library/{name}/latest", (10**9 - age, 10**9 - age))
    foreign_model(root)
    torn = root / "manifests/registry.ollama.ai/library/torn/latest"
    torn.parent.mkdir()
    torn.write_bytes(b'{"schemaVersion":2,')
    (root / "manifests/registry.ollama.ai/library/new/.DS_Store").write_bytes(b"x")
    assert [spec.name for spec in registry.list()] == ["new:latest", "old:latest", "older:latest"]
    for name in ("gguf", "nothing"):
        with pytest.raises(NotFound, match=f"model '{name}' not found"):
            registry.resolve(name)
    with pytest.raises(Damaged):
        registry.resolve("torn")


def test_a_not_found_error_knows_the_normalized_name(registry: Registry) -> None:
    with pytest.raises(NotFound) as caught:
        registry.show("X")
    assert (caught.value.message, caught.value.normalized) == ("model 'X' not found", "X:latest")


def test_the_list_follows_changes_made_by_other_processes(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("a", folder)
    assert [spec.name for spec in registry.list()] == ["a:latest"]
    other = Registry(root, [])
    other.copy("a", "b")
    other.delete("a")
    assert [spec.name for spec in registry.list()] == ["b:latest"]


# The model folder


def test_a_model_folder_is_hard_links_and_is_built_again_when_damaged(registry: Registry, folder: Path) -> None:
    spec = registry.add_model_folder("tiny", folder)
    view = Path(registry.resolve("tiny").path)
    assert sorted(path.name for path in view.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    weights = view / "model.safetensors"
    assert weights.stat().st_ino == registry.store.blobs.path(layer_digest(registry, "model.safetensors")).stat().st_ino
    damage = (
        lambda: weights.unlink(),
        lambda: (weights.unlink(), weights.write_bytes(b"torn")),
        lambda: shutil.rmtree(view),
        lambda: (weights.unlink(), weights.symlink_to("/etc/hostname")),
    )
    for harm in damage:
        harm()
        assert registry.resolve("tiny").path == spec.path
        assert weights.read_bytes() == (folder / "model.safetensors").read_bytes()


def layer_digest(registry: Registry, file: str) -> str:
    return next(layer.digest for layer in registry.store.get("tiny").manifest.layers if layer.name == file)


@pytest.mark.parametrize("fallback", ["symlink", "copy"])
def test_where_hard_links_do_not_reach_the_folder_is_made_otherwise(
    registry: Registry, folder: Path, monkeypatch: pytest.MonkeyPatch, fallback: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("not on this file system")

    registry.add_model_folder("tiny", folder)
    monkeypatch.setattr(os, "link", refuse)
    if fallback == "copy":
        monkeypatch.setattr(Path, "symlink_to", refuse)
    weights = Path(registry.resolve("tiny").path, "model.safetensors")
    assert weights.is_symlink() == (fallback == "symlink")
    before = weights.lstat().st_ino
    assert weights.read_bytes() == (folder / "model.safetensors").read_bytes()
    registry.resolve("tiny")
    assert weights.lstat().st_ino == before, "an intact folder is not built again"


def test_a_model_with_a_lost_blob_says_so_and_can_still_be_deleted(
    registry: Registry, folder: Path, root: Path
) -> None:
    registry.add_model_folder("tiny", folder)
    registry.store.blobs.path(layer_digest(registry, "model.safetensors")).unlink()
    with pytest.raises(Damaged, match=r"model\.safetensors .*missing.*pull or create the model again"):
        registry.resolve("tiny")
    registry.delete("tiny")
    assert files_below(root) == set()


def test_a_manifest_cannot_name_files_outside_the_model_folder(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    path = root / "manifests/registry.ollama.ai/library/tiny/latest"
    for evil in ("../../../evil", "/tmp/evil", "a/../../evil", "x\\..\\evil", "evil\x00"):
        document = json.loads(path.read_bytes())
        document["layers"][0]["name"] = evil
        path.write_text(json.dumps(document))
        with pytest.raises(Damaged, match="unsafe path"):
            registry.resolve("tiny")
    assert not list(root.parent.rglob("*evil*"))


# Changing


def test_delete_removes_only_blobs_that_nobody_else_needs(registry: Registry, tmp_path: Path, root: Path) -> None:
    registry.add_model_folder("a", make_folder(tmp_path / "a"))
    registry.add_model_folder("b", make_folder(tmp_path / "b", tensors={"w": ("F32", (4, 4))}))
    registry.copy("a", "a2")
    kept = registry.store.get("b").manifest.digests
    registry.delete("a")
    assert registry.resolve("a2").name == "a2:latest"
    registry.delete("a2")
    assert blobs_in(root) == {digest.replace(":", "-") for digest in kept}
    registry.delete("b")
    assert files_below(root) == set()


def test_a_replaced_model_leaves_nothing_behind(registry: Registry, tmp_path: Path, root: Path) -> None:
    registry.add_model_folder("a", make_folder(tmp_path / "one", fill=1))
    registry.resolve("a")
    registry.add_model_folder("a", make_folder(tmp_path / "two", fill=2))
    spec = registry.resolve("a")
    assert blobs_in(root) == {digest.replace(":", "-") for digest in registry.store.get("a").manifest.digests}
    assert [path.name for path in (root / "omlx/views").iterdir()] == [spec.digest]


def test_blobs_of_foreign_models_survive_everything(registry: Registry, folder: Path, root: Path) -> None:
    foreign = foreign_model(root)
    partial = root / "blobs" / f"sha256-{'a' * 64}-partial"
    partial.write_bytes(b"begun")
    registry.add_model_folder("tiny", folder)
    registry.delete("tiny")
    registry.store.prune(grace_s=0)
    assert blobs_in(root) == foreign | {partial.name}
    assert (root / "manifests/registry.ollama.ai/library/gguf/latest").exists()


def test_a_foreign_model_is_not_overwritten(registry: Registry, folder: Path, root: Path) -> None:
    foreign = foreign_model(root)
    before = (root / "manifests/registry.ollama.ai/library/gguf/latest").read_bytes()
    with pytest.raises(InvalidName, match="GGUF:latest is a model of Ollama in the same folder"):
        registry.add_model_folder("GGUF", folder)
    registry.add_model_folder("tiny", folder)
    with pytest.raises(InvalidName, match="does not overwrite"):
        registry.copy("tiny", "gguf")
    with pytest.raises(NotFound):
        registry.delete("gguf")
    assert foreign <= blobs_in(root)
    assert (root / "manifests/registry.ollama.ai/library/gguf/latest").read_bytes() == before


def test_a_torn_manifest_can_be_replaced(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    path = root / "manifests/registry.ollama.ai/library/tiny/latest"
    for damage in (b"", path.read_bytes()[:-5], b"[" * 100_000, b"\xff\xfe"):
        path.write_bytes(damage)
        assert registry.list() == []
        registry.add_model_folder("tiny", folder)
        assert registry.resolve("tiny").name == "tiny:latest"


def test_blobs_of_unreadable_manifests_are_kept(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    path = root / "manifests/registry.ollama.ai/library/tiny/latest"
    before = blobs_in(root)
    path.write_bytes(path.read_bytes()[:-2])
    assert registry.list() == []
    registry.store.prune(grace_s=0)
    assert blobs_in(root) == before
    path.write_bytes(path.read_bytes() + b"]}")
    assert [spec.name for spec in registry.list()] == ["tiny:latest"]


def test_prune_removes_strays_but_not_fresh_uploads(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    needed = blobs_in(root)
    with registry.blob_writer(SHA) as writer:
        writer.write(b"data")
    (root / "blobs" / ".omlx-left-by-a-killed-process").write_bytes(b"x" * 10)
    old_partial = root / "blobs" / f"sha256-{'b' * 64}-partial"
    old_partial.write_bytes(b"y" * 5)
    os.utime(old_partial, (1, 1))
    report = registry.prune()
    assert (report.removed, report.freed, report.busy) == (0, 15, False)
    assert blobs_in(root) == needed | {SHA.replace(":", "-")}
    report = registry.store.prune(grace_s=0)
    assert (report.removed, report.freed) == (1, 4)
    assert blobs_in(root) == needed


def test_a_dry_run_tells_what_prune_would_remove(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("m", folder)
    stray = registry.store.blobs.put_bytes(b"a stray" * 100)
    partial = root / "blobs" / f"sha256-{'ab' * 32}-partial"
    partial.write_bytes(bytes(5000))
    would = registry.prune(now=True, partial=True, dry_run=True)
    assert (would.removed, would.freed) == (1, 5700)
    assert registry.store.blobs.has(stray.digest)
    assert registry.prune(now=True) == PruneReport(1, 700)
    assert partial.exists()
    assert registry.prune(partial=True) == PruneReport(0, 5000)
    assert registry.verify().damaged == []


def test_a_torn_manifest_is_found_and_can_be_removed(registry: Registry, folder: Path) -> None:
    registry.add_model_folder("m", folder)
    registry.add_model_folder("torn", folder)
    entry = registry.store.manifests.find(parse_name("torn"))
    assert entry is not None
    data = Path(entry.path).read_bytes()
    Path(entry.path).write_bytes(data[: len(data) // 2])
    (found,) = registry.verify(repair=True).damaged
    assert (found.digest, found.reason, found.models) == ("", "unreadable manifest", ["torn:latest"])
    registry.delete("torn")
    assert registry.verify().damaged == []
    assert [spec.name for spec in registry.list()] == ["m:latest"]


def test_a_delete_tells_what_it_freed(registry: Registry, folder: Path) -> None:
    registry.add_model_folder("m", folder)
    registry.copy("m", "again")
    size = sum(status.st_size for _, status in registry.store.blobs.list())
    assert registry.delete("again") == 0
    assert registry.delete("m") == size


def test_nothing_is_pruned_or_dropped_while_a_model_is_made(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    other = Registry(root, [])
    with other.store.working():
        before = blobs_in(root)
        assert registry.store.prune(grace_s=0).busy
        registry.delete("tiny")
        assert registry.list() == [] and blobs_in(root) == before
    with registry.store.working():
        pass
    assert blobs_in(root) == set(), "the end of the work pays what was owed"


def test_a_link_among_the_manifests_leads_nowhere(registry: Registry, folder: Path, root: Path, tmp_path: Path) -> None:
    registry.add_model_folder("tiny", folder)
    outside = tmp_path / "outside"
    shutil.copytree(root / "manifests/registry.ollama.ai/library", outside / "library")
    (root / "manifests/evil.com").symlink_to(outside)
    assert [spec.name for spec in registry.list()] == ["tiny:latest"]
    with pytest.raises(NotFound):
        registry.resolve("evil.com/library/tiny")
    with pytest.raises(NotFound):
        registry.delete("evil.com/library/tiny")
    with pytest.raises(InvalidName, match="leads out of the model store"):
        registry.copy("tiny", "evil.com/library/new")
    assert sorted(path.name for path in (outside / "library").iterdir()) == ["tiny"]


def test_a_manifest_is_not_written_without_its_blobs(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    manifest = registry.store.get("tiny").manifest
    registry.store.blobs.path(manifest.layers[0].digest).write_bytes(b"short")
    with pytest.raises(Damaged, match="was not written"):
        registry.copy("tiny", "copy")
    assert isinstance(manifest, Manifest) and not (root / "manifests/registry.ollama.ai/library/copy/latest").exists()


def test_a_name_too_long_for_the_disk_is_an_error_not_a_crash(registry: Registry, folder: Path) -> None:
    registry.add_model_folder("tiny", folder)
    with pytest.raises(NotFound):
        registry.resolve("h" * 300 + "/n/m")
    with pytest.raises(InvalidName, match="cannot store"):
        registry.copy("tiny", "h" * 300 + "/n/m")


# Blobs


def test_a_blob_is_stored_whole_and_verified_or_not_at_all(registry: Registry, root: Path) -> None:
    with registry.blob_writer(SHA.replace(":", "-")) as writer:
        writer.write(b"da")
        assert not registry.has_blob(SHA)
        writer.write(b"ta")
    assert writer.digest == SHA and writer.size == 4 and registry.has_blob(SHA)
    registry.store.blobs.remove(SHA)
    with pytest.raises(DigestMismatch) as caught, registry.blob_writer(SHA) as writer:
        writer.write(b"other")
    other = "sha256:" + hashlib.sha256(b"other").hexdigest()
    assert caught.value.message == f'digest mismatch, expected "{SHA}", got "{other}"'
    with pytest.raises(KeyError), registry.blob_writer(SHA) as writer:
        writer.write(b"data")
        raise KeyError("the client went away")
    assert blobs_in(root) == set()


def test_a_damaged_blob_is_as_good_as_absent(registry: Registry) -> None:
    """So that a client sends it again; it takes the place of the damaged one."""
    with registry.blob_writer(SHA) as writer:
        writer.write(b"data")
    path = registry.store.blobs.path(SHA)
    for damaged in (b"date", b"dat"):
        path.write_bytes(damaged)
        os.utime(path, ns=(1, 1))
        assert not registry.has_blob(SHA)
        with registry.blob_writer(SHA) as writer:
            writer.write(b"data")
        assert registry.has_blob(SHA) and path.read_bytes() == b"data"


@pytest.mark.parametrize(
    "digest", ["", "sha256:", "sha256:" + "0" * 63, "md5:" + "0" * 64, "../passwd", "sha256:" + "g" * 64]
)
def test_a_malformed_digest_is_refused(registry: Registry, digest: str) -> None:
    for action in (registry.has_blob, registry.blob_writer):
        with pytest.raises(InvalidDigest, match=r"^invalid digest format$"):
            action(digest)


# Verify


def test_verify_finds_and_drops_what_is_corrupt(registry: Registry, folder: Path) -> None:
    registry.add_model_folder("tiny", folder, transfer="copy")
    registry.copy("tiny", "twin")
    assert registry.verify().damaged == []
    weights, tokenizer = (layer_digest(registry, name) for name in ("model.safetensors", "tokenizer.json"))
    blobs = registry.store.blobs
    size = blobs.size(weights)
    assert size is not None
    blobs.path(weights).write_bytes(b"\1" * size)
    blobs.path(tokenizer).unlink()
    blobs.path(layer_digest(registry, "config.json")).write_bytes(b"{")
    found = {damage.digest: damage for damage in registry.verify().damaged}
    assert {damage.reason for damage in found.values()} == {"corrupt", "missing", "truncated"}
    assert found[weights].reason == "corrupt" and found[tokenizer].reason == "missing"
    assert found[weights].models == ["tiny:latest", "twin:latest"]
    assert blobs.has(weights)
    report = registry.verify(repair=True)
    assert report.repaired and not blobs.has(weights)
    registry.add_model_folder("tiny", folder)
    registry.copy("tiny", "twin")
    assert registry.verify().damaged == []


# Together


def test_threads_that_add_copy_and_delete_leave_a_sound_store(registry: Registry, tmp_path: Path, root: Path) -> None:
    folders = [make_folder(tmp_path / str(number), fill=number) for number in range(4)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        own = Registry(root, []) if number % 2 else registry
        try:
            for turn in range(4):
                own.add_model_folder(f"m{number}", folders[number], transfer="copy")
                own.copy(f"m{number}", f"copy{number}-{turn}")
                own.list()
                own.resolve(f"m{number}")
                own.delete(f"m{number}" if turn % 2 else f"copy{number}-{turn}")
                own.store.prune(grace_s=0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [], "".join(traceback.format_exception(errors[0]))
    for spec in registry.list():
        registry.resolve(spec.full_name)
    assert registry.verify().damaged == []
    for spec in registry.list():
        registry.delete(spec.name)
    registry.store.prune(grace_s=0)
    assert files_below(root) == set()


def test_prune_removes_a_manifest_that_never_got_its_name(root: Path, tmp_path: Path) -> None:
    registry = Registry(root, [])
    registry.add_model_folder("m", make_folder(tmp_path / "m"))
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    manifest.rename(manifest.with_name("." + "0a" * 16))
    assert registry.list() == []
    registry.store.prune(grace_s=0)
    assert files_below(root) == set()


def test_a_killed_import_leaves_nothing_listed_and_nothing_prune_does_not_find(root: Path, tmp_path: Path) -> None:
    big = make_folder(tmp_path / "big")
    write_safetensors(big / "model.safetensors", {"w": ("F32", (1024, 4096))})
    script = (
        "import sys; from pathlib import Path; from omlx_registry import Registry\n"
        "registry = Registry(Path(sys.argv[1]), []); print('go', flush=True)\n"
        "for n in range(1000):\n"
        "    registry.add_model_folder(f'm{n}', Path(sys.argv[2]), transfer='copy'); registry.delete(f'm{n}')"
    )
    command = [sys.executable, "-c", script, str(root), str(big)]
    for delay in (0.0, 0.02, 0.05, 0.09):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=_env())
        assert process.stdout is not None and process.stdout.readline() == b"go\n"
        time.sleep(delay)
        process.kill()
        process.wait()
        process.stdout.close()
        registry = Registry(root, [])
        for spec in registry.list():
            registry.resolve(spec.name)
        assert registry.verify().damaged == []
        for spec in registry.list():
            registry.delete(spec.name)
        registry.store.prune(grace_s=0)
        assert files_below(root) == set()


def _env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(omlx_registry.__file__).parents[1])}


# Memory and disk


def test_a_listing_after_a_restart_reads_no_model_again(registry: Registry, folder: Path, root: Path) -> None:
    registry.add_model_folder("tiny", folder)
    foreign_model(root)
    before = registry.list()
    for blob in (root / "blobs").iterdir():
        blob.unlink()
    assert Registry(root, []).list() == before
    memory = root / "omlx/known.msgpack"
    for damage in (b"", b"torn", memory.read_bytes()[:-9]):
        memory.write_bytes(damage)
        assert Registry(root, []).list() == [], "nothing is remembered, and the blobs are gone"


def test_facts_of_an_older_version_are_derived_anew(
    registry: Registry, folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = registry.add_model_folder("tiny", folder)
    registry.list()
    for module in ("metadata", "describe", "manifest_cache"):
        monkeypatch.setattr(f"omlx_registry.{module}.REVISION", 99)
    monkeypatch.setattr("omlx_registry.metadata.derive_capabilities", lambda *_, **__: ["completion", "new"])
    assert [it.capabilities for it in Registry(root, []).list()] == [["completion", "new"]]
    assert Registry(root, []).resolve("tiny").fingerprint == spec.fingerprint


def test_small_files_are_copied_and_large_ones_linked(registry: Registry, folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"w": ("F32", (1024, 4097))})
    registry.add_model_folder("tiny", folder)
    path = registry.store.blobs.path
    assert path(layer_digest(registry, "model.safetensors")).samefile(folder / "model.safetensors")
    with (folder / "config.json").open("r+") as file:
        file.write("edited in place")
    assert registry.verify().damaged == []


def test_a_full_disk_is_an_error_a_user_understands_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        registry = Registry(small / "models", [])
        folder = make_folder(tmp_path / "m", tensors={"w": ("F32", (1024, 128))})
        with pytest.raises(StorageError, match=r"^there is no space left on the disk of the model store$"):
            registry.add_model_folder("m", folder, transfer="copy")
        with pytest.raises(StorageError), registry.blob_writer() as writer:
            writer.write(bytes(1 << 20))
        assert registry.list() == [] and files_below(small / "models") == set()
        registry.add_model_folder("m", make_folder(tmp_path / "n"))
        assert registry.resolve("m").name == "m:latest"
    finally:
        subprocess.run(["umount", str(small)], check=False)
