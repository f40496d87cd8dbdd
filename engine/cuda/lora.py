"""The adapters of one step on a GPU (`engine.models.decoder.StepLora`): two launches for each group of projections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cuda.accelerator import Beside, Stream
from engine.cuda.adapters import DeviceSlots
from engine.lora.layer import EXPERT_GROUPS, Group, groups_of, shapes_of
from engine.transfers import Event
from kernels.expert_lora import experts_of
from kernels.experts import ExpertRows
from kernels.gpu.lora import ChunkTable, Shrink, SlotTable, expand_, expand_and_silu_mul, workspace_elements
from kernels.gpu.tuning import lora_block_m
from kernels.gpu.work_list import WorkList, build_work_list, slots_of


class SlotLora:
    """The adapters of one step. Making it launches the look-up of the chunks' weights.

    work: the rows that use each slot.
    workspace: made with `lora_workspace`.
    beside: a second stream of the accelerator; None where its events would cost more than it saves.
    """

    def __init__(
        self, slots: DeviceSlots, work: WorkList, workspace: Tensor, waits: LayerWaits, beside: Beside | None
    ) -> None:
        self._slots = slots
        self._experts: ExpertChunks | None = None
        self._columns_of = slots.columns_of
        self._table = slots.table.of_chunks(work)
        self._layer = -1
        self._max_rank = slots.max_rank
        self._work = work
        self._workspace = workspace
        self._waits = waits
        self._beside = beside

    def begin(self, layer: int, group: Group, x: Tensor) -> SlotDelta:
        """Launch the shrink of x [N, in] once the layer's weights have come, and return its delta."""
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
        """Launch the shrink of rows of experts x [M, in]; return its delta."""
        if self._experts is None or self._experts.rows is not rows:
            self._experts = ExpertChunks.of(rows, self._work, self._slots.num_slots)
        columns = self._columns_of(group)
        size = self._slots.size_of(group)
        table = self._experts.table(self._slots.table, layer, columns, size, x.element_size())
        shrink = Shrink.of(x, table, self._max_rank, self._experts.work, self._workspace)
        shrink.launch().run()
        return SlotDelta(shrink, lambda: None)


class ExpertChunks(NamedTuple):
    """The rows of one layer's experts by slot and expert: a virtual slot for each pair. All of it on the device."""

    rows: ExpertRows
    work: WorkList
    """The segments of virtual slots, whose numbers are slot * experts + expert."""

    @classmethod
    def of(cls, rows: ExpertRows, work: WorkList, num_slots: int) -> ExpertChunks:
        """Make the chunks of a step's rows. work: the work list of the step's rows, by slot."""
        num_experts = len(rows.counts)
        slots = slots_of(work)[rows.tokens]
        virtual = torch.where(slots < 0, -1, slots * num_experts + experts_of(rows))
        return cls(rows, build_work_list(virtual, num_slots * num_experts, lora_block_m(len(virtual))))

    def table(
        self, slots: SlotTable, layer: int, columns: tuple[int, int], size: tuple[int, int], itemsize: int
    ) -> ChunkTable:
        """Return the table of the weights of each chunk: its expert's share of the weights in its slot.

        columns: the columns of the group in the table.
        size: (in, out) of each of the group's projections.
        itemsize: the bytes of a weight.
        """
        virtual, _, counts = self.work.chunks.long().unbind(1)
        num_experts = len(self.rows.counts)
        slot, expert = virtual.clamp(min=0) // num_experts, virtual.clamp(min=0) % num_experts
        of_group = SlotTable(*(tensor[layer, slice(*columns)] for tensor in slots))
        ranks = of_group.ranks[:, slot] * ((virtual >= 0) & (counts > 0)).int()
        width, height = size
        a_bytes = of_group.ranks.sum(0)[slot] * (width * itemsize)  # of one expert's A's, which lie below each other
        b_bytes = of_group.ranks[:, slot].long() * (height * itemsize)
        return ChunkTable(
            of_group.a[:, slot] + expert * a_bytes,
            of_group.b[:, slot] + expert * b_bytes,
            ranks,
            of_group.scalings[:, slot],
        )


class SlotDelta(NamedTuple):
    """A shrink that was launched (`engine.models.decoder.Delta`)."""

    shrink: Shrink
    join: Callable[[], None]
    """The function that makes the computing stream wait for the shrink, before its result is read."""

    def add_(self, out: Tensor, sizes: Sequence[int]) -> None:
        """Wait for the shrink on the device, and launch the expand that adds the delta to out [N, sum(sizes)]."""
        self.join()
        expand_(out, sizes, self.shrink)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Wait for the shrink on the device, and launch the expand to gate and up with their activation: [N, I]."""
        self.join()
        return expand_and_silu_mul(gate_up, self.shrink)


class LayerWaits:
    """The copies of a step's adapters that may still run (`engine.cuda.copies`).

    The computing stream waits for them, the host does not. arrivals: the events of each adapter's layers. pending: the
    events that have not come.
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
    targets = shapes_of(config)
    chosen = 0 if config.experts is None else config.experts.chosen
    elements = (
        workspace_elements(
            num_rows * (chosen if group in EXPERT_GROUPS else 1),
            targets[group[0]][0],
            len(group),
            max_rank,
            dtype,
            device,
        )
        for group in groups_of(config)
    )
    return torch.empty(max(elements, default=0), dtype=torch.float32, device=device)
