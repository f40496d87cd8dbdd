"""Arithmetic on the bytes of tensors, without torch: NumPy has no bfloat16, which is the upper half of a float32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sum_of_squares(raw: bytes, dtype: str) -> float:
    """Return the sum of the squares of a tensor's elements in fp64, which no square of these dtypes overflows.

    The sum is NaN or infinity if, and only if, an element is.

    raw: whole little-endian elements of dtype F32, F16 or BF16.
    """
    values = _as_float64(raw, dtype)
    return float(np.dot(values, values))


def as_float32(raw: bytes, dtype: str) -> NDArray[np.float32]:
    """Return elements as float32, which holds each of them exactly. raw, dtype: as for `sum_of_squares`."""
    return _as_float64(raw, dtype).astype(np.float32)


def _as_float64(raw: bytes, dtype: str) -> NDArray[np.float64]:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, "<f2" if dtype == "F16" else "<f4").astype(np.float64)
