"""What a verb is: a click command that reads its line as Ollama's does (Go's pflag) and complains in the same words.

Differences that scripts meet: `--flag=false` is allowed for every boolean, `--think` may stand without a value and then
never swallows the next word, and wrong argument counts, unknown flags and unknown commands have fixed texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import rich_click as click
from click.exceptions import BadOptionUsage, NoSuchOption
from click.shell_completion import CompletionItem

from omlx.errors import UserError


class CliError(UserError):
    """The command cannot go on; the message is what stands behind `Error: ` on stderr."""


class Count(NamedTuple):
    """How many arguments a verb takes; `most` None: any number."""

    least: int = 0
    most: int | None = None

    def check(self, count: int) -> None:
        if self.least == self.most and count != self.least:
            raise CliError(f"accepts {self.least} arg(s), received {count}")
        if count < self.least:
            raise CliError(f"requires at least {self.least} arg(s), only received {count}")
        if self.most is not None and count > self.most:
            raise CliError(f"accepts at most {self.most} arg(s), received {count}")


ANY = Count()


class Verb(click.RichCommand):
    """A subcommand. `usage` names its arguments, `environment` the settings whose variables its help lists."""

    usage: str = ""
    count: Count = ANY
    environment: tuple[str, ...] = ()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args if ctx.resilient_parsing else go_flags(self, args))
        if not ctx.resilient_parsing:
            self.count.check(len(ctx.params.get("args", ())))
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*([self.usage] if self.usage else []), "[flags]"]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        assert isinstance(ctx, click.RichContext) and isinstance(formatter, click.RichHelpFormatter)
        super().format_epilog(ctx, formatter)
        if self.environment:
            formatter.write(_environment_block(self.environment))


def verb(
    name: str,
    *,
    usage: str = "",
    count: Count = ANY,
    aliases: tuple[str, ...] = (),
    environment: tuple[str, ...] = ("host",),
    models: bool = False,
) -> Callable[[Callable[..., Any]], Verb]:
    """Make a verb of a function `f(args, **flags)`; its docstring is the help. `models`: arguments are model names."""

    def decorate(function: Callable[..., Any]) -> Verb:
        complete = _complete_models if models else None
        argument = click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=complete)
        command = click.command(name, cls=Verb, aliases=list(aliases))(argument(function))
        command.usage, command.count, command.environment = usage, count, environment
        return command

    return decorate


class OptionalValue(click.RichOption):
    """A text option that may stand alone and then means `bare`."""

    def __init__(self, *args: Any, bare: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bare = bare


class GoInt(click.ParamType[int]):
    """An integer flag with pflag's complaint."""

    name = "int"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(value)
        except ValueError:
            flag = param.opts[0] if param else ""
            raise invalid_argument(str(value), flag, f'strconv.ParseInt: parsing "{value}": invalid syntax') from None


def invalid_argument(value: str, flag: str, reason: str) -> CliError:
    return CliError(f'invalid argument "{value}" for "{flag}" flag: {reason}')


def go_flags(command: click.Command, arguments: list[str]) -> list[str]:
    """`arguments` in click's notation: `--verbose=false`, `-f=x` and a bare `--think` are rewritten."""
    options = {name: param for param in command.params if isinstance(param, click.Option) for name in param.opts}
    rewritten: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--":
            return [*rewritten, word, *rest]
        rewritten.extend(_rewritten(word, options, rest))
    return rewritten


def _rewritten(word: str, options: Mapping[str, click.Option], rest: Iterator[str]) -> list[str]:
    name, equals, value = word.partition("=")
    option = options.get(name) if word.startswith("-") else None
    if option is None:
        return [word]
    if option.is_flag:
        if not equals:
            return [word]
        return [name] if _go_bool(value, name) else list(option.secondary_opts[:1])
    if equals:
        return [word] if name.startswith("--") else [name, value]
    if isinstance(option, OptionalValue):
        return [f"{name}={option.bare}"]
    return [name, *([following] if (following := next(rest, None)) is not None else [])]


def _go_bool(value: str, flag: str) -> bool:
    if value in {"1", "t", "T", "true", "TRUE", "True"}:
        return True
    if value in {"0", "f", "F", "false", "FALSE", "False"}:
        return False
    raise invalid_argument(value, flag, f'strconv.ParseBool: parsing "{value}": invalid syntax')


def complaint(error: click.ClickException) -> str:
    """A usage error in cobra's words."""
    if isinstance(error, NoSuchOption):
        name = error.option_name
        return f"unknown flag: {name}" if name.startswith("--") else f"unknown shorthand flag: '{name[1:]}' in {name}"
    if isinstance(error, BadOptionUsage):
        name = error.option_name
        return f"flag needs an argument: {name if name.startswith('--') else f'{name[1:]!r} in {name}'}"
    return error.format_message()


def _complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from omlx.cli.model_names import model_names  # 40 ms that only a completing shell needs

    return [CompletionItem(name) for name in model_names() if name.startswith(incomplete)]


def _environment_block(names: tuple[str, ...]) -> Any:
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from omlx.settings import describe  # 50 ms that the root's help does without

    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=26, no_wrap=True)
    table.add_column()
    for setting in describe():
        if setting.name in names:
            table.add_row(Text(setting.kind.ollama or setting.variable, style="bold cyan"), Text(setting.description))
    return Group(Text(" Environment Variables:", style="bold"), Padding(table, (0, 0, 1, 3)))
