"""`omlx ps`: the models in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import rich_click as click

from omlx.cli import tables
from omlx.cli.command import verb
from omlx.cli.connect import connected
from omlx.cli.console import out, run_async
from omlx.cli.tables import percent
from omlx.units import human_bytes, human_time

if TYPE_CHECKING:
    from omlx.protocols.admin import wire as admin
    from omlx.protocols.ollama import models as models_wire

HEADER = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")
MORE = ("WEIGHTS", "OFF", "PINNED", "RUNNING", "QUEUED", "BATCH", "GUESSES", "HITS", "FROM RAM", "FROM SSD")
_FOREVER = timedelta(days=20 * 365)


@verb("ps", usage="[PREFIX]", models=True)
@click.option(
    "--verbose", is_flag=True, help="Show pins, queues, how full the batches are and how often the cache hits"
)
def command(args: tuple[str, ...], verbose: bool) -> None:
    """List running models

    PREFIX shows only models whose name starts with it. With --verbose further columns tell what each model does: QUEUED
    requests wait for a place, BATCH is the mean number of requests per step and of how many, GUESSES how many guessed
    tokens were right, HITS the prompts that were found in the KV cache at least in part, FROM RAM and FROM SSD the
    tokens of prompts that came from there. WEIGHTS says how the weights are held, OFF what a self-test has switched
    off; `omlx show` says why. Notes below the table say which names share memory, and what the power policy limits.
    """
    out(run_async(_ps(args[0] if args else "", verbose)), end="")


async def _ps(prefix: str, verbose: bool) -> str:
    async with connected() as client:
        models, now = await client.loaded(), datetime.now().astimezone()
        return loaded_table(models, now, prefix, await client.status() if verbose else None)


def loaded_table(
    models: Sequence[models_wire.ProcessModelResponse],
    now: datetime,
    prefix: str = "",
    status: admin.StatusResponse | None = None,
) -> str:
    """The loaded models whose name starts with `prefix`; `now` is what UNTIL counts from, `status` adds columns."""
    more = {model.name: _activity(model, status.places) for model in status.models} if status else {}
    rows = [
        (
            model.name,
            model.digest[:12],
            human_bytes(model.size),
            processor(model.size, model.size_vram),
            str(model.context_length),
            until(datetime.fromisoformat(model.expires_at), now),
            *(more.get(model.name, ("",) * len(MORE)) if status else ()),
        )
        for model in models
        if model.name.startswith(prefix)
    ]
    if status is None:
        return tables.render(rows, HEADER)
    notes = [note for model in status.models if model.name.startswith(prefix) for note in sharing(model)]
    notes += [f"power: {status.power.text}"] if status.power.text else []
    return tables.render(rows, (*HEADER, *MORE)) + "".join(f"{note}\n" for note in ("", *notes) if notes)


def sharing(model: admin.ModelStatus) -> list[str]:
    """What the model shares with other names, and what it does not."""
    notes = []
    if model.other_names:
        notes.append(f"{model.name} is also called {_listed(model.other_names)}: they share memory, batches and cache")
    if model.same_weights:
        others = _listed(model.same_weights)
        notes.append(
            f"{model.name} has the same weights as {others}: each has a copy in memory and batches of its own, only "
            "prompts cached on SSD are shared"
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _activity(model: admin.ModelStatus, places: int) -> tuple[str, ...]:
    return (
        model.weights.partition(" (")[0],
        ", ".join(model.off) or "-",
        "yes" if model.pinned else "no",
        str(model.running),
        str(model.waiting),
        f"{model.mean_batch:.1f} of {places}" if model.decode_steps else "-",
        f"{model.accepted}/{model.guessed}",
        f"{model.hits}/{model.lookups}",
        percent(model.tokens_from_ram, model.tokens_looked_up),
        percent(model.tokens_from_disk, model.tokens_looked_up),
    )


def processor(size: int, size_vram: int) -> str:
    """Where a model lies: "100% GPU", "100% CPU" or the shares of both."""
    if size_vram == 0:
        return "100% CPU"
    if size_vram == size:
        return "100% GPU"
    if size_vram > size or size == 0:
        return "Unknown"
    on_cpu = int((size - size_vram) / size * 100 + 0.5)
    return f"{on_cpu}%/{100 - on_cpu}% CPU/GPU"


def until(expires: datetime, now: datetime) -> str:
    """When a model goes: "4 minutes from now", "Forever", "Stopping..."."""
    if expires.year == 1:
        return "Never"
    if expires < now:
        return "Stopping..."
    return "Forever" if expires - now > _FOREVER else human_time(expires, now)
