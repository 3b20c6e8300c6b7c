"""Outdated models: pulled models with a newer revision on the Hub. Pure.

A model knows the repository and the commit it was made of. Here the names are matched with what a pull of them would
fetch now (`plan`), and what the Hub says of each repository is added (`compare`). A worker asks it: see `latest`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from omlx_registry.catalog import PullTarget
from omlx_registry.errors import RegistryError
from omlx_registry.names import Name, parse_name
from omlx_registry.spec import ModelSpec, PulledModel
from omlx_registry.worker_client import Commit, RepositoryState

_SOURCE: Final = re.compile(r"hf:(?P<repository>[^@]+)@(?P<commit>.+)")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def commit_of(source: str) -> tuple[str, str]:
    """Repository and commit of a model's `source`; ("", "") if it was not pulled from the Hub."""
    match = _SOURCE.fullmatch(source)
    return (match["repository"], match["commit"]) if match else ("", "")


def plan(specs: Iterable[ModelSpec], resolve: Callable[[Name], PullTarget | None]) -> list[PulledModel]:
    """The models that a pull of their own name would fetch again.

    `resolve` says what a name means; it may raise RegistryError.
    """
    states = []
    for spec in specs:
        repository, commit = commit_of(spec.source)
        if not commit or spec.details.parent_model:
            continue
        try:
            target = resolve(parse_name(spec.full_name))
        except RegistryError:
            continue
        # Without copies under other names, and short names that now refer to another repository.
        if target is not None and target.repository == repository:
            states.append(PulledModel(spec.name, repository, target.revision, commit))
    return states


def questions(planned: Iterable[PulledModel]) -> list[RepositoryState]:
    """The repositories to query, each once; models pinned to a commit are never outdated."""
    states = dict.fromkeys(RepositoryState(model.repository, model.revision) for model in planned)
    return [state for state in states if not _COMMIT.fullmatch(state.revision)]


def compare(planned: Iterable[PulledModel], answers: Mapping[RepositoryState, Commit]) -> list[PulledModel]:
    """The models with the latest commits from the Hub."""
    models = []
    for model in planned:
        answer = answers.get(RepositoryState(model.repository, model.revision), Commit(model.commit))
        models.append(msgspec.structs.replace(model, latest=answer.commit, error=answer.error))
    return models
