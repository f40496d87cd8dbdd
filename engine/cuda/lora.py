"""The adapters of one step on a GPU (`engine.models.decoder.StepLora`): two launches for each group of projections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cuda.accelerator import Stream
from engine.cuda.adapters import DeviceSlots, columns_of
from engine.lora.layer import GROUPS, QKV, Group, LoadedAdapter
from engine.transfers import Event
from kernels.gpu.lora import add_lora_, workspace_elements
from kernels.gpu.work_list import WorkList


class SlotLora:
    """work: which rows use which slot; workspace: of `lora_workspace`."""

    def __init__(self, slots: DeviceSlots, work: WorkList, workspace: Tensor, waits: LayerWaits) -> None:
        self._slots = slots
        self._work = work
        self._workspace = workspace
        self._waits = waits

    def add_(self, layer: int, group: Group, x: Tensor, out: Tensor, sizes: Sequence[int]) -> None:
        if group is QKV:  # the first of its layer
            self._waits.await_layer(layer)
        table = self._slots.table.group(layer, *columns_of(group))
        add_lora_(out, x, sizes, table, self._slots.max_rank, self._work, self._workspace)


class LayerWaits:
    """What a step has to wait for: copies of its adapters that may still run (`engine.cuda.copies`). The computing
    stream waits, the host does not."""

    def __init__(self, compute: Stream, adapters: Iterable[LoadedAdapter]) -> None:
        pending = [a.arrivals for a in adapters if a.arrivals and not a.arrivals[-1].has_come]
        self._compute = compute
        self._by_layer: list[tuple[Event, ...]] = list(zip(*pending, strict=True))

    def await_layer(self, layer: int) -> None:
        """An arrival comes after those of the layers before it."""
        for arrival in self._by_layer[layer] if self._by_layer else ():
            self._compute.wait(arrival)

    def await_all(self) -> None:
        """For a graph, which can't wait in its midst."""
        if self._by_layer:
            self.await_layer(len(self._by_layer) - 1)


def lora_workspace(
    config: ModelConfig, num_rows: int, max_rank: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Large enough for every group's products."""
    targets = config.adapter_targets()
    elements = max(
        workspace_elements(num_rows, targets[group[0]][0], len(group), max_rank, dtype, device) for group in GROUPS
    )
    return torch.empty(elements, dtype=torch.float32, device=device)
