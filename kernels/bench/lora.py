"""Benchmark cases of LoRA adapters: one run computes all groups of projections of all layers.

So weights come from memory and not from a cache. As in the engine, the expand of gate and up computes the activation
too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kernels.activation import silu_mul_reference
from kernels.bench.case import Case, relative_error
from kernels.bench.floors import Work, lora_work
from kernels.bench.shapes import Shape
from kernels.gpu.launch import Launch
from kernels.gpu.lora import (
    ChunkTable,
    Shrink,
    SlotTable,
    activate_launch,
    expand_launch,
    lora_reference,
    resolve_launch,
)
from kernels.gpu.tuning import ExpandBlocks, ShrinkBlocks, ShrinkSums, lora_block_m
from kernels.gpu.work_list import build_work_list

SCALING = 2.0
GATE_UP = 2  # among the groups
SMALLEST_SPLIT = 512


class Adapters:
    """Adapters in slots, one in each, on every projection of the shape. ranks[slot] is the adapter's rank."""

    def __init__(self, shape: Shape, ranks: Sequence[int]) -> None:
        self.shape, self.ranks = shape, tuple(ranks)
        num_projections = sum(len(sizes) for _, sizes in shape.groups)
        self.table = SlotTable.empty(shape.num_layers, num_projections, len(ranks), shape.device)
        self.table.ranks.copy_(torch.tensor(ranks))
        self.table.scalings.fill_(SCALING)
        self.weights: dict[tuple[int, int], tuple[list[Tensor], list[Tensor]]] = {}  # by slot, of a layer's projection
        for layer in range(shape.num_layers):
            p = 0
            for in_features, sizes in shape.groups:
                for size in sizes:
                    a = self._matrices(in_features, [in_features] * len(ranks))
                    b = self._matrices(size, ranks)
                    self.weights[layer, p] = a, b
                    for addresses, of_slot in ((self.table.a, a), (self.table.b, b)):
                        addresses[layer, p] = torch.tensor([part.data_ptr() for part in of_slot], device=shape.device)
                    p += 1

    def _matrices(self, width: int, scales: Sequence[int]) -> list[Tensor]:
        """Return a random matrix [rank, width] of each slot, scaled by scale**-0.5, all in one piece of memory."""
        rows = self.shape.randn(sum(self.ranks), width)
        return [part.div_(scale**0.5) for part, scale in zip(torch.split(rows, list(self.ranks)), scales, strict=True)]

    @property
    def num_slots(self) -> int:
        """The number of slots, each with an adapter."""
        return len(self.ranks)

    @property
    def max_rank(self) -> int:
        """The highest rank of any adapter, which the tables have room for."""
        return max(self.ranks)

    def first_projection(self, group: int) -> int:
        """Return the place of a group's first projection among all projections of a layer."""
        return sum(len(sizes) for _, sizes in self.shape.groups[:group])

    def of_slot(self, layer: int, group: int, slot: int) -> list[tuple[Tensor, Tensor, float]]:
        """Return the slot's matrices of one group as `lora_reference` takes them."""
        first = self.first_projection(group)
        projections = range(first, first + len(self.shape.groups[group][1]))
        return [(a[slot], b[slot], SCALING) for a, b in (self.weights[layer, p] for p in projections)]


class LoraBatch:
    """Rows that use the given slots (-1: none), as input of every group of every layer."""

    def __init__(self, adapters: Adapters, slots: Tensor) -> None:
        self.adapters, self.slots = adapters, slots
        shape, num_rows = adapters.shape, len(slots)
        self._work = build_work_list(slots, adapters.num_slots, lora_block_m(num_rows))
        num_layers, num_projections, _ = adapters.table.ranks.shape
        self._table = ChunkTable.empty(num_layers, num_projections, len(self._work.chunks), shape.device)
        if shape.device.type != "meta":  # there are contents
            resolve_launch(self._table, adapters.table, self._work).run()
        self.xs = [shape.randn(num_rows, width) for width, _ in shape.groups]
        self.outs = [shape.randn(num_rows, sum(sizes)) for _, sizes in shape.groups]
        self.activated = shape.randn(num_rows, shape.intermediate)
        most_splits = -(-max(width for width, _ in shape.groups) // SMALLEST_SPLIT)  # that may be asked for
        most_projections = max(len(sizes) for _, sizes in shape.groups)
        elements = most_splits * most_projections * num_rows * adapters.max_rank
        self._workspace = torch.empty(elements, dtype=torch.float32, device=shape.device)

    def shrink(self, layer: int, group: int, sums: ShrinkSums | None = None) -> Shrink:
        """Return the shrink of a group's inputs by the rows' adapters. sums: None for those of the tuned table."""
        _, sizes = self.adapters.shape.groups[group]
        first = self.adapters.first_projection(group)
        table = self._table.group(layer, first, first + len(sizes))
        return Shrink.of(self.xs[group], table, self.adapters.max_rank, self._work, self._workspace, sums)

    def launches(
        self,
        layer: int,
        group: int,
        sums: ShrinkSums | None = None,
        shrink_blocks: ShrinkBlocks | None = None,
        expand_blocks: ExpandBlocks | None = None,
    ) -> tuple[Launch, Launch]:
        """Return the launches of shrink and of expand.

        Expand adds to outs[group], or for gate and up writes the activation to activated. sums, shrink_blocks,
        expand_blocks: sizes of blocks other than the device's.
        """
        shrink = self.shrink(layer, group, sums)
        if group == GATE_UP:
            expand = activate_launch(self.activated, self.outs[group], shrink, expand_blocks)
        else:
            expand = expand_launch(self.outs[group], self.adapters.shape.groups[group][1], shrink, expand_blocks)
        return shrink.launch(shrink_blocks), expand

    def result(self, group: int) -> Tensor:
        """Return the tensor that `launches` write to."""
        return self.activated if group == GATE_UP else self.outs[group]

    def run(self) -> None:
        """Launch the kernels of all groups of all layers."""
        for layer in range(self.adapters.shape.num_layers):
            for group in range(len(self.xs)):
                for launch in self.launches(layer, group):
                    launch.run()

    def error(self) -> float:
        """Return the largest error of the first layer's groups."""
        return max(self._error(group) for group in range(len(self.xs)))

    def _error(self, group: int) -> float:
        _, sizes = self.adapters.shape.groups[group]
        if group != GATE_UP:
            self.outs[group].zero_()
        for launch in self.launches(0, group):
            launch.run()
        seen = slice(None, None, max(1, len(self.slots) // 64))
        of_slots = [self.adapters.of_slot(0, group, slot) for slot in range(self.adapters.num_slots)]
        arguments = self.xs[group][seen], of_slots, sizes, self.slots[seen].tolist()
        expected = lora_reference(self.outs[group][seen] if group == GATE_UP else self._zeros(group)[seen], *arguments)
        if group == GATE_UP:
            expected = silu_mul_reference(expected)
        return relative_error(self.result(group)[seen], expected)

    def _zeros(self, group: int) -> Tensor:
        return torch.zeros_like(self.outs[group])

    def work(self) -> Work:
        """Return the bytes and operations that `run` needs."""
        shape = self.adapters.shape
        rows_of = Counter(slot for slot in self.slots.tolist() if slot >= 0)
        adapters = [(count, self.adapters.ranks[slot]) for slot, count in rows_of.items()]
        groups = [lora_work(adapters, *group, shape.dtype.itemsize) for group in shape.groups]
        # Gate's and up's product is read for all rows, and half as much is written, instead of read and written back.
        width = shape.groups[GATE_UP][1][0]
        saved = sum(rows_of.values()) * 4 * width - len(self.slots) * 3 * width
        num_bytes = sum(work.num_bytes for work in groups) - saved * shape.dtype.itemsize
        once = Work(num_bytes, sum(work.num_operations for work in groups))
        return once.times(shape.num_layers)


def lora_cases(shape: Shape) -> Iterator[Case]:
    """Yield the cases of each rank, from an adapter for each token to one for all, and one of mixed ranks."""
    rows, count = shape.prefill_rows, shape.num_adapters
    for rank in shape.ranks:
        adapters = Adapters(shape, [rank] * count)
        distinct = torch.arange(count, device=shape.device)
        decodes = torch.arange(shape.num_decodes, device=shape.device)
        prefill = torch.arange(rows, device=shape.device)
        # Two chunks of prompts beside half as many decodes as there can be, half of these without an adapter.
        mixed = torch.where(prefill < rows // 2, 0, 1)
        few = shape.num_decodes // 2
        mixed[:few] = torch.where(prefill[:few] % 2 == 0, prefill[:few] % count, -1)
        yield _case(f"LoRA rank {rank}: {count} adapters x 1 token", adapters, distinct)
        yield _case(f"LoRA rank {rank}: {len(decodes)} tokens, 1 adapter", adapters, decodes * 0)
        yield _case(f"LoRA rank {rank}: {rows} tokens, 1 adapter", adapters, prefill * 0)
        yield _case(f"LoRA rank {rank}: {rows} tokens, {count} adapters", adapters, prefill * count // rows)
        yield _case(f"LoRA rank {rank}: {rows} tokens, mixed", adapters, mixed)
    low, high = shape.mixed_ranks
    distinct = torch.arange(count, device=shape.device)
    for name, ranks in ((f"rank {low}", [low]), (f"ranks {low} and {high}", [low, high])):
        of_slots = [ranks[slot % len(ranks)] for slot in range(count)]
        yield _case(f"LoRA {name}: {count} adapters x 1 token", Adapters(shape, of_slots), distinct)


def _case(name: str, adapters: Adapters, slots: Tensor) -> Case:
    batch = LoraBatch(adapters, slots)
    return Case(name, batch.work(), batch.run, batch.error)
