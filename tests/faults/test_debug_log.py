"""What the log says at level debug: the server's and the runners' own steps, and nothing that a user wrote."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import httpx
import pytest

from tests.faults.house import MODEL, House
from tests.support.tiny import DATA

pytestmark = pytest.mark.timeout(600)
SECRET = "Xyzzy-4711"


def test_steps_are_told_and_no_secret_is(tmp_path: Path) -> None:
    """Admission, the plan of a step, the cache's and the pool's decisions; no prompt, no answer, no key."""
    env = {"OLLAMA_DEBUG": "1", "OMLX_API_KEY": SECRET.lower()}
    with House(tmp_path, env=env) as house:
        with httpx.Client(base_url=house.url, headers={"x-api-key": SECRET.lower()}, timeout=120) as http:
            files = {}
            for path in (DATA / "taught-qwen3").iterdir():
                data = path.read_bytes()
                files[path.name] = digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
                http.post(f"/api/blobs/{digest}", content=data).raise_for_status()
            http.post("/api/create", json={"model": MODEL, "files": files, "stream": False}).raise_for_status()
            messages = [{"role": "user", "content": f"{SECRET} " * 60}]
            for _ in range(2):
                body = {"model": MODEL, "messages": messages, "stream": False, "options": {"num_predict": 5}}
                http.post("/api/chat", json=body).raise_for_status()
        log = house.log_text()
    for told in (
        r"\[omlx\.pool\] taught:latest needs .* beside 0 other model\(s\): fits",
        r"\[omlx\.pool\] taught:latest is loaded by process \d+",
        r"\[omlx\.pool\] taught:latest is idle and stays for 300 s",
        r"admitted: \d+ prompt tokens, class interactive, 1 running",
        r"step \d+: 0 waiting, 0 prefilling, decoding in batches of \[1\]",
        r"prefix cache: 0 of \d+ tokens restored",
        r"prefix cache: [1-9]\d* of \d+ tokens restored",
    ):
        assert re.search(told, log), f"{told}\n{log}"
    assert SECRET.lower() not in log.lower()
    assert "Traceback" not in log
