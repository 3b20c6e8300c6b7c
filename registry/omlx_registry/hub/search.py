"""Searching the Hugging Face Hub for models that MLX can run. Runs in a worker: it uses the network."""

from __future__ import annotations

from omlx_registry.hub.download import clear_errors
from omlx_registry.worker_client import FoundRepository

TIMEOUT_S = 6.0
"""Somebody waits at a terminal for it."""


def search(text: str, limit: int) -> list[FoundRepository]:
    """MLX repositories that match `text`, most downloaded first. Raises PullError with a sentence for the user."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.hf_api import ModelInfo
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    # Asked once and plainly: `HfApi.list_models` tries for half a minute where there is no network.
    query = {"search": text, "filter": "mlx", "sort": "downloads", "limit": limit}
    with clear_errors(text, "search"):
        answer = get_session().get(
            f"{constants.ENDPOINT}/api/models",
            params={**query, "expand": ["downloads", "usedStorage"]},
            headers=build_hf_headers(library_name="omlx"),
            timeout=TIMEOUT_S,
        )
        hf_raise_for_status(answer)
        models = [ModelInfo(**model) for model in answer.json()]
        return [FoundRepository(model.id, model.downloads or 0, model.used_storage or 0) for model in models]
