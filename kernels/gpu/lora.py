"""Low-rank adapters (Hu et al., 2021) of many requests in one batch, on a GPU (Chen et al., 2023: Punica).

Semantics, for row n with an adapter in slot s and each projection p of a group that shares the input x:
    out[n, columns of p] += scaling[p, s] * (x[n] @ A[p, s]^T) @ B[p, s]      A [r, in], B [r, out], r = rank[p, s]
    added in fp32 and rounded once; rows without an adapter, and projections of rank 0, are left as they are

Two launches for a group: shrink (x @ A^T) writes fp32 partial sums, one for every fixed stretch of `in`; expand adds
them in their order, multiplies with B and adds to out. There are no atomics and no choice depends on the batch, so the
bits of a row's delta are those of the row and its adapter alone. Only true ranks are read: an adapter costs its bytes.
Weights are found through tables of addresses; where they lie is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.gpu.work_list import WorkList


class SlotTable(NamedTuple):
    """What every slot holds, by layer and projection: [L, P, S] for an engine, [P, S] for a group of one layer.

    a, b: int64, device addresses of A [rank, in] and of B, transposed, [rank, out]: contiguous, in the dtype of the
    inputs, at multiples of 16 bytes. ranks: int32, 0 where a slot adapts nothing (addresses are not looked at then).
    scalings: fp32.
    """

    a: Tensor
    b: Tensor
    ranks: Tensor
    scalings: Tensor

    @classmethod
    def empty(cls, num_layers: int, num_projections: int, num_slots: int, device: torch.device) -> SlotTable:
        """Slots that adapt nothing."""
        shape = (num_layers, num_projections, num_slots)
        dtypes = (torch.int64, torch.int64, torch.int32, torch.float32)
        return cls(*(torch.zeros(shape, dtype=dtype, device=device) for dtype in dtypes))

    def group(self, layer: int, first: int, last: int) -> SlotTable:
        """Projections [first, last) of one layer: views."""
        return SlotTable(*(tensor[layer, first:last] for tensor in self))


def lora_reference(
    out: Tensor,
    x: Tensor,
    adapters: Sequence[Sequence[tuple[Tensor, Tensor, float] | None]],
    sizes: Sequence[int],
    slots: Sequence[int],
) -> Tensor:
    """By the definition, in fp32: adapters[s][p] = (A [r, in], B [r, out], scaling) or None -> the new out [N, sum]."""
    rows = []
    for n, slot in enumerate(slots):
        of_row = [None] * len(sizes) if slot < 0 else adapters[slot]
        deltas = [
            torch.zeros(size)
            if matrices is None
            else matrices[2] * (x[n].float() @ matrices[0].float().T) @ matrices[1].float()
            for size, matrices in zip(sizes, of_row, strict=True)
        ]
        rows.append(out[n].float() + torch.cat(deltas))
    return torch.stack(rows).to(out.dtype)


def workspace_elements(num_rows: int, in_features: int, num_projections: int, max_rank: int) -> int:
    """fp32 elements that `add_lora_` needs for its partial sums."""
    raise NotImplementedError


def add_lora_(
    out: Tensor,
    x: Tensor,
    sizes: Sequence[int],
    table: SlotTable,
    max_rank: int,
    work: WorkList,
    workspace: Tensor,
) -> None:
    """Add every row's deltas to out, in place.

    out [N, >= sum(sizes)], rows contiguous; x [N, in], rows contiguous, of out's dtype (bf16, fp16 or fp32); sizes:
    the columns of each of the P <= 3 projections, side by side in out; table: [P, S]; max_rank: no rank of the engine
    is larger; work: of the N rows; workspace: fp32, at least `workspace_elements`, with any contents.
    Raises ValueError when the workspace is too small.
    """
    raise NotImplementedError
