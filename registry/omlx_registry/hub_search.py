"""Searching the Hugging Face Hub for models that MLX can run. Runs in a worker: it uses the network."""

from __future__ import annotations

from omlx_registry.hub_download import clear_errors
from omlx_registry.worker_client import Found


def search(text: str, limit: int) -> list[Found]:
    """MLX repositories that match `text`, most downloaded first. Raises PullError with a sentence for the user."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="omlx")
    with clear_errors(text, "search"):
        models = api.list_models(
            search=text, filter="mlx", sort="downloads", limit=limit, expand=["downloads", "usedStorage"]
        )
        return [Found(model.id, model.downloads or 0, model.used_storage or 0) for model in models]
