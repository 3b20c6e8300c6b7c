"""One house for all faults that leave the server standing; others build their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.house import House


@pytest.fixture(scope="session")
def shared_house(tmp_path_factory: pytest.TempPathFactory, own_folders: None) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"), env={"OMLX_MAX_BODY": "64MB"})
    with house:
        yield house.furnish()


@pytest.fixture
def house(shared_house: House) -> Iterator[House]:
    """The shared house, examined after the fault."""
    yield shared_house
    shared_house.examine()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """With -v -s the campaign reads as a report: the expected outcome of each fault as it is reached."""
    report = yield
    function = getattr(item, "function", None)
    if call.when == "call" and function is not None and item.config.getoption("verbose") > 0:
        print(f"\n    expected: {' '.join((function.__doc__ or '').split())}")
    return report  # type: ignore[return-value]
