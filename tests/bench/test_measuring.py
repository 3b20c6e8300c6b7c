"""What the measuring client promises: right moments from any way of framing, prompts that nobody sent, honest sums."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from omlx.bench.energy import mean_watts
from omlx.bench.figures import Figure, Report, compare, decode_rate, percentile, whole_rate
from omlx.bench.prompts import PromptWriter
from omlx.bench.stream import StreamError, post_lines
from omlx.bench.target import BenchTarget, TimedReply, ask, calibrate
from omlx.power.rapl import rapl_joules

pytestmark = pytest.mark.anyio
Part = bytes | float


async def against(parts: list[Part], work: Callable[[str], Awaitable[object]]) -> object:
    """Run `work` with the URL of a server that answers any request with these bytes; a number is a pause."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            if isinstance(part, bytes):
                writer.write(part)
                await writer.drain()
            else:
                await asyncio.sleep(part)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await work(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def lines(url: str) -> list[bytes]:
    return [line async for _, line in post_lines(url + "/x", b"{}", {}, timeout_s=10)]


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FRAMES: list[tuple[str, list[Part]]] = [
    ("until the end", [b"HTTP/1.0 200 OK\r\n\r\n", b"one\ntw", b"o\nthree"]),
    ("a length", [b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\none\ntwo\nthreeX"]),
    ("chunks", [CHUNKED + b"4\r\none\n\r\n4;x=1\r\ntwo\n\r\n5\r\nthree\r\n0\r\n\r\n"]),
    ("chunks in pieces", [CHUNKED, b"8", b"\r\none\n", 0.01, b"two\n\r", b"\n5\r\nthr", 0.01, b"ee\r\n0\r\n\r\n"]),
]


@pytest.mark.parametrize(("parts"), [parts for _, parts in FRAMES], ids=[name for name, _ in FRAMES])
async def test_every_framing_gives_the_same_lines(parts: list[Part]) -> None:
    assert await against(parts, lines) == [b"one", b"two", b"three"]


BROKEN: list[tuple[list[Part], str, int]] = [
    ([CHUNKED + b"4\r\none\n\r\n"], "before it was complete", 0),
    ([CHUNKED + b"zz\r\none\n\r\n"], "a chunk without a length", 0),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\none\n"], "before it was complete", 0),
    ([b"SSH-2.0-x\r\n\r\n"], "no HTTP server", 0),
    ([b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\ngone"], "gone", 404),
    ([], "0 bytes read", 0),
]


@pytest.mark.parametrize(("parts", "sentence", "status"), BROKEN)
async def test_a_broken_answer_is_one_error(parts: list[Part], sentence: str, status: int) -> None:
    with pytest.raises(StreamError, match=sentence) as caught:
        await against(parts, lines)
    assert caught.value.status == status


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async def impatient(url: str) -> None:
        async for _ in post_lines(url, b"{}", {}, timeout_s=0.1):
            pass

    with pytest.raises(StreamError, match="no complete answer within"):
        await against([5.0], impatient)
    with pytest.raises(StreamError, match=r"127\.0\.0\.1:1"):
        await lines("http://127.0.0.1:1")


async def test_the_first_token_is_the_first_text_not_the_role_nor_a_keep_alive() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    early = b': keepalive\n\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    text = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\ndata: {"choices":[{"delta":{"content":" all"}}]}\n\n'
    last = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'

    async def work(url: str) -> TimedReply:
        return await ask(BenchTarget(url=url, api="openai", model="m"), [{"role": "user", "content": "?"}], 9)

    reply = await against([head, early, 0.2, text, last, usage], work)
    assert isinstance(reply, TimedReply)
    assert reply.first_token_s >= 0.2
    assert (reply.text, reply.tokens, reply.prompt_tokens, len(reply.times)) == ("Hi all", 3, 7, 2)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"message":{"content":"a"},"done":false}\n', "before it was complete"),
        (b'{"error":"out of luck"}\n', "out of luck"),
        (b'{"message":{"content":""},"done":true}\n', "no text"),
        (b"<html>\n", "cannot be read"),
    ],
)
async def test_an_answer_that_cannot_be_measured_is_an_error(body: bytes, sentence: str) -> None:
    async def work(url: str) -> TimedReply:
        return await ask(BenchTarget(url=url, api="ollama", model="m"), [], 9)

    with pytest.raises(StreamError, match=sentence):
        await against([b"HTTP/1.0 200 OK\r\n\r\n" + body], work)


async def test_an_error_of_either_dialect_is_told_in_its_own_words() -> None:
    async def work(url: str) -> TimedReply:
        return await ask(BenchTarget(url=url, api="openai", model="m"), [], 9)

    for body in (b'{"error":"no such model"}', b'{"error":{"message":"no such model","code":404}}', b"no such model"):
        with pytest.raises(StreamError, match=r"^no such model$"):
            await against([b"HTTP/1.0 404 No\r\n\r\n" + body], work)


def test_prompts_are_new_and_as_long_as_asked_for() -> None:
    writer = PromptWriter("a run")
    texts = [writer.prompt(100) for _ in range(50)]
    assert len({" ".join(text.split()[:8]) for text in texts}) == 50
    assert PromptWriter("a run").prompt(100) != PromptWriter("another run").prompt(100)
    # A server whose tokens are half words, and whose template takes 30.
    writer.learn((8, 56), (8 * 2 + 30, 56 * 2 + 30))
    asked = writer.prompt(430).split()
    assert len(asked) - len(writer.prompt_of(0).split()) == 200
    writer.learn((8, 56), (50, 50))  # nonsense
    assert len(writer.prompt(430).split()) == len(asked)


def reply(asked: float, times: list[float], tokens: int) -> TimedReply:
    return TimedReply(asked=asked, times=times, tokens=tokens)


def test_rates_are_of_all_replies_together() -> None:
    replies = [reply(0.0, [1.0, 2.0, 3.0], 3), reply(0.5, [1.5, 2.5, 4.5], 6)]
    assert whole_rate(replies) == pytest.approx(9 / 4.5)
    assert decode_rate(replies) == pytest.approx(8 / 3.5)
    # Held back and sent in one piece: the time between the pieces is no speed.
    assert decode_rate([reply(0.0, [1.0] * 19 + [1.001], 20)]) is None
    assert decode_rate([reply(0.0, [1.0], 1)]) is None


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 21)]
    assert [percentile(values, share) for share in (0.5, 0.95, 1.0)] == [10.0, 19.0, 20.0]
    assert percentile([3.0], 0.95) == 3.0


def test_two_runs_differ_only_where_their_ranges_do() -> None:
    def run(rate: list[float], wait: list[float]) -> Report:
        figures = [Figure("decode", "tok/s", rate), Figure("first token", "s", wait)]
        return Report(when="", model="m", url="", api="ollama", server="", machine="", figures=figures)

    found = compare(run([10, 11, 12], [1, 2, 3]), run([13, 14, 15], [2, 3, 4]))
    assert [(each.name, each.verdict) for each in found] == [("decode", "better"), ("first token", "within spread")]
    assert [each.verdict for each in compare(run([10], [1]), run([9], [2]))] == ["worse", "worse"]


def test_energy_is_what_the_system_counts(tmp_path: Path) -> None:
    assert rapl_joules(tmp_path) is None
    for name, microjoules in (("intel-rapl:0", "2000000"), ("intel-rapl:1", "500000"), ("intel-rapl:0:0", "7")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(microjoules)
    assert rapl_joules(tmp_path) == 2.5
    sample = "GPU Power: 90 mW\nCombined Power (CPU + GPU + ANE): {} mW\n"
    assert mean_watts(sample.format(4000) + sample.format(6000)) == 5.0
    assert mean_watts("nothing of the kind") is None


async def test_a_server_that_counts_no_prompts_teaches_nothing() -> None:
    async def work(url: str) -> bool:
        return await calibrate(BenchTarget(url=url, api="ollama", model="m"), PromptWriter("x"))

    body = b'{"message":{"content":"a"},"done":true}\n'
    assert await against([b"HTTP/1.0 200 OK\r\n\r\n" + body], work) is False
