"""The KV store as users meet it: the first token of chats with a long system prompt, through HTTP, across a restart.

    python bench/cache_product.py                    SmolLM2, a system prompt of about 2,000 tokens
    python bench/cache_product.py --words 300        a shorter one

Per round: a chat whose system prompt nobody has sent yet, a second one with the same system prompt and a new question,
then a restart of the server and a third. The model is loaded before each measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import ollama

from tests.support.server import ServerProcess

MODEL = "smollm2"
QUESTIONS = ("What is open on Sundays?", "Who was the first mayor?", "Where can I swim?")
OPTIONS = {"temperature": 0, "num_predict": 4, "num_ctx": 4096}


def system_prompt(words: int, number: int) -> str:
    """Sentences that no other round has, of about 1.7 tokens a word."""
    facts = (
        f"Fact {number}-{at}: house {at * 7 % 97} of the old town is open on day {at % 30}." for at in range(words)
    )
    return " ".join(" ".join(facts).split()[:words])


def first_token(server: ServerProcess, system: str, question: str) -> tuple[float, int, int]:
    """(seconds until the first token, tokens of the prompt, tokens of it that came from the store)."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": MODEL, "messages": messages, "options": OPTIONS}
    began, seconds, last = time.perf_counter(), 0.0, {}
    with httpx.stream("POST", f"{server.url}/api/chat", json=body, timeout=3600, trust_env=False) as reply:
        for line in reply.iter_lines():
            seconds = seconds or time.perf_counter() - began
            last = json.loads(line)
    return seconds, last["prompt_eval_count"], last.get("cached_tokens", 0)


def ready(server: ServerProcess) -> None:
    """Load the model and let it answer once."""
    first_token(server, "Be brief.", "Hello")


def measure(words: int, rounds: int, folder: Path) -> dict[str, Any]:
    env = {"OMLX_SPARE_RUNNER": "false"}
    found: dict[str, list[tuple[float, int, int]]] = {"first": [], "second": [], "restarted": []}
    systems = [system_prompt(words, number) for number in range(rounds)]
    with ServerProcess(folder, env=env) as server:
        for _ in ollama.Client(server.url).pull(MODEL, stream=True):
            pass
        ready(server)
        for system in systems:
            found["first"].append(first_token(server, system, QUESTIONS[0]))
            found["second"].append(first_token(server, system, QUESTIONS[1]))
    for system in systems:
        with ServerProcess(folder, env=env) as server:
            ready(server)
            found["restarted"].append(first_token(server, system, QUESTIONS[2]))
    seconds = {name: statistics.median(times for times, _, _ in values) for name, values in found.items()}
    return {
        "model": MODEL, "prompt tokens": found["first"][0][1], "from the store": found["second"][0][2],
        "first s": seconds["first"], "second s": seconds["second"], "after a restart s": seconds["restarted"],
        "second, times faster": seconds["first"] / seconds["second"],
        "after a restart, times faster": seconds["first"] / seconds["restarted"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=1170)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder:
        measured = measure(options.words, options.rounds, Path(folder))
    for name, value in measured.items():
        print(f"{name:32} {value:10.3f}" if isinstance(value, float) else f"{name:32} {value!s:>10}")
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
