"""oMLX and other servers side by side: same model, same prompts, same client, in one run.

    python bench/suite.py                             SmolLM2 on the peers that are installed; a few minutes each
    python bench/suite.py --model tiny --sizes quick  a random model of no size, to see that everything runs
    python bench/suite.py --model qwen3-0.6b --sizes gpu --peers mlx_lm --json FILE

The servers are up together and take turns, workload by workload and round by round; while one works the others are
idle. Values are medians of the rounds. `--json` keeps all of them, for bench/gate.py and docs/benchmarks.md. Peers are
installed with `python -m bench.peers.install`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("", "registry", "cache")]

from bench.peers import PEERS, Model, python_of
from bench.peers.running import OMLX, Given, Running, make
from bench.table import Results, Row, table
from bench.workloads import LARGE, SIZES, WORKLOADS, Figures, Restartable, Scene, alternate, restart, warm_up
from omlx.bench.machine import Nvml, Watch, describe_machine
from omlx.bench.prompts import STORY, WORDS, PromptWriter

SHAPES = ("tiny", "small", "qwen3-0.6b", "qwen3-8b")
SMOLLM2 = "smollm2"
SPECIAL = ("restart", "two models")
_MODEL_WORDS = [f"w{token}" for token in range(10, 500)]
_MODEL_ASK = "w4 w5"


def build(name: str, folder: Path) -> None:
    """Write the model in a process of its own: this one stays free of MLX and its memory."""
    from bench.folders import write_model, write_smollm2

    if name == SMOLLM2:
        write_smollm2(folder)
    else:
        write_model(folder, name)


def build_apart(name: str, folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(build, (name, folder))


class Memory:
    """The most memory each server took. On a GPU that is by how much the used memory grew in the server's own turns."""

    def __init__(self) -> None:
        self._gpu = Nvml.open()
        self._grown: dict[str, int] = {}
        self._peaks: dict[str, dict[str, int]] = {"peak GPU GB": {}, "peak resident GB": {}}

    @contextmanager
    def of(self, name: str, pid: int) -> Iterator[None]:
        """While this is open only this server works; `pid` 0: its process is not known yet."""
        before = self._gpu.used_bytes() if self._gpu else 0
        watch = Watch(pid)
        try:
            with watch:
                yield
        finally:
            grown = self._grown.get(name, 0)
            self._keep("peak GPU GB", name, grown + watch.peak_gpu_bytes)
            self._keep("peak resident GB", name, watch.peak_bytes)
            self._grown[name] = grown + ((self._gpu.used_bytes() if self._gpu else 0) - before)

    def _keep(self, figure: str, name: str, value: int) -> None:
        self._peaks[figure][name] = max(value, self._peaks[figure].get(name, 0))

    def rows(self) -> list[Row]:
        found = []
        for figure, peaks in self._peaks.items():
            values = {name: [value / 1e9] for name, value in peaks.items() if value}
            if values:
                found.append(Row("memory", figure, values))
        return found


class Suite:
    """One run. `rows` fills up as the servers take their turns."""

    def __init__(self, options: argparse.Namespace, root: Path, stack: ExitStack) -> None:
        self._options, self._root = options, root
        self._sizes = SIZES[options.sizes]
        self._seed = f"{time.time_ns()}"
        self._writers: dict[str, PromptWriter] = {}
        self._began = time.monotonic()
        self.rows: dict[tuple[str, str], Row] = {}
        self.failures: list[str] = []
        self.skipped: list[str] = []
        build_apart(options.model, root / "model")
        gguf = None
        if options.model == SMOLLM2:
            from omlx_registry import bundled

            gguf = bundled.path()
        context = 8192 if options.model in (SMOLLM2, "tiny", "small") else 32768
        self._model = Model("bench", root / "model", gguf, context)
        self._memory = Memory()
        self.servers: list[Running] = [make(name, root / name, [self._model]) for name in (OMLX, *options.peers)]
        self.servers += [Given(*given) for given in options.also]
        for server in self.servers:
            with self._memory.of(server.name, 0):
                server.start()
            stack.callback(server.stop)
            self._say(f"{server.name} is up")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {text}", file=sys.stderr, flush=True)

    def _scene(self, server: Running, at: int = 0) -> Scene:
        """The writer goes on where it was: no text comes twice."""
        key = f"{server.name} {server.targets[at].url} {at}"
        if key not in self._writers:
            words, demand = (WORDS, STORY) if self._options.model == SMOLLM2 else (_MODEL_WORDS, _MODEL_ASK)
            self._writers[key] = PromptWriter(f"{self._seed} {key}", words, demand)
        return Scene(server.targets[at], self._writers[key], self._sizes)

    def _try(self, workload: str, server: Running, work: Callable[[], Awaitable[Figures]]) -> None:
        """Run one workload on one server and keep what it found."""
        begun = time.monotonic()
        if begun - self._began > self._options.minutes * 60:
            self.skipped.append(f"{workload}: {server.name}")
            return
        try:
            with self._memory.of(server.name, server.pid):
                figures = asyncio.run(_awaited(work))
        except Exception as error:  # a peer that cannot do it must not end the run
            text = str(error) or type(error).__name__
            self.failures.append(f"{workload}: {server.name}: {text}")
            self._say(f"{workload}: {server.name} FAILED: {text[:300]}")
            return
        for figure, value in figures.items():
            row = self.rows.setdefault((workload, figure), Row(workload=workload, figure=figure, values={}))
            row.values.setdefault(server.name, []).append(value)
        shown = ", ".join(f"{figure} {value:.3g}" for figure, value in figures.items())
        self._say(f"{workload}: {server.name} ({time.monotonic() - begun:.1f} s) {shown}")

    def warm_up(self) -> None:
        """Loads and compiles: every length of batch that will occur, once."""
        for server in self.servers:
            self._try("warm up", server, partial(warm_up, self._scene(server)))

    def run(self) -> None:
        for at in range(self._options.rounds):
            for name, workload in {**WORKLOADS, **LARGE}.items():
                if name not in self._options.workloads:
                    continue
                # Who begins changes from round to round.
                for server in self.servers[at % len(self.servers) :] + self.servers[: at % len(self.servers)]:
                    self._try(name, server, partial(workload, self._scene(server)))
        if "restart" in self._options.workloads:
            for server in self.servers:
                if not server.pid:
                    continue
                control = Restartable(server.stop, server.start)
                self._try("restart", server, partial(restart, self._scene(server), control))

    def run_two_models(self) -> None:
        """Servers of their own: one that may hold both models, and one that may hold one."""
        build_apart(self._options.second, self._root / "second")
        second = Model("second", self._root / "second", None, self._model.context)
        for server in self.servers:
            for title, env in (("two models", {}), ("two models, room for one", {"OMLX_MAX_LOADED_MODELS": "1"})):
                if not server.switches:
                    continue

                pair = make(server.name, self._root / f"{server.name}, {title}", [self._model, second], env)
                self._try(title, pair, partial(self._alternate, pair))

    async def _alternate(self, pair: Running) -> Figures:
        await asyncio.to_thread(pair.start)
        try:
            return await alternate((self._scene(pair), self._word_scene(pair)))
        finally:
            await asyncio.to_thread(pair.stop)

    def _word_scene(self, server: Running) -> Scene:
        writer = PromptWriter(f"{self._seed} second {server.targets[1].url}", _MODEL_WORDS, _MODEL_ASK)
        return Scene(server.targets[1], writer, self._sizes)

    def results(self) -> Results:
        return Results(
            when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=describe_machine(),
            load=os.getloadavg()[0],
            model=self._options.model,
            sizes=self._options.sizes,
            rounds=self._options.rounds,
            command=command_of(sys.argv[1:]),
            servers={server.name: server.version for server in self.servers},
            mlx_peers=[server.name for server in self.servers if server.mlx and server.name != OMLX],
            rows=[*self.rows.values(), *self._memory.rows()],
            failures=self.failures,
            skipped=self.skipped,
        )


def command_of(words: Sequence[str]) -> str:
    """What was run, but for the file that the results went to: that is a place on one machine."""
    kept = [
        word
        for before, word in pairwise(["", *words])
        if word != "--json" and before != "--json" and not word.startswith("--json=")
    ]
    return " ".join(["python", "bench/suite.py", *kept])


async def _awaited(work: Callable[[], Awaitable[Figures]]) -> Figures:
    return await work()


def available() -> list[str]:
    """The peers this machine has."""
    found = []
    for name in PEERS:
        try:
            python_of(name)
        except RuntimeError:
            continue
        found.append(name)
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[SMOLLM2, *SHAPES], default=SMOLLM2)
    parser.add_argument("--second", choices=SHAPES, default="small", help="the other of two models")
    parser.add_argument("--sizes", choices=list(SIZES), default="cpu")
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), help="default: those that are installed")
    parser.add_argument(
        "--also", nargs=3, action="append", default=[], metavar=("NAME", "URL", "MODEL"),
        help="a server that runs already and speaks OpenAI's API, with the same model",
    )  # fmt: skip
    parser.add_argument(
        "--workloads", nargs="+", choices=[*WORKLOADS, *LARGE, *SPECIAL], default=[*WORKLOADS, *SPECIAL]
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60, help="begin nothing new after this time")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.peers is None:
        chosen.peers = available()
    if chosen.model != SMOLLM2:  # there is no GGUF file of a random model
        chosen.peers = [name for name in chosen.peers if PEERS[name].mlx]
    return chosen


def main() -> int:
    chosen = options()
    print(f"{platform.node()}: {describe_machine()}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="omlx-suite-") as root, ExitStack() as stack:
        suite = Suite(chosen, Path(root), stack)
        suite.warm_up()
        suite.run()
        if "two models" in chosen.workloads:
            suite.run_two_models()
        results = suite.results()
    print(table(results))
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    return 1 if any(f": {OMLX}: " in failure for failure in results.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
