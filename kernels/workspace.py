"""Scratch memory that is kept between calls.

A CPU's fresh pages are zeroed by the kernel one by one as they are first touched, which can take longer than the
computation in them; memory that was used in the last layer is still in the processor's cache.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_VIEWS = 256  # kept: making one costs as much as a small operation


class Workspace:
    """A buffer of one dtype on one device, as large as the largest request so far."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.empty(0, dtype=dtype, device=device)
        self._views: dict[tuple[int, ...], Tensor] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the buffer."""
        return self._buffer.dtype

    def take(self, *shape: int) -> Tensor:
        """Return a contiguous tensor of this shape with arbitrary contents; it is valid until the next `take`."""
        view = self._views.get(shape)
        if view is None:
            size = math.prod(shape)
            if size > self._buffer.numel():
                self._buffer = torch.empty(size, dtype=self._buffer.dtype, device=self._buffer.device)
                self._views.clear()
            elif len(self._views) == MAX_VIEWS:
                self._views.clear()
            view = self._views[shape] = self._buffer[:size].view(shape)
        return view
