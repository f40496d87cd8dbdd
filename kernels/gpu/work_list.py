"""The rows of a batch by their adapter, as work for `kernels.gpu.lora`: chunks of at most block_m rows of one slot.

Semantics:

    rows    = the batch's rows in a stable order by slot, those without an adapter last
    chunks  = (slot, first place in `rows`, count) for each slot's rows cut every block_m, in the order of the slots,
              then for the rows without an adapter, whose slot is -1; (0, 0, 0) beyond the last one

An engine makes it on the host, with a step's other integers (`engine.cuda.fill`); `build_work_list` makes it on the
device, whose host does not know how long it is: there are as many chunks as the worst case needs (`max_chunks`), and
kernels skip those of count 0. Knows nothing of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class WorkList(NamedTuple):
    """Chunks of a batch's rows."""

    rows: Tensor
    """[N] int32."""
    chunks: Tensor
    """[C, 3] int32."""
    block_m: int
    """The most rows of a chunk."""


def max_chunks(num_rows: int, num_slots: int, block_m: int) -> int:
    """Return the most chunks that num_rows rows can make.

    Every slot may leave a chunk that is not full, and so may the rows without a slot.

    block_m: the most rows of a chunk.
    """
    return min(num_rows, num_rows // block_m + min(num_rows, num_slots + 1))


def work_list_reference(slots: Tensor, num_slots: int, block_m: int) -> WorkList:
    """Return the result of `build_work_list`, by the definition.

    block_m: the most rows of a chunk.
    """
    by_slot = {slot: [n for n, s in enumerate(slots.tolist()) if s == slot] for slot in range(-1, num_slots)}
    rows: list[int] = []
    chunks: list[tuple[int, int, int]] = []
    for slot in (*range(num_slots), -1):
        members = by_slot[slot]
        chunks += [(slot, len(rows) + i, min(block_m, len(members) - i)) for i in range(0, len(members), block_m)]
        rows += members
    chunks += [(0, 0, 0)] * (max_chunks(len(slots), num_slots, block_m) - len(chunks))
    in_order = slots.new_tensor(rows, dtype=torch.int32)
    return WorkList(in_order, slots.new_tensor(chunks, dtype=torch.int32).view(-1, 3), block_m)


def chunks_of(counts: Tensor, num_rows: int, block_m: int) -> Tensor:
    """Return the chunks [C, 3] int32 of num_rows rows that are sorted by key, counts [S] int64 of each key.

    Everything stays on counts' device.

    block_m: the most rows of a chunk.
    """
    num_keys = len(counts)
    pieces = (counts + block_m - 1) // block_m
    through, starts = pieces.cumsum(0), counts.cumsum(0) - counts
    chunk = torch.arange(max_chunks(num_rows, num_keys, block_m), device=counts.device)
    key = torch.searchsorted(through, chunk, right=True).clamp(max=num_keys - 1)
    before = (chunk - (through[key] - pieces[key])) * block_m
    count = (counts[key] - before).clamp(0, block_m)
    return (torch.stack((key, starts[key] + before, count), 1) * (count > 0)[:, None]).int()


def slots_of(work: WorkList) -> Tensor:
    """Return the slot [N] int64 of each row of a work list, -1 for none. Everything stays on its device."""
    slots, _, counts = work.chunks.long().unbind(1)
    places = torch.arange(len(work.rows), device=slots.device)
    chunk = torch.searchsorted(counts.cumsum(0), places, right=True)
    found = torch.empty_like(places)
    found[work.rows.long()] = slots[chunk.clamp(max=len(slots) - 1)]
    return found


def build_work_list(slots: Tensor, num_slots: int, block_m: int) -> WorkList:
    """Return the work list of slots [N] int32 or int64: each row's slot in [0, num_slots), -1 for none.

    Everything stays on slots' device.

    block_m: the most rows of a chunk.
    """
    keys = torch.where(slots < 0, num_slots, slots)
    keys, rows = torch.sort(keys, stable=True)
    ids = torch.arange(num_slots + 1, dtype=keys.dtype, device=keys.device)  # the last one: no slot
    starts = torch.searchsorted(keys, ids)
    ends = torch.searchsorted(keys, ids, right=True)
    through = ((ends - starts + block_m - 1) // block_m).cumsum(0)  # chunks of this slot and those before it
    chunk = torch.arange(max_chunks(len(slots), num_slots, block_m), device=keys.device)
    slot = torch.searchsorted(through, chunk, right=True).clamp(max=num_slots)
    before = through[slot] - (ends[slot] - starts[slot] + block_m - 1) // block_m
    first = starts[slot] + (chunk - before) * block_m
    count = (ends[slot] - first).clamp(0, block_m)
    chunks = torch.stack((torch.where(slot == num_slots, -1, slot), first, count), 1) * (count > 0)[:, None]
    return WorkList(rows.int(), chunks.int(), block_m)
