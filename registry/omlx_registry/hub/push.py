"""Sending a model to the Hugging Face Hub. Runs in a worker: it uses the network and the user's token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omlx_registry.conversion import WHOLE_MODEL
from omlx_registry.errors import PullError
from omlx_registry.hub.download import clear_errors
from omlx_registry.worker_client import JobProgress, PushHub


def run(job: PushHub, report: Callable[[JobProgress], None]) -> str:
    """Upload the files of `job.folder` to `job.repository`; returns the address of the commit.

    The repository is made where there is none. Raises PullError with a sentence for the user.
    """
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise PullError(
            "unauthorized: access denied: pushing needs a Hugging Face token with write access. Make one at "
            "https://huggingface.co/settings/tokens and set HF_TOKEN"
        )
    total = sum(path.stat().st_size for path in Path(job.folder).rglob("*") if path.is_file())
    report(JobProgress("pushing model", total, 0, WHOLE_MODEL))
    api = HfApi(library_name="omlx")
    with clear_errors(job.repository, "push model"):
        api.create_repo(job.repository, exist_ok=True)
        made = api.upload_folder(
            repo_id=job.repository, folder_path=job.folder, commit_message="Upload with oMLX", allow_patterns=None
        )
    report(JobProgress("pushing model", total, total, WHOLE_MODEL))
    report(JobProgress("pushing manifest"))
    return str(made.commit_url)
