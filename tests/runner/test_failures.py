"""What a client reads when a model fails at its request: never what some library says."""

from __future__ import annotations

import pytest

from omlx.messages.failures import running_failed

_BEGINS = "an error was encountered while running the model: "
_MEMORY = "there was not enough memory, try a smaller context (num_ctx) or fewer requests at once"
_LOG = "the server's log has the details"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("[broadcast_shapes] Shapes (1,4,7,7) and (1,1,1,9) cannot be broadcast."), _LOG),
        (KeyError("/home/me/.local/share/omlx/views/abc/model.safetensors"), _LOG),
        (
            RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008)"),
            _MEMORY,
        ),
        (RuntimeError("[malloc_or_wait] Unable to allocate 17179869184 bytes."), _MEMORY),
        (MemoryError(), _MEMORY),
    ],
)
def test_a_fault_of_the_model_is_told_in_our_words(error: Exception, told: str) -> None:
    assert running_failed(error) == _BEGINS + told
