"""`omlx show`: what a model is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from omlx.cli import tables
from omlx.cli.command import CliError, Count, verb
from omlx.cli.connect import connected
from omlx.cli.console import columns, is_terminal, out, printable, run_async
from omlx.units import human_parameters

if TYPE_CHECKING:
    from omlx.protocols.ollama import models as models_wire

_PARTS = ("license", "modelfile", "parameters", "system", "template")
_TEXT_WIDTH = 100
_ARRAY_WIDTH = 10


@verb("show", usage="MODEL", count=Count(1, 1), models=True)
@click.option("--license", is_flag=True, help="Show license of a model")
@click.option("--modelfile", is_flag=True, help="Show Modelfile of a model")
@click.option("--parameters", is_flag=True, help="Show parameters of a model")
@click.option("--template", is_flag=True, help="Show template of a model")
@click.option("--system", is_flag=True, help="Show system message of a model")
@click.option("-v", "--verbose", is_flag=True, help="Show detailed model information")
def command(args: tuple[str, ...], verbose: bool, **parts: bool) -> None:
    """Show information for a model"""
    wanted = [name for name in _PARTS if parts[name]]
    if len(wanted) > 1:
        raise CliError(
            "only one of '--license', '--modelfile', '--parameters', '--system', or '--template' can be specified"
        )
    model = run_async(_show(args[0], verbose))
    if wanted:
        # Ollama ends these two with whatever the text ends with.
        text = getattr(model, wanted[0])
        # In a file or a pipe every byte counts.
        shown = printable(text) if is_terminal(sys.stdout) else text
        out(shown, end="" if wanted[0] in {"system", "template"} else "\n")
    else:
        out(printable(describe(model, verbose=verbose)), end="")


async def _show(model: str, verbose: bool) -> models_wire.ShowResponse:
    async with connected() as client:
        return await client.show(model, verbose=verbose)


def describe(model: models_wire.ShowResponse, *, verbose: bool = False) -> str:
    """All sections, each a title and an indented table."""
    # A value may hold blanks: only the name is split off.
    parameters = [line.split(maxsplit=1) for line in model.parameters.splitlines() if line.strip()]
    sections: list[tuple[str, Sequence[Sequence[str]]]] = [
        ("Model", _model_rows(model)),
        ("Capabilities", [[name] for name in model.capabilities]),
        ("Projector", _projector_rows(model.projector_info)),
        ("Parameters", parameters),
        ("Self-test", [[note] for note in model.notes]),
    ]
    if verbose:
        sections.append(("Metadata", [[key, _short(value)] for key, value in sorted(model.model_info.items())]))
        sections.append(("Tensors", [_tensor_row(tensor) for tensor in model.tensors]))
    sections += [("System", _first_lines(model.system)), ("License", _first_lines(model.license))]
    return "".join(_section(title, rows) for title, rows in sections if rows)


def _section(title: str, rows: Sequence[Sequence[str]]) -> str:
    width = _text_width() if title in {"System", "License", "Self-test"} else tables.MAX_CELL
    return f"  {title}\n{tables.render([['', *row] for row in rows], max_cell=width)}\n"


def _text_width() -> int:
    """Ollama's 100 columns, or what fits between the blanks of a narrower terminal."""
    fits = columns(sys.stdout) - 8 if is_terminal(sys.stdout) else _TEXT_WIDTH
    return max(1, min(_TEXT_WIDTH, fits))


def _model_rows(model: models_wire.ShowResponse) -> list[list[str]]:
    info = model.model_info
    architecture = str(info.get("general.architecture") or model.details.family)
    parameters = model.details.parameter_size or _count(info.get("general.parameter_count"))
    known = [
        ["architecture", architecture],
        ["parameters", parameters],
        ["context length", _number(info.get(f"{architecture}.context_length"))],
        ["embedding length", _number(info.get(f"{architecture}.embedding_length"))],
    ]
    rows = [row for row in known if row[1]]
    rows.append(["quantization", model.details.quantization_level])
    if model.repository:
        rows.append(["repository", model.repository])
        rows.append(["revision", model.revision[:12]])
    if model.requires:
        rows.append(["requires", model.requires])
    if model.weights:
        rows.append(["in memory as", model.weights])
    return rows


def _projector_rows(info: dict[str, Any]) -> list[list[str]]:
    if not info:
        return []
    architecture = str(info.get("general.architecture", ""))
    rows = [
        ["architecture", architecture],
        ["parameters", _count(info.get("general.parameter_count"))],
        ["embedding length", _number(info.get(f"{architecture}.vision.embedding_length"))],
        ["dimensions", _number(info.get(f"{architecture}.vision.projection_dim"))],
    ]
    return [row for row in rows if row[1]]


def _count(value: Any) -> str:
    return human_parameters(int(value)) if isinstance(value, int | float) else ""


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return str(int(value)) if value == int(value) else str(value)


def _short(value: Any) -> str:
    """A metadata value in a cell: long arrays show their first items and how many more there are."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}" if abs(value) >= 1e21 or value != int(value) else str(int(value))
    if not isinstance(value, list):
        return "" if value is None else str(value)
    shown: list[str] = []
    width = 1
    for item in value:
        text = _short(item)
        width += len(text) + (2 if shown else 0)
        if shown and width > _ARRAY_WIDTH:
            break
        shown.append(text)
    more = f" ...+{len(value) - len(shown)} more" if len(shown) < len(value) else ""
    return f"[{' '.join(shown)}{more}]"


def _tensor_row(tensor: Any) -> list[str]:
    shape = tensor.get("shape") or []
    return [str(tensor.get("name", "")), str(tensor.get("type", "")), f"[{' '.join(str(size) for size in shape)}]"]


def _first_lines(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [[line] for line in lines[:2]] + ([["..."]] if len(lines) > 2 else [])
