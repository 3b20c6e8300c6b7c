"""What the dashboard costs: how soon it is there, and what it takes of the CPU while nothing happens.

python -m bench.dashboard [--loads 10] [--seconds 60]

A load begins with the navigation, in a browser that has seen nothing yet (cold) or has the files (warm). It is over for
the *page* at DOMContentLoaded (its scripts have run by then), for the *figures* when the first live numbers are on it.
CPU is the share of one core over the given seconds, by processes: the server, its runners, and the whole browser.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import Browser, sync_playwright

from tests.browser.chromium import program
from tests.support.server import ServerProcess

MODEL = "smollm2"
SETTLE_S = 5.0
_NOTICE = """
new MutationObserver((_, watch) => {
  if (!document.querySelector("[data-metric]")) return;
  window.figuresAt = performance.now();
  watch.disconnect();
}).observe(document, { childList: true, subtree: true });
"""
_TIMES = """() => {
  const [load] = performance.getEntriesByType("navigation");
  const files = performance.getEntriesByType("resource").filter((one) => one.name.includes("/dashboard/"));
  return { page: load.domContentLoadedEventEnd, figures: window.figuresAt,
           bytes: load.transferSize + files.reduce((sum, one) => sum + one.transferSize, 0) };
}"""


def loads(browser: Browser, url: str, count: int) -> dict[str, list[dict[str, float]]]:
    """Milliseconds and bytes of `count` loads of each kind."""
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(count):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.add_init_script(_NOTICE)
        page = context.new_page()
        for kind in found:
            page.goto(url)
            page.locator("[data-metric]").first.wait_for()
            found[kind].append(page.evaluate(_TIMES))
            page.goto("about:blank")
        context.close()
    return found


def shares(groups: dict[str, list[psutil.Process]], seconds: float) -> dict[str, float]:
    """Per cent of one core that each group of processes takes."""

    def used() -> dict[str, float]:
        return {name: sum(sum(one.cpu_times()[:2]) for one in group) for name, group in groups.items()}

    before, begun = used(), time.monotonic()
    time.sleep(seconds)
    after, took = used(), time.monotonic() - begun
    return {name: 100 * (after[name] - before[name]) / took for name in groups}


def tell(what: str, found: dict[str, float]) -> None:
    print(f"{what:34}" + "  ".join(f"{name} {share:5.2f} %" for name, share in found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=10, help="of each kind")
    parser.add_argument("--seconds", type=float, default=60.0, help="of watching each idle state")
    options = parser.parse_args()
    path = program()
    if path is None:
        parser.error("no Chromium: python -m tests.browser.chromium gets one")
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder)) as server, sync_playwright() as driver:
        assert server.process is not None
        root = psutil.Process(server.process.pid)
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for kind, timed in loads(browser, server.url, options.loads).items():
            for part in ("page", "figures"):
                values = [one[part] for one in timed]
                print(f"{kind} load, {part:8} median {statistics.median(values):6.0f} ms, worst {max(values):6.0f} ms")
            print(f"{kind} load, bytes    {timed[-1]['bytes']:,.0f}")

        def idle(what: str) -> None:
            time.sleep(SETTLE_S)
            groups = {"server": [root], "runners": root.children(recursive=True), "browser": chromium(driver)}
            tell(what, shares(groups, options.seconds))

        idle("idle, no page")
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(server.url)
        page.get_by_text("Live", exact=True).wait_for()
        idle("idle, page open")
        with httpx.Client(base_url=server.url, timeout=300, trust_env=False) as http:
            http.post("/api/pull", json={"model": MODEL, "stream": False}).raise_for_status()
            http.post("/api/generate", json={"model": MODEL, "prompt": "Hello", "stream": False}).raise_for_status()
            idle("idle, page open, a model in memory")
            page.close()
            idle("idle, no page, a model in memory")
        browser.close()
        print(f"load of the machine after: {os.getloadavg()[0]:.1f}")


def chromium(driver: Any) -> list[psutil.Process]:
    """The browser's processes: all that this one started but the server."""
    return [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]


if __name__ == "__main__":
    main()
