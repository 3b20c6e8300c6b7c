"""The real runner process with a tiny model: what goes in comes out right, alone or together; nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from omlx_cache import StoreConfig
from tokenizers import Tokenizer

from omlx.messages.frames import Embed
from omlx.messages.load_spec import EngineConfig, LoadSpec
from omlx.messages.request import Delta, Finish, GenerateRequest, Limits, Message, Sampling, TextGrammar
from omlx.runner.connection import CRASHED, RequestFailed
from omlx.runner.host import RunnerHost
from tests.support.lessons import LESSONS, STORY, lesson
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.anyio


def load_spec(**changes: Any) -> LoadSpec:
    fields: dict[str, Any] = {
        "name": "tiny:latest",
        "path": str(tiny_model("qwen3", taught=True)),
        "fingerprint": "tiny",
        "engine": EngineConfig(context_length=1024),
        "store": StoreConfig(fingerprint=changes.get("fingerprint", "tiny"), hot_bytes=32_000_000),
    }
    return LoadSpec(**{**fields, **changes})


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[RunnerHost]:
    """One loaded runner for the tests that leave it as it was."""
    found = await RunnerHost.spawn()
    await found.load(load_spec(), stall_timeout=60)
    yield found
    await found.close()


def request(text: str, *, tokens: int = 64, limits: dict[str, Any] | None = None, **changes: Any) -> GenerateRequest:
    messages = changes.pop("messages", [Message("user", text)])
    return GenerateRequest(
        id=0,
        messages=messages,
        sampling=changes.pop("sampling", Sampling(temperature=0)),
        limits=Limits(num_predict=tokens, **(limits or {})),
        **changes,
    )


async def run(host: RunnerHost, wanted: GenerateRequest) -> tuple[str, str, Finish]:
    """Content, thinking and the last event."""
    content = thinking = ""
    async for event in host.generate(wanted):
        if isinstance(event, Finish):
            return content, thinking, event
        content, thinking = content + event.content, thinking + event.thinking
    raise AssertionError("no Finish")


async def settled(host: RunnerHost) -> dict[str, Any]:
    """Counters once nothing is open any more."""
    for _ in range(6000):
        stats = await host.stats()
        if stats["running"] == stats["waiting"] == stats["open"] == 0:
            return stats
        await asyncio.sleep(0.02)
    raise AssertionError(f"requests are left behind: {stats}")


async def test_the_faster_blas_is_loaded_before_mlx(host: RunnerHost) -> None:
    hello = await host.hello()
    assert hello.pid == host.pid
    if platform.machine() == "x86_64" and find_spec("ngsolve_openblas"):
        assert hello.blas.startswith("openblas")
    assert set(hello.versions) == {"mlx", "mlx-lm"}


async def test_ready_says_what_was_loaded(host: RunnerHost) -> None:
    assert host.ready is not None
    assert host.ready.num_ctx == 1024
    assert host.ready.memory_bytes > 500_000
    assert host.ready.kv_bytes_per_token > 0
    assert host.ready.weights


async def test_a_request_is_rendered_generated_and_counted(host: RunnerHost) -> None:
    content, thinking, finish = await run(host, request("What is 2 + 2?", think=True))
    assert (content, thinking.strip()) == ("2 + 2 = 4", "Two and two make four.")
    assert finish.reason == "stop"
    assert finish.prompt_tokens > 0
    assert finish.completion_tokens > 5
    assert finish.prompt_ns > 0
    assert finish.generation_ns > 0


async def test_the_end_names_the_stop_string_that_matched(host: RunnerHost) -> None:
    content, _, finish = await run(host, request("Tell me a story.", think=False, limits={"stop": ["nope", "fell"]}))
    assert content == STORY[: STORY.index("fell")]
    assert (finish.reason, finish.stop_string) == ("stop", "fell")
    assert (await run(host, request("What is 2 + 2?", think=False)))[2].stop_string == ""


async def test_eight_requests_share_a_batch_and_each_gets_the_answer_it_gets_alone(host: RunnerHost) -> None:
    texts = [item.messages[-1]["content"] for item in LESSONS if len(item.messages) == 1 and not item.tools][:8]
    assert len(texts) == 8
    alone = [(await run(host, request(text, tokens=200, think=False)))[0] for text in texts]
    together = await asyncio.gather(*(run(host, request(text, tokens=200, think=False)) for text in texts))
    assert [content for content, _, _ in together] == alone
    assert lesson("story").content in alone
    assert host.heartbeat.max_batch > 1


async def test_tool_calls_come_as_calls(host: RunnerHost) -> None:
    calls = []
    wanted = request("What is the weather in Paris?", tools=lesson("weather").tools, think=False)
    async for event in host.generate(wanted):
        if isinstance(event, Delta):
            assert not event.content.strip()
            calls += event.tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("get_weather", {"city": "Paris"})]


async def test_a_request_that_is_closed_ends_at_the_next_step(host: RunnerHost) -> None:
    async with aclosing(host.generate(request("Tell me a story.", tokens=1000))) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    assert host.open_requests == 0
    closed = (await host.stats())["steps"]
    assert (await settled(host))["steps"] - closed <= 2


async def test_a_hundred_aborted_requests_leave_nothing_behind(host: RunnerHost) -> None:
    async def aborted(number: int) -> None:
        task = asyncio.create_task(run(host, request("Tell me a story.", tokens=500)))
        await asyncio.sleep(0.005 * (number % 10))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for first in range(0, 100, 20):
        await asyncio.gather(*(aborted(number) for number in range(first, first + 20)))
    await settled(host)
    assert (await run(host, request("Hello")))[0] == lesson("hello").content


async def test_a_bad_request_fails_alone(host: RunnerHost) -> None:
    bad = [
        request("Hello", format={"type": "no such type"}),
        request("Hello", messages=[Message("user", "look", images=[b"not an image"])]),
        request("x" * 10_000_000, limits={"truncate": False}),
        request("", raw_prompt=""),
    ]
    good, *failures = await asyncio.gather(
        run(host, request("Tell me a story.", tokens=200)),
        *(run(host, wanted) for wanted in bad),
        return_exceptions=True,
    )
    assert isinstance(good, tuple)
    assert good[0] == STORY
    kinds = [failure.kind for failure in failures if isinstance(failure, RequestFailed)]
    assert kinds == ["invalid", "invalid", "too_long", "invalid"]
    await settled(host)


async def test_the_oldest_messages_give_way_to_a_short_context(host: RunnerHost) -> None:
    filler = [Message(role, f"{number} " + "blah " * 40) for number in range(20) for role in ("user", "assistant")]
    messages = [Message("system", "You are a pirate."), *filler, Message("user", "Hello")]
    limits = {"num_ctx": 256}
    _, _, finish = await run(host, request("", messages=messages, limits=limits, render_only=True))
    assert finish.rendered is not None
    assert finish.prompt_tokens < 256
    assert "You are a pirate." in finish.rendered
    assert "19 blah" in finish.rendered or "blah" not in finish.rendered
    assert "\n0 blah" not in finish.rendered
    with pytest.raises(RequestFailed) as failure:
        await run(host, request("", messages=messages, limits={**limits, "truncate": False}))
    assert failure.value.kind == "too_long"
    assert "context length" in failure.value.message
    _, _, cut = await run(host, request("blah " * 400, tokens=2, limits=limits))
    assert 250 <= cut.prompt_tokens < 256, "its beginning and its end"


async def test_the_context_of_one_exchange_continues_in_the_next(host: RunnerHost) -> None:
    _, _, first = await run(host, request("My name is Ada.", think=False, return_context=True))
    assert len(first.context) >= first.prompt_tokens + first.completion_tokens - 1
    _, _, second = await run(host, request("What is my name?", think=False, context=first.context, return_context=True))
    assert second.context[: len(first.context)] == first.context
    assert second.prompt_tokens > first.prompt_tokens + first.completion_tokens - 1


async def test_a_recurrent_model_goes_on_where_the_template_leaves_the_past_alone() -> None:
    # Its template drops the (empty) thinking of earlier turns, so the next turn parts from this one before its end.
    host = await RunnerHost.spawn()
    await host.load(load_spec(path=str(tiny_model("falcon_h1")), fingerprint="hybrid"), stall_timeout=60)
    system, question = Message("system", STORY * 2), Message("user", "Hello")
    answer, _, first = await run(host, request("", messages=[system, question], tokens=6, think=False))
    turns = [system, question, Message("assistant", answer), Message("user", "And now?")]
    _, _, second = await run(host, request("", messages=turns, tokens=6, think=False))
    assert first.cached_tokens == 0
    assert first.prompt_tokens - 8 <= second.cached_tokens < first.prompt_tokens
    _, _, other = await run(host, request("", messages=[system, Message("user", "Bye")], tokens=6, think=False))
    assert other.cached_tokens > 100
    await host.close()


async def test_a_prompt_read_before_comes_from_the_kv_store(host: RunnerHost) -> None:
    wanted = request("Tell me a story. " + "Say it again. " * 60, tokens=4)
    _, _, first = await run(host, wanted)
    _, _, again = await run(host, wanted)
    assert again.prompt_tokens == first.prompt_tokens
    assert again.cached_tokens > 0
    stats = await host.cache("stats")
    assert stats["enabled"]
    assert stats["hits"] > 0
    explained = await host.cache("explain", "never seen before")
    assert explained["message"]


async def test_long_texts_do_not_stop_a_running_stream(host: RunnerHost) -> None:
    """10 MB: tokenized off the thread of the model and its lock, and no further than the context reaches."""
    text = "four words in here. " * 500_000
    tokenizer = Tokenizer.from_file(str(tiny_model("qwen3", taught=True) / "tokenizer.json"))

    def whole() -> float:
        begun = time.monotonic()
        tokenizer.encode(text[: len(text) // 10])
        return 10 * (time.monotonic() - begun)

    before_s = whole()
    raw = {"messages": [], "raw_prompt": text, "limits": {"truncate": False}}
    questions: dict[str, Callable[[], Awaitable[Any]]] = {
        "explain": lambda: host.cache("explain", text),
        "save": lambda: host.cache("save", text, session="s"),
        "count": lambda: run(host, request("", render_only=True, **raw)),
        "generate": lambda: run(host, request("", **raw)),
        "embed": lambda: host.embed(Embed(inputs=[text, text], truncate=False)),
        "tokens": lambda: run(host, request("", **{**raw, "raw_prompt": "", "context": [5] * 1_000_000})),
    }
    gaps = {}
    for name, ask in questions.items():
        asked = asyncio.ensure_future(refusal(ask()))
        gaps[name] = await longest_gap(host, asked)
        assert "context" in await asked, name
    # Measured on both sides: the machine may have become busier meanwhile.
    assert max(gaps.values()) < max(before_s, whole()) / 3, gaps


async def longest_gap(host: RunnerHost, until: asyncio.Future[Any]) -> float:
    """Seconds between two pieces of answers that are streamed, one after the other, until something is done."""
    longest, last = 0.0, time.monotonic()
    while not until.done():
        async for _ in host.generate(request("Tell me a story.", tokens=200, think=False)):
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    return longest


async def refusal(asked: Awaitable[Any]) -> str:
    try:
        return str((await asked)["error"])
    except RequestFailed as failure:
        return failure.message


async def test_kill_in_mid_stream_fails_the_open_requests_at_once() -> None:
    host = await RunnerHost.spawn()
    await host.load(load_spec(), stall_timeout=60)
    long = request("Tell me a story.", tokens=3000, grammar=TextGrammar("regex", "[a-z]{8000}"))
    async with aclosing(host.generate(long)) as events:
        assert isinstance(await anext(events), Delta)
        other = asyncio.create_task(run(host, long))
        await asyncio.sleep(0)
        os.kill(host.pid, signal.SIGKILL)
        with pytest.raises(RequestFailed) as failure:
            async for _ in events:
                pass
    assert (failure.value.kind, failure.value.message) == ("crashed", CRASHED)
    with pytest.raises(RequestFailed):
        await other
    assert "SIGKILL" in host.exit_text
    await host.close()


async def test_a_runner_ends_with_exit_code_0_when_it_is_asked_to() -> None:
    host = await RunnerHost.spawn()
    await host.load(load_spec(store=None), stall_timeout=60)
    await run(host, request("Hello"))
    await host.close()
    assert host.exit_text == "it ended with exit code 0"


async def test_a_server_killed_with_sigkill_leaves_no_runner(tmp_path: Path) -> None:
    """One runner is in the middle of a generation, one has just been started and is still importing."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in (await process.stdout.readline()).split()]
    assert len(pids) == 2
    process.kill()
    await process.wait()
    for _ in range(2400):
        left = [pid for pid in pids if alive(pid)]
        if not left:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"runners {left} outlived their server")


def alive(pid: int) -> bool:
    """Whether a process that is not ours to reap still runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        pass
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SERVER = """
import asyncio
import json
import logging
from omlx.messages.request import Delta
from omlx.runner.host import RunnerHost
from tests.runner.test_runner import load_spec, request

async def main():
    host = await RunnerHost.spawn()
    await host.load(load_spec(), stall_timeout=60)
    events = host.generate(request("Tell me a story.", tokens=100000))
    assert isinstance(await anext(events), Delta)
    importing = await RunnerHost.spawn()
    print(host.pid, importing.pid, flush=True)
    async for _ in events:
        pass

asyncio.run(main())
"""


async def test_a_tokenizer_that_gives_up_ends_its_own_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A regular expression of the model's own takes more steps than the library takes, which then panics."""
    folder = Path(shutil.copytree(tiny_model("qwen3", taught=True), tmp_path / "model"))
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    before = content["pre_tokenizer"]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, *([before] if before else [])]}
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    caplog.set_level(logging.INFO)
    host = await RunnerHost.spawn()
    try:
        await host.load(load_spec(path=str(folder), fingerprint="gives-up"), stall_timeout=60)
        for _ in range(3):  # more than there are threads for prompts
            with pytest.raises(RequestFailed, match="prompt"):
                async for _ in host.generate(request("secret-" + "x" * 5000)):
                    pass
        with pytest.raises(RequestFailed):
            await host.embed(Embed(inputs=["secret-" + "x" * 5000]))
        assert (await run(host, request("hello", tokens=4)))[2].prompt_tokens > 0
    finally:
        await host.close()
    assert "secret-" not in caplog.text and "retry-limit" not in caplog.text
