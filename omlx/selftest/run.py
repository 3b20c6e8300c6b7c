"""A whole self-test: every check in turn, what fails switched off at once, the result kept by the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from omlx.client import Client, ClientError
from omlx.messages.selftest import RESTS_ON, Check, SelfTestResponse
from omlx.selftest.checks import CHECKS

_BUSY = {408, 429, 503, 504}
"""HTTP statuses that say nothing about the model."""


class _Subject(NamedTuple):
    client: Client
    model: str
    capabilities: list[str]
    context: int


async def run(
    client: Client, name: str, report: Callable[[Check], None], begins: Callable[[str], None] = lambda what: None
) -> SelfTestResponse:
    """Test a model; `said` hears each check as it ends, `begins` what is done next, which may take minutes.

    Raises ClientError where the server or the model fails.

    It begins with everything switched on. A check that the server ends with an error has failed; one that other work
    kept from its end (503, no answer in time) is inconclusive, and what an earlier self-test found of it stays.
    """
    kept = await client.keep_selftest(name, [])
    earlier = {check.name: check for check in kept.before.checks} if kept.before is not None else {}
    try:
        shown = await client.show(name)
        if "completion" not in shown.capabilities:
            raise ClientError(f"{kept.model} does not generate text: there is nothing to test")
        begins("loading")
        await client.load(name)
    except ClientError:
        await client.keep_selftest(kept.model, [*earlier.values()])
        raise
    context = next((model.context_length for model in await client.loaded() if model.name == kept.model), 0)
    subject = _Subject(client, kept.model, shown.capabilities, context)
    checks: list[Check] = []
    for check in CHECKS:
        begins(check.__name__)
        try:
            result = await check(subject)
        except (ClientError, TimeoutError) as error:
            result = _ended(check.__name__, error)
        report(result)
        known = earlier.get(result.name)
        checks.append(known if result.outcome == "inconclusive" and known is not None else result)
        # What failed must not spoil what comes next: it is off from here on.
        if checks[-1].outcome == "failed" and result.name in RESTS_ON:
            await client.keep_selftest(kept.model, checks)
    return await client.keep_selftest(kept.model, checks)


async def clear(client: Client, name: str) -> SelfTestResponse:
    """Forget what self-tests and load checks found of a model: everything is on again. Raises ClientError."""
    return await client.keep_selftest(name, [])


def _ended(name: str, error: ClientError | TimeoutError) -> Check:
    """A check that ended with an error: did the model fail, or was the server busy?"""
    import httpx

    timed_out = isinstance(error, TimeoutError) or isinstance(error.__cause__, httpx.TimeoutException)
    if timed_out or (isinstance(error, ClientError) and error.status in _BUSY):
        return Check(name, "inconclusive", f"{error or 'no answer in time'}: run again when the server is idle")
    return Check(name, "failed", str(error))
