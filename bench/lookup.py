"""What guesses from the prompt gain a lone reply: an edit, a repetition and a free text, with and without, by turns.

    python -m bench.lookup --model smollm2 --rounds 3

Two servers run side by side, one with `prompt_lookup`; each task is asked of both in every round, and the replies must
be the same.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import httpx

from tests.support.server import ServerProcess

TEXT = (
    "The old lighthouse at the edge of the bay was built in 1874 by a man called Henry Ward. He had come from the "
    "north with two sons and a mule, and carried every stone up the hill by himself. For ninety years its lamp was lit "
    "each evening, first with oil, then with gas, and at last with electricity. Ships from many countries knew its "
    "white beam, and sailors told stories about the keeper who played the violin in the storm. Today the tower is a "
    "small museum, and children climb its hundred and twelve steps to look at the sea."
)
TASKS = {
    "edit": f"Rewrite this text with the name Peter Miller instead of Henry Ward and change nothing else.\n\n{TEXT}",
    "repeat": f"Repeat this text word for word.\n\n{TEXT}",
    "free": "Write a story about a fox who learns to sail.",
}


def reply(url: str, model: str, task: str, tokens: int) -> tuple[str, float]:
    """The text, and tokens per second of its decoding."""
    options = {"temperature": 0, "num_predict": tokens}
    body = {"model": model, "messages": [{"role": "user", "content": task}], "options": options, "stream": False}
    answer = httpx.post(f"{url}/api/chat", json=body, timeout=600).raise_for_status().json()
    return answer["message"]["content"], answer["eval_count"] / answer["eval_duration"] * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a bundled model, or one that can be pulled")
    parser.add_argument("--tokens", type=int, default=160, help="of each reply (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each task (%(default)s)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
        ServerProcess(Path(first), env={"OMLX_PROMPT_LOOKUP": "false"}) as without_lookup,
        ServerProcess(Path(second)) as with_lookup,
    ):
        plain, lookup = without_lookup.url, with_lookup.url
        for url in (plain, lookup):
            httpx.post(
                f"{url}/api/pull", json={"model": options.model, "stream": False}, timeout=600
            ).raise_for_status()
            reply(url, options.model, "Say hello.", 8)
        for name, task in TASKS.items():
            rates: dict[str, list[float]] = {plain: [], lookup: []}
            for _ in range(options.rounds):
                texts = set()
                for url, seen in rates.items():
                    text, rate = reply(url, options.model, task, options.tokens)
                    texts.add(text)
                    seen.append(rate)
                if len(texts) > 1:
                    raise SystemExit(f"{name}: the replies differ: {texts}")
            slow, fast = (statistics.median(seen) for seen in rates.values())
            print(f"{name:8} {slow:7.1f} tok/s, with lookup {fast:7.1f}: {fast / slow:.2f} x", flush=True)


if __name__ == "__main__":
    main()
