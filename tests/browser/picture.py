"""Take the picture of the dashboard that the README shows: `python -m tests.browser.picture docs/dashboard.png`.

It starts a server of its own, has a few conversations with smollm2 for some minutes and photographs the page. Wants a
machine with nothing else to do: the numbers are real.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
from playwright.sync_api import sync_playwright

from tests.browser.chromium import program
from tests.support.server import ServerProcess

SECONDS = 240
TALKERS = 4
SYSTEM = (
    "You are the assistant of a small bicycle workshop. " + "Answer briefly and name the tool that is needed. " * 25
)
QUESTIONS = ("How do I true a wheel?", "My chain skips. Why?", "Which oil for a chain?", "How tight is a crank bolt?")


def talk(url: str, number: int, end: float) -> None:
    """One conversation after another, each a few turns long."""
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as http:
        while time.monotonic() < end:
            turns = [{"role": "system", "content": SYSTEM}]
            for at in range(4):
                turns.append({"role": "user", "content": QUESTIONS[(number + at) % len(QUESTIONS)]})
                body = {"model": "smollm2", "messages": turns, "stream": False, "options": {"num_predict": 120}}
                answer = http.post("/api/chat", json=body)
                if answer.is_error or time.monotonic() > end:
                    return
                turns.append(answer.json()["message"])
            time.sleep(number * 2)


def main(picture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server:
        httpx.post(f"{server.url}/api/pull", json={"model": "smollm2"}, timeout=300, trust_env=False).raise_for_status()
        end = time.monotonic() + SECONDS
        talkers = [threading.Thread(target=talk, args=(server.url, at, end)) for at in range(TALKERS)]
        for talker in talkers:
            talker.start()
        time.sleep(SECONDS - 10)
        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=program(), args=["--no-sandbox"])
            page = chromium.new_page(viewport={"width": 1280, "height": 900})
            page.goto(server.url)
            page.get_by_text("Live", exact=True).wait_for()
            page.wait_for_timeout(2500)
            page.screenshot(path=picture, full_page=True)
            chromium.close()
        for talker in talkers:
            talker.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
