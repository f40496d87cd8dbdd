"""The contents of slots in the form that kernels read: addresses, true ranks and scalings in device memory.

A slot's entries are written by the stream that computes, before the first step that uses it and after the last one that
did, so that no step, nor a replayed graph, sees them change. Belongs to the stepping thread. Knows nothing of loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.lora.layer import GROUPS, Group, LoadedAdapter
from engine.transfers import Transfers
from kernels.gpu.lora import MAX_PROJECTIONS, SlotTable

ALIGNED_BYTES = 16
PROJECTIONS = tuple(name for group in GROUPS for name in group)


class DeviceSlots:
    """A table of num_slots slots.

    max_rank: no adapter's rank is larger.
    transfers: move entries to the device, in the order in which steps are launched.
    groups: the groups of projections that share an input; shapes: (in_features, out_features) of experts' projections.
    num_changes: the number of times that entries were written.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        max_rank: int,
        transfers: Transfers,
        device: torch.device,
        groups: Sequence[Group] = GROUPS,
        shapes: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        assert all(len(group) <= MAX_PROJECTIONS for group in groups), "the kernels take no more of a group"
        self._shapes = shapes or {}
        self._first: dict[Group, int] = {}
        num_projections = 0
        for group in groups:
            self._first[group] = num_projections
            num_projections += len(group)
        self.table = SlotTable.empty(num_layers, num_projections, num_slots, device)
        self.num_slots = num_slots
        self.max_rank = max_rank
        self.num_changes = 0
        self._transfers = transfers
        self._placed: dict[int, LoadedAdapter] = {}

    def columns_of(self, group: Group) -> tuple[int, int]:
        """Return where a group's projections are in the table: [first, last)."""
        first = self._first[group]
        return first, first + len(group)

    def size_of(self, group: Group) -> tuple[int, int]:
        """Return (in_features, out_features) of each projection of a group of experts."""
        (size,) = {self._shapes[projection] for projection in group}
        return size

    def place(self, slot: int, adapter: LoadedAdapter) -> None:
        """Place an adapter for the steps launched from now on; do nothing if it is there."""
        if self._placed.get(slot) is adapter:
            return
        addresses, ranks, scalings = _entries(adapter, self._first, *self.table.ranks.shape[:2])
        for target, entries in zip(self.table, (addresses[0], addresses[1], ranks, scalings), strict=True):
            target[:, :, slot] = self._transfers.put(entries)
        self._placed[slot] = adapter
        self.num_changes += 1

    def clear(self, slot: int) -> None:
        """Clear a slot: for the steps launched from now on it adapts nothing."""
        if self._placed.pop(slot, None) is not None:
            self.table.ranks[:, :, slot] = 0
            self.num_changes += 1


def _entries(
    adapter: LoadedAdapter, first_of: Mapping[Group, int], num_layers: int, num_projections: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Return one slot's addresses of A's and B's [2, L, P] int64, ranks [L, P] int32, scalings [L, P] fp32.

    Addresses of matrices of experts are those of the first one.
    """
    addresses = np.zeros((2, num_layers, num_projections), dtype=np.int64)
    ranks = np.zeros((num_layers, num_projections), dtype=np.int32)
    scalings = np.zeros((num_layers, num_projections), dtype=np.float32)
    for (layer, group), weights in adapter.groups.items():
        first = first_of[group]
        shrinks = torch.split(weights.a, [b.shape[-2] for b in weights.bs], -2)
        for p, a, b, scaling in zip(
            weights.projections, shrinks, weights.bs, adapter.scalings[layer, group], strict=True
        ):
            addresses[:, layer, first + p] = a.data_ptr(), b.data_ptr()
            ranks[layer, first + p] = b.shape[-2]
            scalings[layer, first + p] = scaling
    assert not (addresses % ALIGNED_BYTES).any(), "the kernels read 16 bytes at once from where a matrix begins"
    return addresses, ranks, scalings
