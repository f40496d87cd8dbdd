"""The kind of a device's error: out of memory, or lost. Knows nothing of what is done about it.

The same fault comes in several ways: PyTorch's allocator, CUDA's runtime, cuBLAS and Triton's launcher each raise an
error of their own, and only the first two have a type.
"""

from __future__ import annotations

import torch

_OF_A_DEVICE = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]")
_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that a device lacks memory that was asked for, and can go on with what it has."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return _is_of_device(error) and any(sign in str(error) for sign in _OUT_OF_MEMORY)


def is_device_lost(error: BaseException) -> bool:
    """Tell whether an error is a fault that a device reports, other than out of memory.

    After most of these faults (an illegal address, a failed assertion) every later call fails as well, until a new
    process opens the device; so none of them is worth a second try.
    """
    return _is_of_device(error) and not is_out_of_memory(error)


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith(_OF_A_DEVICE)
