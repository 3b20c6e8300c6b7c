"""A store of any past version opens with its models; one of a newer version is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from omlx_registry import Registry, StorageError, versions

from tests.registry import past_stores


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", past_stores.versions())
def test_a_store_of_a_past_version_opens(version: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    past_stores.restore(version, root)
    registry = Registry(root, [])
    registry.bring_up_to_date()
    assert sorted(spec.name for spec in registry.list()) == ["kind:v1", "taught:latest"]
    kind = registry.resolve("kind:v1")
    assert (kind.system, kind.parameters["stop"], kind.licenses) == ("Be kind.", ["END"], ["Free."])
    assert (Path(kind.path) / "config.json").is_file()
    assert registry.verify().damaged == []


def test_an_older_store_is_kept_beside_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    past_stores.restore("version-1", root)
    before = files(root / "manifests")
    steps: list[int] = []

    def step(folder: Path) -> None:
        steps.append(1)
        for path in (folder / "manifests").rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes() + b"\n")

    monkeypatch.setattr(versions, "VERSION", 2)
    monkeypatch.setattr(versions, "MIGRATIONS", {1: step})
    registry = Registry(root, [])
    registry.bring_up_to_date()
    registry.bring_up_to_date()
    assert steps == [1]
    assert files(root / "omlx" / "backups" / "version-1") == before
    assert files(root / "manifests") != before
    assert len(registry.list()) == 2
    monkeypatch.undo()
    with pytest.raises(StorageError, match="newer oMLX"):  # the way back is refused, not guessed
        Registry(root, []).bring_up_to_date()


def test_a_migration_that_breaks_off_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    past_stores.restore("version-1", root)
    before = files(root / "manifests")

    def broken(folder: Path) -> None:
        next((folder / "manifests").rglob("latest")).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(versions, "VERSION", 2)
    monkeypatch.setattr(versions, "MIGRATIONS", {1: broken})
    for _ in range(2):
        with pytest.raises(StorageError, match="no space left"):
            Registry(root, []).bring_up_to_date()
    # What was there before the first try is kept, not what the first try made of it.
    assert files(root / "omlx" / "backups" / "version-1") == before


@pytest.mark.parametrize("mark", ['{"version":2}', '{"version":99,"more":1}', "rubbish", '{"version":"x"}'])
def test_a_store_of_a_newer_version_is_left_alone(mark: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    past_stores.restore("version-1", root)
    (root / "omlx" / "version.json").write_text(mark)
    before = files(root)
    with pytest.raises(StorageError, match=r"newer oMLX|cannot be read"):
        Registry(root, []).bring_up_to_date()
    assert {name: data for name, data in files(root).items() if not name.endswith(".lock")} == before


def test_a_new_folder_gets_a_mark_and_nothing_else(tmp_path: Path) -> None:
    Registry(tmp_path / "new", []).bring_up_to_date()
    assert [name for name in files(tmp_path / "new") if not name.endswith(".lock")] == ["omlx/version.json"]
