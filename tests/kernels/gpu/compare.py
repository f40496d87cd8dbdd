"""The device and number formats that kernels are tested with, and how near their references they must be.

Triton's interpreter multiplies bfloat16 wrongly, so that bfloat16 is tested on a GPU alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """Assert that the relative error of the whole is within the width's tolerance, and that of every element within
    four times as much, measured against the largest element."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    error = (ours.double() - theirs.double()).abs()
    tolerance = TOLERANCE[ours.dtype]
    assert error.norm() <= tolerance * theirs.double().norm(), error.norm()
    assert error.max() <= 4 * tolerance * theirs.double().abs().max(), error.max()


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory filled with NaN, so that elements which are not written show."""
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normally distributed random numbers, the same on every device."""
    return torch.randn(shape).to(DEVICE, dtype)
