"""Frames survive the wire, whatever is in them; bytes that are no frame are an error, never a guess."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.messages.frames import (
    HEADER_SIZE,
    MAX_FRAME,
    Cancel,
    Events,
    FromRunner,
    Generate,
    Heartbeat,
    Load,
    ToRunner,
    body_length,
    decode_from_runner,
    decode_to_runner,
    encode,
)
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import (
    Delta,
    Failure,
    Finish,
    GenerateRequest,
    Limits,
    Message,
    Sampling,
    TokenLogprob,
    ToolCall,
)
from omlx.runner.mailbox import Mailbox, join

texts = st.text(max_size=20)
numbers = st.integers(0, 2**40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**50), 2**50) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
calls = st.builds(ToolCall, name=texts, arguments=st.dictionaries(texts, json_values, max_size=3), id=texts)
logprobs = st.builds(TokenLogprob, token=texts, logprob=st.floats(-100, 0), bytes=st.lists(st.integers(0, 255)))
deltas = st.builds(Delta, id=numbers, content=texts, thinking=texts, tool_calls=st.lists(calls, max_size=2),
                   logprobs=st.lists(logprobs, max_size=2))  # fmt: skip
finishes = st.builds(Finish, id=numbers, reason=st.sampled_from(["stop", "length"]), prompt_tokens=numbers,
                     context=st.lists(numbers, max_size=4))  # fmt: skip
failures = st.builds(Failure, id=numbers, kind=st.sampled_from(["invalid", "too_long", "crashed"]), message=texts)
messages = st.builds(Message, role=texts, content=texts, images=st.lists(st.binary(max_size=20), max_size=2),
                     tool_calls=st.lists(calls, max_size=1))  # fmt: skip
requests = st.builds(
    GenerateRequest, id=numbers, messages=st.lists(messages, max_size=3), raw_prompt=st.none() | texts,
    think=st.none() | st.booleans() | texts, format=st.none() | st.just("json") | st.dictionaries(texts, json_values),
    sampling=st.builds(Sampling, temperature=st.floats(0, 5), seed=st.none() | numbers),
    limits=st.builds(Limits, stop=st.lists(texts, max_size=2)),
)  # fmt: skip
engines = st.builds(EngineConfig, context_length=numbers)
to_runner = st.one_of(
    st.builds(Generate, requests),
    st.builds(Cancel, numbers),
    st.builds(Load, st.builds(LoadSpec, name=texts, path=texts, fingerprint=texts, engine=engines)),
)
from_runner = st.one_of(
    st.builds(Events, st.lists(st.one_of(deltas, finishes, failures), max_size=5)),
    st.builds(Heartbeat, steps=numbers, running=numbers, waiting=numbers, memory_bytes=numbers, max_batch=numbers),
)


@given(to_runner)
def test_frames_to_the_runner_come_back_as_they_were(frame: ToRunner) -> None:
    data = encode(frame)
    assert body_length(data[:HEADER_SIZE]) == len(data) - HEADER_SIZE
    assert decode_to_runner(data[HEADER_SIZE:]) == frame


@given(from_runner)
def test_frames_from_the_runner_come_back_as_they_were(frame: FromRunner) -> None:
    assert decode_from_runner(encode(frame)[HEADER_SIZE:]) == frame


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_frame_or_an_error(data: bytes) -> None:
    for decode in (decode_to_runner, decode_from_runner):
        with contextlib.suppress(msgspec.MsgspecError):
            decode(data)


def test_an_absurd_length_is_refused_before_it_is_believed() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        body_length((MAX_FRAME + 1).to_bytes(4, "big"))


@given(st.lists(deltas, max_size=60))
def test_a_slow_reader_gets_the_same_text_in_fewer_pieces(sent: list[Delta]) -> None:
    mailbox = Mailbox()
    for delta in sent:
        mailbox.put(delta)
    got = [item for item in mailbox._items if isinstance(item, Delta)]
    assert "".join(d.content for d in got) == "".join(d.content for d in sent)
    assert "".join(d.thinking for d in got) == "".join(d.thinking for d in sent)
    assert [c for d in got for c in d.tool_calls] == [c for d in sent for c in d.tool_calls]
    assert [p for d in got for p in d.logprobs] == [p for d in sent for p in d.logprobs]


def test_joining_never_moves_an_answer_in_front_of_its_thinking() -> None:
    assert join(Delta(1, thinking="hm"), Delta(1, content="yes")) is None
    assert join(Delta(1, content="a"), Delta(1, content="b")) == Delta(1, content="ab")


def test_nothing_follows_the_last_word() -> None:
    mailbox = Mailbox()
    mailbox.put(Failure(1, "crashed", "gone"))
    mailbox.put(Delta(1, content="late"))
    assert mailbox.closed
    assert len(mailbox._items) == 1
