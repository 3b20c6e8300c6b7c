"""`omlx launch`: start a coding agent or Open WebUI on this server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING

import rich_click as click

from omlx.cli.command import CliError, verb
from omlx.cli.connect import connected
from omlx.cli.console import effective, err, out, run_async
from omlx.cli.launch_files import restore, text_of, write
from omlx.cli.launch_tools import NO_KEY, TOOLS, CodingTool, LaunchContext, Start, choose_context
from omlx.cli.tables import render
from omlx.client import Client, ClientError

if TYPE_CHECKING:
    from omlx.protocols.ollama.models import ShowResponse


_SMALL_CONTEXT = 32_768
"""Tokens. Below, the instructions and tools of most agents leave little or nothing for the work."""


@verb("launch", usage="[TOOL [-- ARGUMENTS...]]", environment=("host", "api_key"))
@click.option("--model", help="Model to use (default: the newest one that knows tools)")
@click.option("--num-ctx", type=click.IntRange(min=4), help="Context in tokens (default: what the tool needs)")
@click.option("--print", "show", is_flag=True, help="Print the command and its variables, start and write nothing")
@click.option("--config", is_flag=True, help="Write the tool's own configuration file (with --print: show it)")
@click.option("--restore", is_flag=True, help="Put the configuration file back as it was before --config")
@click.option("-y", "--yes", is_flag=True, help="Change a configuration file that exists; a backup is kept")
def command(
    args: tuple[str, ...], model: str | None, num_ctx: int | None, show: bool, config: bool, restore: bool, yes: bool
) -> None:
    """Start a coding agent or Open WebUI on this server

    Without TOOL the tools are listed. A start changes no file: the tool is told by its command line and environment.
    What stands behind `--` goes to the tool: `omlx launch claude -- -p "What is in this folder?"`

    Coding agents need a larger context than a chat. Where the default of the server is smaller and there is memory for
    more, the tool asks for 65,536 tokens (or as many as fit) with each request, in the header X-OMLX-Num-Ctx.
    """
    if not args:
        _list()
        return
    name, *rest = args
    if name not in TOOLS:
        raise CliError(f"{name} is not a tool that launch knows: {', '.join(TOOLS)}")
    tool = TOOLS[name]
    if restore:
        if show or config:
            raise CliError("--restore changes a file: it does not go with --print or --config")
        _restore(name, tool)
        return
    place = run_async(_place(model or "", tool, num_ctx or 0))
    if config:
        _configure(name, tool, place, yes=yes, show=show)
        return
    start = tool.start(place)
    start = start._replace(command=[*start.command, *rest])
    if show:
        _show(start)
    else:
        _run(tool, start)


def _list() -> None:
    nowhere = LaunchContext("", "", "")
    rows = []
    for name, tool in TOOLS.items():
        there = shutil.which(tool.start(nowhere).command[0]) is not None
        rows.append((name, tool.title, "yes" if there else tool.install))
    out(render(rows, ("NAME", "TOOL", "INSTALLED"), max_cell=60), end="")


async def _place(model: str, tool: CodingTool, num_ctx: int) -> LaunchContext:
    async with connected() as client:
        model = model or await _newest(client)
        shown = await client.show(model)
        if "tools" not in shown.capabilities:
            err(f"note: {model} knows no tools, which agents need to do anything")
        trained = _trained_context(shown)
        default, largest = await _served_contexts(client, model)
    context, requested = choose_context(default, largest, tool.context, min(num_ctx, trained or num_ctx))
    if requested:
        err(f"note: {model} is served with a context of {requested:,} tokens, the server's default is {default:,}")
    if tool.context and 0 < context < _SMALL_CONTEXT:
        err(
            f"note: {model} has a context of {context:,} tokens, too few for most agents, whose instructions alone may "
            f"fill it{_remedy(context, trained, num_ctx)}"
        )
    key = next(iter(effective().api_key), "") or NO_KEY
    return LaunchContext(client.url, key, model, context, requested)


def _remedy(context: int, trained: int, named: int) -> str:
    if context == trained:
        return ": it was trained for no more; name another model with --model"
    return "" if named else ": there is no memory for more; name a smaller model with --model"


def _trained_context(shown: ShowResponse) -> int:
    """Tokens the model was trained for; 0: not known."""
    family = str(shown.model_info.get("general.architecture", ""))
    known = shown.model_info.get(f"{family}.context_length", 0)
    return known if isinstance(known, int) else 0


async def _served_contexts(client: Client, model: str) -> tuple[int, int]:
    """Tokens a request gets that asks for none, and the most there is memory for; 0: not known."""
    try:
        contexts = await client.contexts(model)
    except ClientError as error:
        if error.status != 404:
            raise
        return 0, 0  # an older oMLX, or a genuine Ollama
    return contexts.num_ctx, contexts.max_num_ctx


async def _newest(client: Client) -> str:
    models = [model.name for model in await client.tags() if "tools" in model.capabilities]
    if not models:
        raise CliError("there is no model that knows tools; try `omlx pull qwen3:8b`, or name one with --model")
    err(f"using {models[0]}")
    return models[0]


def _show(start: Start) -> None:
    if start.own_file is not None:
        path = start.own_file.path
        out(f"mkdir -p {shlex.quote(str(path.parent))}")
        out(f"cat > {shlex.quote(str(path))} <<'END'\n{start.own_file.content}END")
    for name, value in start.environment.items():
        out(f"export {name}={shlex.quote(value)}")
    out(shlex.join(start.command))


def _configure(name: str, tool: CodingTool, place: LaunchContext, *, yes: bool, show: bool) -> None:
    if tool.file is None:
        raise CliError(f"{tool.title} is configured by its environment: see `omlx launch {name} --print`")
    file = tool.file(place)
    text = text_of(file)
    if show or (file.path.exists() and not yes):
        # Not the whole text: what the user has in there is nobody else's business.
        shown = file.content if isinstance(file.content, str) else json.dumps(file.content, indent=2) + "\n"
        out(f"# for {file.path}\n{shown}", end="")
        if show:
            return
        raise CliError(f"{file.path} exists: give --yes to change it (a backup is kept)")
    saved = write(file, text)
    out(f"wrote {file.path}" + (f"; what was there is in {saved}" if saved else ""))


def _restore(name: str, tool: CodingTool) -> None:
    if tool.file is None:
        raise CliError(f"{tool.title} has no configuration file that launch writes")
    path = tool.file(LaunchContext("", "", "")).path
    restore(path)
    out(f"{path} is what it was")


def _run(tool: CodingTool, start: Start) -> None:
    """Become the tool; raises CliError where it is not installed."""
    program = shutil.which(start.command[0])
    if program is None:
        raise CliError(f"{tool.title} is not installed; try `{tool.install}`")
    if start.own_file is not None:
        write(start.own_file, str(start.own_file.content))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, start.command, {**os.environ, **start.environment})  # noqa: S606 (no shell is wanted)
