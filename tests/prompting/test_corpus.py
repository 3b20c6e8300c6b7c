"""Every family's output, whole and spoiled: the same however it is cut, nothing lost, no marker in the text.

python -m tests.prompting.test_corpus      prints how many of the spoiled outputs still gave both calls, per family
"""

from __future__ import annotations

import itertools
import json
import random
import re
import zlib

import pytest

from omlx.prompting.output import OutputParser, Segment
from omlx.prompting.segments import joined
from tests.prompting.corpus import CALLS, CORPUS, TEXT, THOUGHT, Mutated, Output

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


def parse(output: Output, written: str, sizes: list[int], *, ended: bool = False) -> list[Segment]:
    """The segments of `written`, in chunks of `sizes`, over and over; none: in one. `ended`: see `finish`."""
    parser = OutputParser(output.dialect, tools=TOOLS, opens_thinking=output.opens, new_id=lambda: "")
    segments: list[Segment] = []
    position = 0
    for size in itertools.cycle(sizes or [len(written)]):
        if position >= len(written):
            break
        segments += parser.feed(written[position : position + size])
        position += size
    return joined([*segments, *parser.finish(ended=ended)])


def text_of(segments: list[Segment], kind: str) -> str:
    return "".join(segment.text for segment in segments if segment.kind == kind)


def calls_of(segments: list[Segment]) -> list[tuple[str, dict[str, object]]]:
    return [(segment.call.name, segment.call.arguments) for segment in segments if segment.call]


def check(output: Output, mutated: Mutated, *, once: bool = True, ended: bool = False) -> int:
    """How many calls were found. `once`: it is the only mutation, so that it can be repaired. `ended`: see `parse`."""
    kind, written, spoiled = mutated
    dice = random.Random(zlib.crc32(written.encode()))
    segments = parse(output, written, [], ended=ended)
    for sizes in ([1], [dice.randint(1, 12) for _ in range(7)]):
        assert parse(output, written, sizes, ended=ended) == segments, f"{kind}, chunks of {sizes}: {written}"
    found = calls_of(segments)
    content = text_of(segments, "content")
    told = text_of(segments, "thinking") + content + json.dumps(found, ensure_ascii=False)
    # A call that the end of the output cut off is left out where a whole one came before.
    lost = [word for word in output.words if word in written and word not in told]
    assert not lost or (found and (kind == "cut" or not once)), f"{kind}, lost {lost}: {written} -> {segments}"
    beyond_repair = kind == "swap" or len(found) < len(CALLS) or (spoiled and spoiled in content)
    if once and not beyond_repair:
        marks = re.findall(output.tags, content)
        assert not marks, f"{kind}, {marks} left: {written} -> {segments}"
    return len(found)


def sample(output: Output, spoiled: int, cuts: int) -> list[Mutated]:
    """Every so many of the mutations of tags, and of the cuts; which ones, the name decides."""
    first = zlib.crc32(output.name.encode())
    found = list(output.mutations())
    tags = [mutated for mutated in found if mutated.kind != "cut"]
    ends = [mutated for mutated in found if mutated.kind == "cut"]
    return tags[first % spoiled :: spoiled] + ends[first % cuts :: cuts]


@pytest.fixture(params=CORPUS, ids=lambda output: output.name)
def output(request: pytest.FixtureRequest) -> Output:
    found: Output = request.param
    return found


def test_a_sound_output_is_read_whole(output: Output) -> None:
    for sizes in ([], [1], [3, 1, 7]):
        segments = parse(output, output.written, sizes)
        assert calls_of(segments) == CALLS
        assert text_of(segments, "content").strip() == (TEXT if output.says else "")
        assert text_of(segments, "thinking").strip() == (THOUGHT if output.thinks else "")


def test_spoiled_outputs_lose_nothing(output: Output) -> None:
    for mutated in sample(output, 4, 25):
        check(output, mutated, ended=mutated.kind != "cut")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_outputs_cut_anywhere_and_spoiled_twice_lose_nothing(output: Output) -> None:
    for mutated in sample(output, 1, 1):
        check(output, mutated)
        check(output, mutated, ended=True)
        if mutated.kind != "cut":
            for again in sample(output._replace(written=mutated.written), 19, 101):
                check(output, again, once=False)


def test_there_are_enough_families() -> None:
    assert len({output.name for output in CORPUS}) >= 40


if __name__ == "__main__":
    for each in CORPUS:
        spoiled = [mutated for mutated in each.mutations() if mutated.kind != "cut"]
        whole = sum(check(each, mutated) == len(CALLS) for mutated in spoiled)
        print(f"{each.name:24} {whole:4} of {len(spoiled):4}")
