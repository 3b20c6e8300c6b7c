"""`omlx selftest`: does what oMLX promises hold for this model on this machine?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import rich_click as click

from omlx.cli.command import Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import err, out, run_async
from omlx.selftest.run import clear, run

if TYPE_CHECKING:
    from omlx.messages.selftest import Check, Outcome, SelfTestResponse


@verb("selftest", usage="MODEL", count=Count(1, 1), models=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object")
@click.option("--clear", is_flag=True, help="Forget the results: switch everything on again")
def command(args: tuple[str, ...], as_json: bool, clear: bool) -> int:
    """Test a model through the server, and switch off what does not hold for it

    The checks: prompts from the cache are answered as if they were read; requests are answered in company as they are
    alone; a seed repeats; a tool is called, its result read; a JSON schema is kept; a number is found in a long text.
    A feature that fails (the cache, batching, tools, formats) is off for this model from then on, which `omlx show` and
    the log say, until a later self-test passes or --clear forgets the results. The model is unloaded once meanwhile. A
    check that other work keeps from its end is inconclusive and changes nothing: run the test again when the server is
    idle. The exit code is 1 if a feature is switched off, 2 if a check was inconclusive.
    """
    import msgspec

    response = run_async(_clear(args[0]) if clear else _test(args[0], quiet=as_json))
    if clear and not as_json:
        out(f"The results of {response.model} are forgotten: everything is switched on again.")
    elif as_json:
        out(msgspec.json.format(msgspec.json.encode(response), indent=2).decode())
    else:
        out("".join(f"\nnote: {note}" for note in response.result.notes) if response.result else "", end="")
        out(f"\n{_conclusion(response)}" if not response.off else "")
    return 1 if response.off else 2 if _named(response, "inconclusive") else 0


def _named(response: SelfTestResponse, outcome: Outcome) -> list[str]:
    """The checks that ended so."""
    return [check.name for check in response.result.checks if check.outcome == outcome] if response.result else []


def _conclusion(response: SelfTestResponse) -> str:
    """Where nothing is switched off."""
    if inconclusive := _named(response, "inconclusive"):
        return f"Nothing is known of {' and '.join(inconclusive)}: run the self-test again when the server is idle."
    failed = _named(response, "failed")
    return (
        f"Nothing is switched off: no feature rests on {' and '.join(failed)}." if failed else "The self-test passed."
    )


async def _clear(model: str) -> SelfTestResponse:
    async with connected() as client:
        return await clear(client, model)


async def _test(model: str, *, quiet: bool) -> SelfTestResponse:
    def said(check: Check) -> None:
        if not quiet:
            out(f"{check.outcome:12} {check.name:8} {check.detail}")

    def begins(what: str) -> None:
        # A check may take a minute; its line comes when it has ended.
        if not quiet:
            err(f"{what} …")

    async with connected() as client:
        return await run(client, model, said, begins)
