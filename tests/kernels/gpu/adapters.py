"""Adapters in slots, and batches of rows that use them, popular in different ways."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.gpu.lora import ChunkTable, Shrink, SlotTable, expand_, lora_reference, workspace_elements
from kernels.gpu.work_list import WorkList, build_work_list
from tests.kernels.gpu.compare import DEVICE, poisoned, randn

POPULARITY = ("distinct", "uniform", "zipf", "identical", "skewed")


def slots_of(popularity: str, num_rows: int, num_slots: int) -> Tensor:
    """Return the slot that each row uses, [num_rows] int64; every fifth row uses none, unless all are identical."""
    rows = torch.arange(num_rows)
    ranks = torch.arange(1, num_slots + 1)
    drawn = {
        "distinct": rows % num_slots,
        "uniform": torch.randint(num_slots, (num_rows,)),
        "zipf": torch.multinomial(1.0 / ranks, num_rows, replacement=True),
        "identical": torch.full((num_rows,), num_slots // 2),
        "skewed": torch.where(rows % 10 == 3, rows // 10 % num_slots, num_slots - 1),
    }[popularity]
    absent = (rows % 5 == 4) & (popularity != "identical")
    return torch.where(absent, -1, drawn).to(DEVICE)


class Adapters:
    """The adapters of one group of projections, in slots.

    ranks: ranks[s][p] of slot s and projection p, 0 where the slot adapts nothing.
    """

    def __init__(self, ranks: Sequence[Sequence[int]], in_features: int, sizes: Sequence[int], dtype: torch.dtype):
        self.in_features, self.sizes, self.dtype = in_features, tuple(sizes), dtype
        self.max_rank = max(max(of_slot) for of_slot in ranks)
        tables = SlotTable.empty(1, len(sizes), len(ranks), DEVICE)
        self.weights: list[list[tuple[Tensor, Tensor, float] | None]] = []
        for slot, of_slot in enumerate(ranks):
            self.weights.append([])
            for p, rank in enumerate(of_slot):
                scaling = 0.25 + (slot + p) % 7
                a = randn(rank, in_features, dtype=dtype) / in_features**0.5
                b = randn(rank, sizes[p], dtype=dtype) / max(rank, 1) ** 0.5
                self.weights[slot].append((a, b, scaling) if rank else None)
                tables.a[0, p, slot], tables.b[0, p, slot] = a.data_ptr(), b.data_ptr()
                tables.ranks[0, p, slot], tables.scalings[0, p, slot] = rank, scaling
        self.table = tables

    def shrink(self, x: Tensor, slots: Tensor, block_m: int = 16, all_at_once: bool | None = None) -> Shrink:
        """Compute and return a shrink, in a workspace that held only NaN before."""
        work = build_work_list(slots, len(self.weights), block_m)
        shape = len(x), self.in_features, len(self.sizes), self.max_rank
        workspace = poisoned(workspace_elements(*shape, self.dtype, DEVICE))
        table = self.chunk_table(work)
        shrink = Shrink.of(x, table, self.max_rank, work, workspace, all_at_once=all_at_once)
        shrink.launch().run()
        return shrink

    def add(self, out: Tensor, x: Tensor, slots: Tensor, block_m: int = 16, all_at_once: bool | None = None) -> Tensor:
        """Return a copy of `out` to which the kernels have added the adapters' products."""
        out = out.clone()
        expand_(out, self.sizes, self.shrink(x, slots, block_m, all_at_once))
        return out

    def chunk_table(self, work: WorkList) -> ChunkTable:
        return self.table.of_chunks(work).group(0, 0, len(self.sizes))

    def expected(self, out: Tensor, x: Tensor, slots: Tensor) -> Tensor:
        return lora_reference(out, x, self.weights, self.sizes, slots.tolist())


def mixed_ranks(num_slots: int, num_projections: int, highest: int = 128) -> list[list[int]]:
    """Return ranks [slots][projections] from 0 to `highest` that differ between slots and projections."""
    choices = [rank for rank in (1, 128, 16, 0, 8, 33, 64, 3, 100, 17, 2) if rank <= highest]
    return [[choices[(slot + 4 * p) % len(choices)] for p in range(num_projections)] for slot in range(num_slots)]
