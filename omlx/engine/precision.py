"""Precision of float32 matrix products on a GPU.

TF32 is a mode of NVIDIA's matrix units, and of Apple's from M5 on, that rounds the factors of a float32 product to
10 bits of mantissa: about three decimal digits instead of seven. MLX uses it unless told otherwise. Models in
bfloat16 or float16 keep few things in float32 (some routers, recurrent states, logits that are scaled), and these
decide between experts and tokens, so oMLX computes them in full float32 by default. Only models whose weights are
float32 get faster with TF32.
"""

from __future__ import annotations

import os

VARIABLE = "MLX_ENABLE_TF32"


def use_tf32(enabled: bool) -> None:
    """Choose TF32 or full float32 for this process. MLX reads the choice once, at its first matrix product."""
    os.environ[VARIABLE] = "1" if enabled else "0"
