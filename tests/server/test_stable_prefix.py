"""Agents that write something new into the beginning of each request are served from the cache all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from omlx_registry import Registry

from omlx.settings import Settings
from tests.server.local import SCRIPTED, LocalServer, stocked
from tests.support.lessons import WEATHER_TOOL
from tests.support.tiny import DATA

RULES = "You help with code. Read files before you change them, keep changes small, and run the tests. " * 6
TOOL = {"name": "get_weather", "input_schema": WEATHER_TOOL["function"]["parameters"]}


def sent_to_messages(http: httpx.Client, turn: int, said: list[dict[str, Any]]) -> dict[str, Any]:
    """As Claude Code does: the header is a block of its own, and its checksum is another with each request."""
    system = [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.39.c3{turn}; cc_entrypoint=cli; "
                                 f"cch={turn}6445;"},
        {"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}},
    ]  # fmt: skip
    body = {"model": "taught", "max_tokens": 8, "temperature": 0, "system": system, "tools": [TOOL], "messages": said}
    reply = http.post("/v1/messages", json=body).json()
    usage = reply["usage"]
    return {"said": reply["content"], "cached": usage["cache_read_input_tokens"], "new": usage["input_tokens"]}


AGENTS = {
    "assistants that tell time and date": "Current time: 2026-11-29 17:0{turn}:12\nToday's date: 2026-11-29\n",
    "goose": "You are a general-purpose AI agent.\n\nIt is currently 2026-11-29 17:0{turn}:12\n\n",
    "nanobot": "# nanobot\n\n## Current Time\n2026-11-29 17:0{turn} (Sunday)\n\n",
    "AutoGPT": "The current time and date is Sun Nov 29 17:0{turn}:12 2026\n",
    "Home Assistant": "You are a voice assistant.\nCurrent time is 17:0{turn}:12. Today's date is 2026-11-29.\n",
    "LibreChat": "Current Date & Time: 2026-11-29T17:0{turn}:12.345Z (0)\n",
    "a plain timestamp": "Timestamp: 2026-11-29T17:0{turn}:12Z\n",
    "a mail's date": "Date: Sun, 29 Nov 2026 17:0{turn}:12 +0000\n",
    "seconds": "Current Unix time: 17959716{turn}2\n",
    "German": "Aktuelle Uhrzeit: 29.11.2026, 17:0{turn} Uhr\n",
}
"""How system prompts begin that tell the time of each request."""


def sent_to_chat(
    http: httpx.Client, turn: int, said: list[dict[str, Any]], begin: str = AGENTS["assistants that tell time and date"]
) -> dict[str, Any]:
    """As agents do that tell the time at the beginning of their system prompt."""
    system = {"role": "system", "content": begin.format(turn=turn) + RULES}
    body = {"model": "taught", "max_tokens": 8, "temperature": 0, "messages": [system, *said], "tools": [WEATHER_TOOL]}
    reply = http.post("/v1/chat/completions", json=body).json()
    usage = reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    answer = reply["choices"][0]["message"]["content"]
    return {"said": answer, "cached": cached, "new": usage["prompt_tokens"] - cached}


def sent_natively(http: httpx.Client, turn: int, said: list[dict[str, Any]]) -> dict[str, Any]:
    """The same to /api/chat, by a client that asks for it."""
    system = {"role": "system", "content": AGENTS["goose"].format(turn=turn) + RULES}
    options = {"temperature": 0, "num_predict": 8, "stable_prefix": True}
    body = {"model": "taught", "options": options, "messages": [system, *said], "stream": False}
    reply = http.post("/api/chat", json=body).json()
    cached = reply.get("cached_tokens", 0)
    return {"said": reply["message"]["content"], "cached": cached, "new": reply["prompt_eval_count"] - cached}


@contextmanager
def server(root: Path, *, stable: bool) -> Iterator[httpx.Client]:
    registry = Registry(root / "models", [])
    registry.add_model_folder("taught", DATA / "taught-qwen3", transfer="copy")
    settings = Settings(models=str(root / "models"), paged_ssd_cache_dir=str(root / "kv"), spare_runner=False,
                        cache_block_size=16, stable_prefix=stable)  # fmt: skip
    with LocalServer(registry, settings) as running, running.client() as http:
        yield http


def test_cached_tokens_of_a_conversation_with_and_without(tmp_path: Path) -> None:
    found = {}
    for stable in (True, False):
        with server(tmp_path / str(stable), stable=stable) as http:
            for send in (sent_to_messages, sent_to_chat):
                said: list[dict[str, Any]] = []
                turns = []
                for turn in range(3):
                    said.append({"role": "user", "content": f"Question {turn}: what is in the file?"})
                    turns.append(send(http, turn, said))
                    said.append({"role": "assistant", "content": turns[-1]["said"] or "Nothing."})
                found[send.__name__, stable] = turns
    for send in (sent_to_messages, sent_to_chat):
        for turn in (1, 2):
            with_it, without = found[send.__name__, True][turn], found[send.__name__, False][turn]
            # All but the last exchange comes from the cache; without it, at most what stands before the change.
            assert with_it["cached"] > 4 * with_it["new"], (send, turn, found)
            assert without["cached"] < without["new"] / 4, (send, turn, found)


def test_the_prompts_of_known_agents_are_served_from_the_cache(tmp_path: Path) -> None:
    with server(tmp_path, stable=True) as http:
        sends = {name: partial(sent_to_chat, begin=begin) for name, begin in AGENTS.items()}
        for name, send in {**sends, "native": sent_natively}.items():
            said: list[dict[str, Any]] = []
            for turn in range(3):
                said.append({"role": "user", "content": f"Question {turn} of {name}: what is in the file?"})
                found = send(http, turn, said)
                said.append({"role": "assistant", "content": found["said"] or "Nothing."})
                assert turn == 0 or found["cached"] > 3 * found["new"], (name, turn, found)


def internal(http: httpx.Client, system: str, *said: dict[str, Any]) -> list[dict[str, Any]]:
    messages = [{"role": "system", "content": system}, *said]
    reply = http.post("/v1/chat/completions", json={"model": "thinker", "messages": messages}).json()
    found: list[dict[str, Any]] = json.loads(reply["choices"][0]["message"]["content"])["messages"]
    return found


def test_the_header_goes_and_what_follows_it_stays(http: httpx.Client) -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=sdk-cli; cch=36ee5;"
    request = {"role": "user", "content": "request"}
    assert internal(http, f"{header}You are an agent.", request)[0] == {
        "role": "system",
        "content": "You are an agent.",
    }
    assert internal(http, f"A\n{header}\nB", request)[0]["content"] == "A\nB"
    assert internal(http, header, request) == [{"role": "user", "content": "request"}]


@pytest.mark.parametrize(
    ("line", "moves"),
    [
        ("Current time: 17:03", True),
        ("The current date and time is Sunday, 29 November 2026 at 5:03 PM.", True),
        ("<now>2026-11-29T17:03:12Z</now>", True),
        ("Today's date: 2026-11-29", False),
        ("Office hours are 09:00 to 17:00.", False),
        ("Ports are now written as host:8080.", False),
        ("now 10:30 " + "x" * 200, False),
        ("Timestamp: 2026-11-30T23:00:00Z", True),
        ("timestamp=2026-11-30T23:00:00.123456+01:00", True),
        ("Date: Mon, 30 Nov 2026 23:00:00 +0000", True),
        ("<timestamp>2026-11-30 23:00:00</timestamp>", True),
        ("Timestamp: 1796079600123", True),
        ("Current Unix time: 1796079600", True),
        ("It is currently 2026-11-30 23:00:00", True),
        ("The current time and date is Mon Nov 30 23:00:00 2026", True),
        ("Heute ist Montag, der 30. November 2026, 23:00 Uhr.", True),
        ("Date et heure actuelles : 30/11/2026 23:00", True),
        ("Fecha y hora actual: 30/11/2026, 23:00:00", True),
        ("当前时间:2026年11月30日 23:00:00", True),
        ("現在の日時: 2026年11月30日 23時00分", True),
        ("현재 시간: 2026년 11월 30일 오후 11시 00분", True),
        ("Текущее время: 30.11.2026 23:00", True),
        ("Time: Monday, November 30, 2026 11:00 PM", True),
        ("## Current Time\n2026-11-30 23:00 (Monday)", True),
        ("Released: 2026-11-30T23:00:00Z", False),
        ("Meeting with Ada on 2026-12-01 10:00", False),
        ("We are open today from 09:00 to 17:00.", False),
        ("The build 1796079600 is current", False),
        ("id: 1796079600", False),
        ("Use python 3.11.02 now", False),
        ("Deadline: 2026-11-30 23:00", False),
        ("The date format is YYYY-MM-DDTHH:MM:SSZ", False),
        ("## Current Time", False),
    ],
)
def test_a_clock_goes_to_the_end_and_nothing_else_does(http: httpx.Client, line: str, moves: bool) -> None:
    asked = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "yes"}]
    # The blank ends the scripted model's command, whatever comes behind it.
    found = internal(http, f"A\n{line}\nB", *asked, {"role": "user", "content": "request "})
    if moves:
        assert found[0]["content"] == "A\nB"
        assert found[-1]["content"] == f"request \n\n<system-reminder>\n{line}\n</system-reminder>"
    else:
        assert found[0]["content"] == f"A\n{line}\nB"
        assert found[-1]["content"] == "request "
    assert [message["content"] for message in found[1:3]] == ["first", "yes"]


def test_a_native_request_is_taken_word_for_word(http: httpx.Client) -> None:
    messages = [{"role": "system", "content": "Current time: 17:03"}, {"role": "user", "content": "request"}]
    asked = {"model": "thinker", "messages": messages, "stream": False}
    reply = http.post("/api/chat", json=asked).json()
    assert json.loads(reply["message"]["content"])["messages"] == messages
    messages[1]["content"] += " "
    reply = http.post("/api/chat", json=asked | {"options": {"stable_prefix": True}}).json()
    assert [found["role"] for found in json.loads(reply["message"]["content"])["messages"]] == ["user"]


def test_a_setting_makes_all_native_requests_stable(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = Settings(models=str(root), spare_runner=False, stable_prefix_native=True)
    messages = [{"role": "system", "content": "Current time: 17:03"}, {"role": "user", "content": "request "}]
    asked = {"model": "thinker", "messages": messages, "stream": False}
    with LocalServer(stocked(root), settings, SCRIPTED) as running, running.client() as http:
        for options, roles in (({}, ["user"]), ({"stable_prefix": False}, ["system", "user"])):
            reply = http.post("/api/chat", json=asked | {"options": options}).json()
            found = json.loads(reply["message"]["content"])["messages"]
            assert [message["role"] for message in found] == roles


def test_only_so_many_lines_of_a_prompt_are_looked_at(http: httpx.Client) -> None:
    many = "\n".join(["Current time: 17:03"] * 200)
    found = internal(http, f"A\n{many}", {"role": "user", "content": "request "})
    assert found[0]["content"].count("17:03") == 200 - 64
    assert found[-1]["content"].count("17:03") == 64
