"""Results do not depend on what was in memory before.

MLX keeps freed buffers and hands them out again as they are. A kernel that reads what it did not write is right in a
fresh process and wrong in one that has worked: so the buffers are filled here before a prompt is computed.
"""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.engine.support import prompt
from tests.gpu.test_exactness import DTYPES, MODELS, model
from tests.support.precision import Reference

_SIZES = [1 << exponent for exponent in range(4, 21)]
"""Numbers of four bytes in a buffer: from 64 bytes, below what a tiny model's largest array takes."""
_EACH = 6


def fill_free_buffers(value: float) -> None:
    """Have free buffers of every size hold `value`."""
    arrays = [mx.full((size,), value, mx.float32) for size in _SIZES for _ in range(_EACH)]
    mx.eval(arrays)


@pytest.mark.parametrize("value", [float("nan"), 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", MODELS)
def test_a_prompt_gives_the_same_whatever_is_in_free_buffers(architecture: str, dtype: str, value: float) -> None:
    network = model(architecture, dtype).model
    for length in (1, 36, 79):
        tokens, answer = prompt(length, length), []
        fill_free_buffers(value)
        caches, following = make_prompt_cache(network), tokens
        for _ in range(3):
            logits = network(mx.array([following]), cache=caches)[0, -1]
            answer.append(int(mx.argmax(logits)))
            following = answer[-1:]
            fill_free_buffers(value)
        wrong = Reference(network, tokens, answer, dtype, most=16).wrong(answer)
        assert not wrong, f"a prompt of {length} tokens: wrong tokens at {wrong}"
