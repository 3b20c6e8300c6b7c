"""Asking the Hugging Face Hub for the newest commit of repositories. Runs in a worker: it uses the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from omlx_registry.errors import PullError
from omlx_registry.hub.download import clear_errors
from omlx_registry.worker_client import Commit, RepositoryState

TIMEOUT_S: Final = 10.0
"""Short, because a user waits at a terminal."""


def newest(states: Iterable[RepositoryState]) -> list[Commit]:
    """The newest commits in the order of `states`, one request each.

    What the Hub says about one repository (gone, gated) is that one's error. Raises PullError where it cannot be
    reached.
    """
    from huggingface_hub import constants, errors, get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    headers = build_hf_headers(library_name="omlx")
    commits = []
    for state in states:
        # One plain request: `HfApi` retries for half a minute without a network.
        address = f"{constants.ENDPOINT}/api/models/{state.repository}/revision/{state.revision}"
        try:
            with clear_errors(state.repository, "outdated"):
                answer = get_session().get(address, params={"expand": "sha"}, headers=headers, timeout=TIMEOUT_S)
                hf_raise_for_status(answer)
                commits.append(Commit(str(answer.json().get("sha") or "")))
        except PullError as error:
            if not isinstance(error.__cause__, errors.HfHubHTTPError):
                raise
            commits.append(Commit(error=error.message.removeprefix("outdated: ")))
    return commits
