"""`omlx bench`: how fast a model of a server is, and whether it is faster than it was."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import rich_click as click

from omlx.bench.energy import Energy
from omlx.bench.figures import FORMAT, Figure, Report, compare
from omlx.bench.machine import Watch, describe_machine, listener
from omlx.bench.measure import QUICK, Bench, BenchPlan, Reload
from omlx.bench.stream import StreamError
from omlx.bench.target import Api, BenchTarget
from omlx.cli.command import CliError, GoInt, verb
from omlx.cli.connect import connected
from omlx.cli.console import effective, err, run_async
from omlx.cli.console import out as write
from omlx.cli.tables import render
from omlx.client import Client, ClientError, Unreachable, is_loopback
from omlx.settings import client_url
from omlx.units import human_bytes

_UNLOAD_LOOKS = 300
_APIS = ("ollama", "openai")


@verb("bench", usage="MODEL | --compare A.json B.json", environment=("host", "api_key"), models=True)
@click.option("--quick", is_flag=True, help="Fewer and shorter measurements: about a minute on a fast machine")
@click.option("--rounds", type=GoInt(), help="How often each thing is measured (default: 3, with --quick 1)")
@click.option("--url", help="Server to measure, oMLX or any other (default: the server of OLLAMA_HOST)")
@click.option("--api", help="What the server at --url speaks: ollama or openai (default: it is asked)")
@click.option("--key", help="API key for --url")
@click.option("--context", type=GoInt(), help="Context of the model in tokens, where the server does not say")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of the table")
@click.option("--out", help="Also write the JSON object to this file")
@click.option("--energy", is_flag=True, help="Measure only tokens per joule, by batch size and class of requests")
@click.option("--compare", is_flag=True, help="Compare two files that --out wrote, the older one first")
def command(
    args: tuple[str, ...],
    quick: bool,
    rounds: int | None,
    url: str | None,
    api: str | None,
    key: str | None,
    context: int | None,
    as_json: bool,
    out: str | None,
    energy: bool,
    compare: bool,
) -> None:
    """Measure how fast a model is

    Reads prompts of 1k, 4k and 16k tokens, cold and warm; decodes at batch 1, 4, 8 and 16; waits for first tokens,
    alone and beside other streams, with a known, an unknown and a changed beginning, and from SSD where the server is
    oMLX. Every prompt is new, so nothing is cached by accident. Memory is the server's own if it runs on this machine,
    energy the machine's. Use an idle machine: what others do is measured as well.

    --energy needs a server on this machine, and a machine that reports its energy: an NVIDIA GPU, processor packages
    (RAPL, usually root only), or macOS as root. It measures under the power policy that the server uses: to compare
    policies, run it once under each with --out.
    """
    if compare:
        if len(args) != 2:
            raise CliError("--compare takes two files that `omlx bench MODEL --out FILE` wrote")
        write(_comparison(_read(args[0]), _read(args[1])), end="")
        return
    if len(args) != 1:
        raise CliError(f"accepts 1 arg(s), received {len(args)}")
    if api is not None and api not in _APIS:
        raise CliError(f'--api is "ollama" or "openai", not "{api}"')
    if rounds is not None and not 1 <= rounds <= 100:
        raise CliError("--rounds must be from 1 to 100")
    source = Energy() if energy else None
    if source is not None and source.missing:
        raise CliError(source.missing)
    report = run_async(_measure(args[0], _plan(quick, rounds), url, api, key or "", context or 0, source))
    if out is not None:
        Path(out).write_text(_json(report) + "\n", "utf-8")
    write(_json(report) + "\n" if as_json else _table(report), end="")


def _plan(quick: bool, rounds: int | None) -> BenchPlan:
    import msgspec

    plan = QUICK if quick else BenchPlan()
    return plan if rounds is None else msgspec.structs.replace(plan, rounds=rounds)


# ---------------------------------------------------------------- measuring
async def _measure(
    model: str, plan: BenchPlan, url: str | None, api: str | None, key: str, context: int, energy: Energy | None
) -> Report:
    if url is None and api != "openai":
        async with connected() as client:
            return await _run(client, model, plan, "ollama", key or _own_key(), context, energy)
    address = _address(url) if url is not None else client_url(effective())
    async with Client(address, api_key=key or (_own_key() if url is None else "")) as client:
        return await _run(client, model, plan, api or await _spoken(client), key, context, energy)


def _own_key() -> str:
    return next(iter(effective().api_key), "")


def _address(url: str) -> str:
    """Without the path that clients of OpenAI's API are given."""
    address = url if "://" in url else f"http://{url}"
    return address.rstrip("/").removesuffix("/v1").rstrip("/")


async def _spoken(client: Client) -> Api:
    try:
        await client.version()
    except Unreachable:
        raise
    except ClientError:
        return "openai"
    return "ollama"


async def _run(
    client: Client, model: str, plan: BenchPlan, api: Any, key: str, context: int, energy: Energy | None
) -> Report:
    if energy is not None and not is_loopback(client.url):
        raise CliError(f"--energy measures this machine, but the server at {client.url} runs on another")
    name = "another server"
    if api == "ollama":
        version = await client.version()
        name = f"omlx {version.omlx_version}" if version.omlx_version else f"ollama {version.version}"
        context = context or await _context(client, model)
    wanted = plan
    plan = plan.within(context)
    target = BenchTarget(url=client.url, api=api, model=model, key=key, context=plan.context)
    bench = Bench(target, plan, lambda text: err(f"{text} …"), _reload(client, target) if "omlx" in name else None)
    if energy is None and (left_out := [str(size) for size in wanted.prefill if size not in plan.prefill]):
        bench.notes.append(f"prompts of {', '.join(left_out)} tokens do not fit a context of {context}")
    pid = await _pid(client, "omlx" in name)
    watch = Watch(pid) if pid else None
    with ExitStack() as stack:
        if watch is not None:
            stack.enter_context(watch)
        try:
            if energy is None:
                await bench.run()
                power = ""
            else:
                power = await _energy(client, bench, energy, ours="omlx" in name)
        except StreamError as error:
            raise CliError(f"{model} at {client.url}: {error}") from error
    if watch is not None:
        bench.figures.append(Figure("peak memory", "bytes", [float(watch.peak_bytes)]))
        if watch.peak_gpu_bytes > 0:
            bench.figures.append(Figure("growth of GPU memory", "bytes", [float(watch.peak_gpu_bytes)]))
    return Report(
        when=datetime.now(UTC).isoformat(timespec="seconds"), model=model, url=client.url, api=api, server=name,
        machine=describe_machine(), figures=bench.figures, notes=bench.notes, power=power,
    )  # fmt: skip


async def _energy(client: Client, bench: Bench, energy: Energy, *, ours: bool) -> str:
    """Measure under the power policy of the moment; returns what it is."""
    if not ours:
        await bench.run_energy(energy, ("interactive",))
        return ""
    before = (await client.status()).power
    await bench.run_energy(energy, ("interactive", "background") if before.background else ("interactive",))
    after = (await client.status()).power
    if not before.background:
        bench.notes.append("background requests wait under this policy: they were not measured")
    if after.changes != before.changes:
        bench.notes.append(f"the power policy changed meanwhile, to: {after.text or after.policy}")
    return before.text or f"{before.policy}: nothing is limited"


async def _context(client: Client, model: str) -> int:
    """Tokens the model can hold, by what the server shows of it; 0 where it does not say."""
    info = (await client.show(model)).model_info
    length = info.get(f"{info.get('general.architecture', '')}.context_length", 0)
    return length if isinstance(length, int) else 0


async def _pid(client: Client, ours: bool) -> int:
    """The server's process, where it runs on this machine and the system tells; else 0."""
    from urllib.parse import urlsplit

    if not is_loopback(client.url):
        return 0
    if ours:
        return (await client.status()).pid
    return listener(urlsplit(client.url).port or 80)


def _reload(client: Client, target: BenchTarget) -> Reload:
    import asyncio

    async def run() -> None:
        before = len(await client.loaded())
        await client.unload(target.model)
        for _ in range(_UNLOAD_LOOKS):  # an unload is answered at once and takes a moment
            if len(await client.loaded()) < before:
                break
            await asyncio.sleep(0.1)
        await client.load(target.model, options={"num_ctx": target.context})

    async def from_disk() -> int:
        return sum(model.tokens_from_disk for model in await client.cache())

    return Reload(run, from_disk)


# ---------------------------------------------------------------- showing
def _json(report: Report) -> str:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _read(path: str) -> Report:
    import msgspec

    try:
        report = msgspec.json.decode(Path(path).read_bytes(), type=Report)
    except OSError as error:
        raise CliError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise CliError(f"{path} was not written by `omlx bench --out`: {error}") from error
    if report.format != FORMAT:
        raise CliError(f"{path} has format {report.format}, this omlx reads {FORMAT}")
    return report


def _table(report: Report) -> str:
    rows = [
        (
            figure.name,
            _shown(figure.median, figure.unit),
            _shown(figure.percentile(0.95), figure.unit) if figure.unit == "s" else "",
            _shown(min(figure.values), figure.unit),
            _shown(max(figure.values), figure.unit),
            str(len(figure.values)),
        )
        for figure in report.figures
    ]
    power = [f"power policy {report.power}"] if report.power else []
    lines = [f"{report.model} on {report.server}, {report.url}", report.machine, *power, ""]
    table = render(rows, ("MEASURED", "MEDIAN", "P95", "LOWEST", "HIGHEST", "COUNT"), max_cell=60)
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return "\n".join(lines) + "\n" + table + (f"\n{notes}" if notes else "")


def _comparison(before: Report, after: Report) -> str:
    comparison = compare(before, after)
    if not comparison:
        raise CliError("the two runs have no figure in common")
    rows = [
        (each.name, _shown(each.before, each.unit), _shown(each.after, each.unit), f"{each.ratio:.2f}", each.verdict)
        for each in comparison
    ]
    titles = [
        f"{run.model} on {run.server}, {run.when}" + (f", power policy {run.power}" if run.power else "")
        for run in (before, after)
    ]
    text = f"A: {titles[0]}\nB: {titles[1]}\n"
    if before.machine != after.machine:
        text += f"note: the machines differ: {before.machine}; {after.machine}\n"
    return text + "\n" + render(rows, ("MEASURED", "A", "B", "B/A", "B IS"), max_cell=60)


def _shown(value: float, unit: str) -> str:
    match unit:
        case "bytes":
            return human_bytes(int(value))
        case "s":
            return f"{value * 1000:.0f} ms" if value < 10 else f"{value:.1f} s"
        case _:
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
