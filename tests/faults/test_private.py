"""Files of the server are nobody else's."""

from __future__ import annotations

from tests.faults.house import House


def test_what_the_server_writes_is_for_its_owner_only(house: House) -> None:
    """Models, cache and notes: 0600, their folders 0700."""
    open_to_others = [
        str(path)
        for folder in (house.models, house.folder / "kv")
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
