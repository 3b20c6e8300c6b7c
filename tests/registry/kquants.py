"""Q4_K and Q6_K written: the gguf package reads them only. Simple rounding, without llama.cpp's search for scales."""

from __future__ import annotations

import numpy as np


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)[..., None].view(np.uint8)


def q6_k(values: np.ndarray) -> np.ndarray:
    """float32 [..., columns] → uint8 [..., bytes per row]; columns in blocks of 256."""
    groups = values.reshape(-1, 16, 16).astype(np.float32)
    largest = np.abs(groups).max(-1)
    d = np.maximum(largest.max(-1) / (31 * 127), 1e-7).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(largest / (31 * d[:, None])), 1, 127)
    codes = np.clip(np.rint(groups / (scales * d[:, None])[..., None]), -32, 31).astype(np.int32) + 32
    halves = codes.reshape(-1, 2, 4, 32).astype(np.uint8)
    low, high = halves & 0x0F, halves >> 4
    ql = np.concatenate([low[:, :, 0] | (low[:, :, 2] << 4), low[:, :, 1] | (low[:, :, 3] << 4)], -1)
    qh = high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)
    count = len(groups)
    parts = [ql.reshape(count, -1), qh.reshape(count, -1), scales.astype(np.int8).view(np.uint8), _half(d)]
    return np.concatenate(parts, -1).reshape(*values.shape[:-1], -1)


def q4_k(values: np.ndarray) -> np.ndarray:
    """float32 [..., columns] → uint8 [..., bytes per row]; columns in blocks of 256."""
    groups = values.reshape(-1, 8, 32).astype(np.float32)
    lowest = np.minimum(groups.min(-1), 0)
    steps = (groups.max(-1) - lowest) / 15
    d, dmin = (np.maximum(x.max(-1) / 63, 1e-7).astype(np.float16).astype(np.float32) for x in (steps, -lowest))
    sc = np.clip(np.rint(steps / d[:, None]), 1, 63).astype(np.uint8)
    m = np.clip(np.rint(-lowest / dmin[:, None]), 0, 63).astype(np.uint8)
    codes = np.rint((groups + (m * dmin[:, None])[..., None]) / (sc * d[:, None])[..., None])
    codes = np.clip(codes, 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    packed = np.concatenate(
        [sc[:, :4] | (sc[:, 4:] >> 4 << 6), m[:, :4] | (m[:, 4:] >> 4 << 6), (sc[:, 4:] & 0xF) | (m[:, 4:] << 4)], -1
    )
    qs = (codes[:, :, 0] | (codes[:, :, 1] << 4)).reshape(len(groups), -1)
    return np.concatenate([_half(d), _half(dmin), packed, qs], -1).reshape(*values.shape[:-1], -1)
