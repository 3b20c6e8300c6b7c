"""llama.cpp on the same file, as a peer to compare with: a script for a Python that has `xllamacpp`, and its caller.

The peer is no dependency of the project and would take threads and ports in the test process; it runs in a process of
its own, with the interpreter named by OMLX_TEST_PEER or, where xllamacpp is importable, this one. As a script it reads
{"path", "texts", "prompts", "tokens"} as JSON from stdin and writes {"ids", "replies"}: the token ids of each text and,
for each prompt (ids), the ids llama.cpp continues it with under greedy decoding, each with its log probability or null.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

# Read when collected: the suite clears our variables before the first test runs.
_INTERPRETER = os.environ.get("OMLX_TEST_PEER") or (sys.executable if importlib.util.find_spec("xllamacpp") else "")
_MARK = "@@answer@@"


def available() -> bool:
    return bool(_INTERPRETER)


def ask(
    path: Path, texts: list[str], prompts: list[list[int]], tokens: int, *, patience_s: float = 150.0
) -> dict[str, Any]:
    return _run({"path": str(path), "texts": texts, "prompts": prompts, "tokens": tokens}, patience_s)


def embed(path: Path, texts: list[str], *, patience_s: float = 150.0) -> tuple[list[list[int]], list[list[float]]]:
    """The token ids and the vector of each text, of a model that embeds."""
    answer = _run({"path": str(path), "texts": texts, "prompts": [], "tokens": 0, "embeds": True}, patience_s)
    return answer["ids"], answer["vectors"]


def _run(request: dict[str, Any], patience_s: float) -> dict[str, Any]:
    job = json.dumps(request)
    command = [_INTERPRETER, __file__]
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=patience_s)
    assert _MARK in done.stdout, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.partition(_MARK)[2])
    return answer


def main() -> None:
    import xllamacpp  # type: ignore[import-not-found]

    job = json.load(sys.stdin)
    params = xllamacpp.CommonParams()
    params.model.path = job["path"]
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity, params.port = 512, 1, False, 1, 0
    params.embedding = job.get("embeds", False)
    # Threads that wait for each other by spinning are many times slower where other programs want the processor, too.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)

    def post(route: str, body: dict[str, Any]) -> Any:
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(server.listening_address + route, data, kind)) as reply:
            return json.load(reply)

    ids = [
        post("/tokenize", {"content": t, "add_special": True, "parse_special": True})["tokens"] for t in job["texts"]
    ]
    greedy = {"temperature": 0, "samplers": ["temperature"], "n_probs": 1, "return_tokens": True, "cache_prompt": False}
    replies = []
    for prompt in job["prompts"]:
        answer = post("/completion", {"prompt": prompt, "n_predict": job["tokens"], "ignore_eos": True, **greedy})
        entries, tokens = answer["completion_probabilities"], answer["tokens"]
        # Tokens that only together make a character share an entry: then which is whose is unknown.
        known = [entry["id"] for entry in entries] == tokens
        replies.append([(token, entries[at]["logprob"] if known else None) for at, token in enumerate(tokens)])
    embedded = [post("/v1/embeddings", {"input": t, "model": "x"}) for t in job["texts"] if job.get("embeds")]
    vectors = [answer["data"][0]["embedding"] for answer in embedded]
    print(_MARK + json.dumps({"ids": ids, "replies": replies, "vectors": vectors}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
