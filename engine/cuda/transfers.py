"""Transfers between the host and a GPU through pinned memory, which wait only for read data (`engine.transfers`)."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cuda.accelerator import Accelerator
from engine.transfers import Event, FetchedTensor


class ArrivingTensor:
    """A tensor in pinned memory that is being copied from the device; it is complete when its event has come."""

    def __init__(self, tensor: Tensor, event: Event) -> None:
        self._tensor = tensor
        self._event = event

    def wait(self) -> Tensor:
        """Return the tensor, once its copy to the host is done."""
        self._event.synchronize()
        return self._tensor


class PinnedTransfers:
    """Transfers through PyTorch's pinned memory, which is not given to anyone else before its copies are done."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._device = accelerator.device

    def put(self, array: NDArray[Any]) -> Tensor:
        """Return a copy of the array on the device, by way of pinned memory."""
        source = torch.from_numpy(array)
        pinned = self._pinned_buffer(source.numel() * source.itemsize).view(source.dtype).view(source.shape)
        pinned.copy_(source)
        return pinned.to(self._device, non_blocking=True)

    def fetch(self, tensor: Tensor) -> FetchedTensor:
        """Launch the copy of a tensor to pinned memory, and return the arriving tensor."""
        pinned = self._pinned_buffer(tensor.numel() * tensor.itemsize).view(tensor.dtype).view(tensor.shape)
        pinned.copy_(tensor, non_blocking=True)
        return ArrivingTensor(pinned, self._accelerator.compute.record())

    def _pinned_buffer(self, num_bytes: int) -> Tensor:
        return self._accelerator.host_buffer(num_bytes)
