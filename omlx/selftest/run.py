"""A whole self-test: every check in turn, what fails switched off at once, the result kept by the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from omlx.client import Client, ClientError
from omlx.selftest.checks import CHECKS
from omlx.selftest.result import RESTS_ON, Check, SelfTestResponse


class _Subject(NamedTuple):
    client: Client
    model: str
    capabilities: list[str]
    context: int


async def run(
    client: Client, name: str, said: Callable[[Check], None], begins: Callable[[str], None] = lambda what: None
) -> SelfTestResponse:
    """Test a model; `said` hears each check as it ends, `begins` what is done next, which may take minutes.

    Raises ClientError where the server or the model fails.

    It begins with everything switched on, and what an earlier self-test switched off is forgotten. A check that the
    server ends with an error has failed.
    """
    kept = await client.keep_selftest(name, [])
    shown = await client.show(name)
    if "completion" not in shown.capabilities:
        raise ClientError(f"{kept.model} does not generate text: there is nothing to test")
    begins("loading")
    await client.load(name)
    context = next((model.context_length for model in await client.loaded() if model.name == kept.model), 0)
    subject = _Subject(client, kept.model, shown.capabilities, context)
    checks: list[Check] = []
    for check in CHECKS:
        begins(check.__name__)
        try:
            found = await check(subject)
        except (ClientError, TimeoutError) as error:
            found = Check(check.__name__, "failed", str(error) or "the server did not answer in time")
        checks.append(found)
        said(found)
        # What failed must not spoil what comes next: it is off from here on.
        if found.outcome == "failed" and found.name in RESTS_ON:
            await client.keep_selftest(kept.model, checks)
    return await client.keep_selftest(kept.model, checks)
