"""Adapters copied from pinned memory to the device on a stream of their own, layer by layer, beside running steps.

The waits, in the order of one adapter's life:
 1. The loading thread reserves its memory. A step launched earlier may still read what was there before, so the copying
    stream waits for the event that `give_back` recorded when that memory was given back.
 2. The loading thread gives the copying stream each layer's copies, and records the layer's arrival. The host waits for
    none of them: the slot may be used at once.
 3. A step that uses the slot makes the computing stream wait for a layer's arrival before it computes that layer
    (`engine.cuda.lora`), a replayed graph for the last arrival before it begins. Other steps wait for nothing.
 4. When the slot is emptied, the stepping thread clears its entries on the computing stream (`engine.cuda.adapters`),
    records there that memory is given back, and only then lets go of it.

Knows nothing of files, slots and requests.
"""

from __future__ import annotations

import msgspec
import torch

from engine.cuda.accelerator import Accelerator
from engine.lora.layer import LoadedAdapter
from engine.transfers import Event


class SideCopies:
    """Copies adapters. `to_device` belongs to the loading thread, `give_back` to the stepping thread."""

    def __init__(self, accelerator: Accelerator, num_layers: int) -> None:
        self._device = accelerator.device
        self._compute = accelerator.compute
        self._copying = accelerator.side_stream()
        self._num_layers = num_layers
        self._given_back: Event | None = None

    def reserve(self, num_bytes: int) -> None:
        """Take memory once for all adapters, so that no load has to ask the driver, which would stop the device."""
        with self._copying.use():
            torch.empty(num_bytes, dtype=torch.uint8, device=self._device)  # PyTorch keeps it for this stream

    def to_device(self, adapter: LoadedAdapter) -> LoadedAdapter:
        """Return a copy whose `arrivals` tell when each layer is there."""
        arrivals = []
        with self._copying.use():
            weights = torch.empty(adapter.weights.shape, dtype=adapter.weights.dtype, device=self._device)
            if self._given_back is not None:  # looked at after the memory was taken, which is let go of after it is set
                self._copying.wait(self._given_back)
            for layer in range(self._num_layers):
                for first, last in adapter.layout.spans_of(layer):
                    weights[first:last].copy_(adapter.weights[first:last], non_blocking=True)
                arrivals.append(self._copying.record())
        return msgspec.structs.replace(
            adapter, weights=weights, groups=adapter.layout.groups_of(weights), arrivals=tuple(arrivals)
        )

    def give_back(self) -> None:
        """Give back an adapter's memory, as far as the steps launched so far leave it.

        Called before the last reference to the adapter goes.
        """
        self._given_back = self._compute.record()
