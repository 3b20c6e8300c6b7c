"""The root command: the table of verbs, help, version, and the place where errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import rich_click as click
from click.exceptions import Abort, NoSuchOption

from omlx.cli.command import CliError, complaint
from omlx.errors import UserError

PROGRAM = "omlx"
INTERRUPTED = 130


class VerbEntry(NamedTuple):
    """Where a verb lives: a module of `omlx.cli` whose `command` was made with `@verb`; and its line in the help."""

    module: str
    summary: str
    aliases: tuple[str, ...] = ()


VERBS = {
    "serve": VerbEntry("serve", "Start oMLX", ("start",)),
    "create": VerbEntry("create", "Create a model"),
    "show": VerbEntry("show", "Show information for a model"),
    "run": VerbEntry("run", "Run a model"),
    "transcribe": VerbEntry("transcribe", "Transcribe audio files"),
    "stop": VerbEntry("stop", "Stop a running model, or the server"),
    "pull": VerbEntry("pull", "Pull a model from a registry"),
    "push": VerbEntry("push", "Push a model to a registry"),
    "list": VerbEntry("listing", "List models", ("ls",)),
    "ps": VerbEntry("ps", "List running models"),
    "cp": VerbEntry("cp", "Copy a model"),
    "rm": VerbEntry("rm", "Remove a model"),
    "pin": VerbEntry("pin", "Keep a model loaded, whatever happens"),
    "unpin": VerbEntry("unpin", "Let a pinned model be unloaded again"),
    "models": VerbEntry("models", "The same as list, pin and unpin"),
    "search": VerbEntry("search", "Find models on Hugging Face"),
    "outdated": VerbEntry("outdated", "Show which models have a newer revision"),
    "alias": VerbEntry("alias", "Give a repository a short name"),
    "catalog": VerbEntry("catalog", "Show the catalog of short names, or fetch a newer one"),
    "import": VerbEntry("importing", "Register models that other programs have on this machine"),
    "export": VerbEntry("export", "Export a model to a folder that works without oMLX"),
    "migrate": VerbEntry("migrate", "Migrate the settings of an Ollama on this machine"),
    "launch": VerbEntry("launch", "Start a coding agent or Open WebUI on this server"),
    "menubar": VerbEntry("menubar", "Show the server in the menu bar"),
    "service": VerbEntry("service", "Let the system run the server"),
    "cache": VerbEntry("cache", "Look into the cache of prompts"),
    "registry": VerbEntry("registry", "Look after the files of the models"),
    "selftest": VerbEntry("selftest", "Test a model, and switch off what does not hold for it"),
    "bench": VerbEntry("bench", "Measure how fast a model is"),
    "doctor": VerbEntry("doctor", "Look for problems of this machine and of the server"),
    "config": VerbEntry("config", "Show the settings and where each comes from"),
    "help": VerbEntry("help", "Help about any command"),
}
"""In the order of `omlx --help`. A module is imported only when its verb is used."""

_BY_ALIAS = {alias: name for name, entry in VERBS.items() for alias in entry.aliases}


class Root(click.RichGroup):
    """The group of all verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = VERBS.get(_BY_ALIAS.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command: click.Command = import_module(f"omlx.cli.{entry.module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            if name.startswith("-"):
                raise NoSuchOption(name, ctx=ctx)
            raise CliError(f'unknown command "{name}" for "{PROGRAM}"{_suggestions(name)}')
        return command.name if command else None, command, args[1:]

    def get_help(self, ctx: click.Context) -> str:
        stubs: dict[str, click.Command] = {
            name: click.RichCommand(name=name, help=entry.summary, aliases=entry.aliases)
            for name, entry in VERBS.items()
        }
        listing = _Listing(
            name=self.name, commands=stubs, params=self.params, help=self.help, epilog=self.epilog,
            context_settings=self.context_settings,
        )  # fmt: skip
        return listing.get_help(listing.make_context(ctx.info_name, [], resilient_parsing=True))


class _Listing(click.RichGroup):
    """The root as its help shows it: verbs in our order, and none of them imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[command]", "[flags]"]


def _suggestions(typed: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(typed.lower(), VERBS, n=len(VERBS))
    near = [name for name in VERBS if name in close or name.startswith(typed.lower())]
    return "\n\nDid you mean this?\n" + "".join(f"\t{name}\n" for name in near) if near else ""


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from omlx.cli.version import print_version  # 80 ms: settings and client

        print_version()
        ctx.exit()


@click.command(
    PROGRAM,
    cls=Root,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "rich_help_config": {
            "commands_before_options": True,
            # A column of their own would squeeze the names to "se…" on 80 columns.
            "commands_table_column_types": ["name_with_aliases", "help"],
            "width": 100 if not sys.stdout.isatty() else None,
            "max_width": 110,
        },
    },
    epilog=f'Use "{PROGRAM} COMMAND --help" for more about a command.',
)
@click.option(
    "-v", "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Show version information",
)  # fmt: skip
@click.pass_context
def root(ctx: click.Context) -> None:
    """Run large language models with MLX, with Ollama's commands and API."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run_command_line(arguments: list[str]) -> int:
    """Run one command line; errors become one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        # Ollama writes UTF-8 whatever the locale says; a model's answer must not fail on an accent.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(encoding="utf-8", errors="replace")
    try:
        outcome: Any = root.main(arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except click.ClickException as error:
        return _fail(complaint(error))
    except OSError as error:
        if error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _fail(f"the output cannot be written: {error.strerror}")
        if error.errno != errno.EPIPE:
            raise
        # The reader went away (`omlx list | head -1`); Python must not complain about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except UserError as error:
        return _fail(str(error))
    return outcome if isinstance(outcome, int) else 0


def _fail(message: str) -> int:
    click.echo(f"Error: {message}", err=True)
    return 1
