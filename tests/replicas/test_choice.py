"""Which replica serves a request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.replicas.choice import ReplicaRequest, View, choose, full_name, read

QWEN = full_name("qwen3:8b")


def views(*loads: int, models: tuple[str, ...] = ("qwen3:8b",)) -> list[View]:
    names = frozenset(full_name(name) for name in models)
    return [View(url=f"http://{at}", models=names, load=load) for at, load in enumerate(loads)]


def url_of(views: list[View], asked: ReplicaRequest) -> str:
    found = choose(views, asked)
    assert found is not None
    return found.url


def test_requests_without_a_beginning_go_where_least_is_to_do() -> None:
    assert url_of(views(3, 1, 2), ReplicaRequest(QWEN)) == "http://1"


@given(beginning=st.binary(min_size=1, max_size=50))
def test_a_conversation_stays_until_its_replica_has_clearly_more_to_do(beginning: bytes) -> None:
    asked = ReplicaRequest(QWEN, beginning)
    home = url_of(views(0, 0, 0), asked)
    assert url_of(views(2, 2, 2), asked) == home
    loads = [12 if view.url == home else 1 for view in views(0, 0, 0)]
    assert url_of(views(*loads), asked) != home


@given(beginnings=st.lists(st.binary(min_size=4, max_size=40), min_size=1, max_size=30, unique=True))
def test_a_replica_that_goes_moves_only_its_own_conversations(beginnings: list[bytes]) -> None:
    everybody = views(0, 0, 0)
    for beginning in beginnings:
        asked = ReplicaRequest(QWEN, beginning)
        home = url_of(everybody, asked)
        if home != "http://2":
            assert url_of(everybody[:2], asked) == home


def test_only_replicas_that_have_the_model_are_asked() -> None:
    mixed = [*views(0, models=("gemma3:4b",)), View(url="http://big", models={QWEN}, load=9)]
    assert url_of(mixed, ReplicaRequest(QWEN)) == "http://big"
    assert url_of(mixed, ReplicaRequest(full_name("unknown"))) == "http://0"
    assert choose([], ReplicaRequest(QWEN)) is None


FIRST = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
LATER = [*FIRST, {"role": "assistant", "content": "Hi!"}, {"role": "user", "content": "More"}]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"messages": FIRST}, {"messages": LATER, "stream": False}),
        ({"Messages": FIRST}, {"messages": LATER}),
        ({"system": "S", "messages": FIRST[1:]}, {"system": "S", "messages": LATER[1:]}),
        ({"input": FIRST}, {"input": LATER}),
    ],
)
def test_the_turns_of_a_conversation_have_one_beginning(first: dict[str, object], later: dict[str, object]) -> None:
    one, two = (read({"model": "qwen3:8b", **body}) for body in (first, later))
    assert one == two
    assert one.model == QWEN
    assert one.beginning


def test_different_conversations_have_different_beginnings() -> None:
    assert read({"prompt": "a"}) != read({"prompt": "b"})


@given(body=st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["model", "messages", "role", "prompt", "input", "system"]), inner, max_size=4),
))  # fmt: skip
def test_any_body_can_be_read(body: object) -> None:
    assert isinstance(read(body), ReplicaRequest)


def test_names_are_compared_in_full() -> None:
    assert full_name("smollm2") == full_name("smollm2:latest") != ""
    assert full_name("../x") == full_name(5) == ""
