"""What a client reads when a model cannot be loaded, or fails at a request: one sentence, while the cause goes to the
log.
"""

from __future__ import annotations

RUNNING_FAILED = "an error was encountered while running the model: "
"""How such an error begins in Ollama, whose clients look for it."""
_SEE_LOG = "the server's log has the details"
_NO_MEMORY = ("out of memory", "insufficient memory", "allocate")
"""How Metal, CUDA and the allocator say it."""
PROMPT_FAILED = f"the model's template or tokenizer failed at this prompt: {_SEE_LOG}"
INPUT_FAILED = f"the model's tokenizer failed at this input: {_SEE_LOG}"


class LoadError(Exception):
    """The model cannot be loaded; `message` is a sentence for the user. On both sides of the runner's socket."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def running_failed(error: Exception) -> str:
    """The sentence for `error`, which some library raised in its own words."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return RUNNING_FAILED + "there was not enough memory, try a smaller context (num_ctx) or fewer requests at once"
    return RUNNING_FAILED + _SEE_LOG
