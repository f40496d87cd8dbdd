"""The adapters of one step on a GPU (`engine.models.decoder.StepLora`): two launches for each group of projections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cuda.accelerator import Beside, Stream
from engine.cuda.adapters import DeviceSlots
from engine.lora.layer import Group, groups_of
from engine.transfers import Event
from kernels.experts import ExpertRows
from kernels.gpu.lora import Shrink, expand_, expand_and_silu_mul, workspace_elements
from kernels.gpu.work_list import WorkList


class SlotLora:
    """The adapters of one step. Making it launches the look-up of the chunks' weights.

    work: the rows that use each slot.
    workspace: made with `lora_workspace`.
    beside: a second stream of the accelerator; None where it is not worth its events.
    """

    def __init__(
        self, slots: DeviceSlots, work: WorkList, workspace: Tensor, waits: LayerWaits, beside: Beside | None
    ) -> None:
        self._columns_of = slots.columns_of
        self._table = slots.table.of_chunks(work)
        self._layer = -1
        self._max_rank = slots.max_rank
        self._work = work
        self._workspace = workspace
        self._waits = waits
        self._beside = beside

    def begin(self, layer: int, group: Group, x: Tensor) -> SlotDelta:
        if layer != self._layer:
            self._layer = layer
            self._waits.await_layer(layer)
        table = self._table.group(layer, *self._columns_of(group))
        shrink = Shrink.of(x, table, self._max_rank, self._work, self._workspace)
        launch = shrink.launch()
        if self._beside is None:
            launch.run()
            return SlotDelta(shrink, lambda: None)
        return SlotDelta(shrink, self._beside(launch.run))

    def begin_experts(self, layer: int, group: Group, x: Tensor, rows: ExpertRows) -> SlotDelta:
        raise NotImplementedError("on a GPU transformers computes experts")


class SlotDelta(NamedTuple):
    """A shrink that was launched (`engine.models.decoder.Delta`)."""

    shrink: Shrink
    join: Callable[[], None]
    """Called before the shrink's result is read."""

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        self.join()
        expand_(out, sizes, self.shrink)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        self.join()
        return expand_and_silu_mul(gate_up, self.shrink)


class LayerWaits:
    """The copies of a step's adapters that may still run (`engine.cuda.copies`).

    The computing stream waits for them, the host does not.
    arrivals: the events of each adapter's layers. pending: those that have not come.
    """

    def __init__(self, compute: Stream, arrivals: Iterable[Sequence[Event]]) -> None:
        self.pending = [of_layers for of_layers in arrivals if of_layers and not of_layers[-1].has_come]
        self._compute = compute
        self._by_layer: list[tuple[Event, ...]] = list(zip(*self.pending, strict=True))

    def await_layer(self, layer: int) -> None:
        """Wait for a layer's arrivals. An arrival comes after those of the layers before it."""
        for arrival in self._by_layer[layer] if self._by_layer else ():
            self._compute.wait(arrival)

    def await_all(self) -> None:
        """Wait for all layers, for a graph, which can't wait in its midst."""
        if self._by_layer:
            self.await_layer(len(self._by_layer) - 1)


def lora_workspace(
    config: ModelConfig, num_rows: int, max_rank: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a workspace that is large enough for every group's products."""
    targets = config.projection_shapes()
    elements = (
        workspace_elements(num_rows, targets[group[0]][0], len(group), max_rank, dtype, device)
        for group in groups_of(config)
    )
    return torch.empty(max(elements, default=0), dtype=torch.float32, device=device)
