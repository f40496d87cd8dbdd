"""Transfers between host and device without waiting, for the host's side of a step besides the forward pass.

On a CPU, host and device are one. Knows nothing of the data.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor


class Event(Protocol):
    """A moment in the work of a device, such as the end of a copy."""

    @property
    def has_come(self) -> bool:
        """True once the device has come to this moment."""

    def synchronize(self) -> None:
        """Wait for the event on the host."""


class PastEvent:
    """An event of work that is done when it is given: there is nothing to wait for."""

    has_come = True

    def synchronize(self) -> None:
        """Return at once: the work is done."""


class FetchedTensor(Protocol):
    """A tensor on its way to the host."""

    def wait(self) -> Tensor:
        """Return the tensor on the host, once the device has computed and copied it."""


class Transfers(Protocol):
    """Copies between host and device that do not make the host wait."""

    def put(self, array: NDArray[Any]) -> Tensor:
        """Return a copy of the array on the device, for what is launched after this call.

        The array is not written to again.
        """

    def fetch(self, tensor: Tensor) -> FetchedTensor:
        """Fetch the tensor's content as it is after what was launched before this call."""


class HostTensor:
    """A tensor that is on the host already."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> Tensor:
        """Return the tensor at once."""
        return self._tensor


class HostTransfers:
    """The transfers of a CPU: arrays and tensors share their memory."""

    def put(self, array: NDArray[Any]) -> Tensor:
        """Return a tensor over the array's memory."""
        return torch.from_numpy(array)

    def fetch(self, tensor: Tensor) -> FetchedTensor:
        """Return the tensor itself as fetched."""
        return HostTensor(tensor)
