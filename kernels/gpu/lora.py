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
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of, check_workspace, dot_precision
from kernels.gpu.tuning import LoraBlocks, lora_blocks, shrink_sums
from kernels.gpu.work_list import WorkList

MAX_PROJECTIONS = 3  # of a group
EXPAND_BLOCK_R = 16  # fixed, since it shapes a sum


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
        deltas = []
        for size, matrices in zip(sizes, of_row, strict=True):
            a, b, scaling = matrices or (x.new_zeros(1, x.shape[1]), x.new_zeros(1, size), 0.0)
            deltas.append(scaling * (x[n].float() @ a.float().T) @ b.float())
        rows.append(out[n].float() + torch.cat(deltas))
    return torch.stack(rows).to(out.dtype)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "chunks"])
def _shrink_kernel(
    x,
    x_stride,
    rows,
    chunks,
    a_table,
    rank_table,
    partials,
    num_rows,
    num_slots,
    in_features,
    SPLIT_LENGTH: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of one chunk and one projection, the partial sums over one stretch of `in`, BLOCK_R ranks at a time.

    partials [splits, P, N, MAX_RANK], N in the order of `rows`.
    """
    chunk, split, projection = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if count == 0:
        return
    rank = tl.load(rank_table + projection * num_slots + slot)
    if rank == 0:
        return
    a = tl.load(a_table + projection * num_slots + slot).to(tl.pointer_type(x.dtype.element_ty))
    a = tl.multiple_of(a, 16)

    m = tl.arange(0, BLOCK_M)
    row = tl.load(rows + first + m, mask=m < count, other=0).to(tl.int64)
    place = (split * tl.num_programs(2) + projection) * num_rows + first + m
    begin = split * SPLIT_LENGTH
    end = tl.minimum(begin + SPLIT_LENGTH, in_features)
    for first_rank in range(0, rank, BLOCK_R):
        r = first_rank + tl.arange(0, BLOCK_R)
        sums = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for offset in range(begin, end, BLOCK_K):
            k = offset + tl.arange(0, BLOCK_K)
            inside = k < in_features
            x_block = tl.load(x + row[:, None] * x_stride + k, mask=(m < count)[:, None] & inside, other=0.0)
            a_block = tl.load(a + r * in_features + k[:, None], mask=(r < rank) & inside[:, None], other=0.0)
            sums = tl.dot(x_block, a_block, sums, input_precision=PRECISION)
        tl.store(partials + place[:, None] * MAX_RANK + r, sums, mask=(m < count)[:, None] & (r < rank))


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "chunks"])
def _expand_kernel(
    out,
    out_stride,
    rows,
    chunks,
    b_table,
    rank_table,
    scaling_table,
    partials,
    num_rows,
    num_slots,
    SIZE_0: tl.constexpr,
    SIZE_1: tl.constexpr,
    SIZE_2: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    NUM_PROJECTIONS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of one chunk, BLOCK_N columns of one projection: the partial sums' sum times B, scaled, added to out."""
    chunk = tl.program_id(0)
    tile = tl.program_id(1)
    slot = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if count == 0:
        return
    tiles_0: tl.constexpr = tl.cdiv(SIZE_0, BLOCK_N)
    tiles_1: tl.constexpr = tl.cdiv(SIZE_1, BLOCK_N)
    projection = 0
    size = SIZE_0
    column = 0  # of out, where the projection begins
    if tile >= tiles_0:
        projection = 1
        size = SIZE_1
        column = SIZE_0
        tile -= tiles_0
        if tile >= tiles_1:
            projection = 2
            size = SIZE_2
            column = SIZE_0 + SIZE_1
            tile -= tiles_1
    rank = tl.load(rank_table + projection * num_slots + slot)
    if rank == 0:
        return
    b = tl.load(b_table + projection * num_slots + slot).to(tl.pointer_type(out.dtype.element_ty))
    b = tl.multiple_of(b, 16)

    m = tl.arange(0, BLOCK_M)
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.load(rows + first + m, mask=m < count, other=0).to(tl.int64)
    target = out + row[:, None] * out_stride + column + n
    inside = (m < count)[:, None] & (n < size)
    base = tl.load(target, mask=inside, other=0.0)
    delta = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first_rank in range(0, rank, BLOCK_R):
        r = first_rank + tl.arange(0, BLOCK_R)
        b_block = tl.load(b + r[:, None] * size + n, mask=(r < rank)[:, None] & (n < size), other=0.0)
        h = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for split in range(NUM_SPLITS):
            place = (split * NUM_PROJECTIONS + projection) * num_rows + first + m
            h += tl.load(partials + place[:, None] * MAX_RANK + r, mask=(m < count)[:, None] & (r < rank), other=0.0)
        delta = tl.dot(h, b_block.to(tl.float32), delta, input_precision=PRECISION)
    scaling = tl.load(scaling_table + projection * num_slots + slot)
    tl.store(target, (base.to(tl.float32) + scaling * delta).to(out.dtype.element_ty), mask=inside)


def workspace_elements(
    num_rows: int, in_features: int, num_projections: int, max_rank: int, dtype: torch.dtype, device: torch.device
) -> int:
    """fp32 elements that `add_lora_` needs for its partial sums."""
    num_splits = blocks_of(in_features, shrink_sums(in_features, dtype, device).split_length)
    return num_splits * num_projections * num_rows * max_rank


def lora_launches(
    out: Tensor,
    x: Tensor,
    sizes: Sequence[int],
    table: SlotTable,
    max_rank: int,
    work: WorkList,
    workspace: Tensor,
    blocks: LoraBlocks | None = None,
) -> tuple[Launch, Launch]:
    """Shrink and expand of `add_lora_`; blocks: others than the device's."""
    num_rows, in_features = x.shape
    blocks = blocks or lora_blocks(in_features, sum(sizes), work.block_m, x.dtype, x.device)
    num_splits = blocks_of(in_features, blocks.sums.split_length)
    check_workspace(workspace, num_splits * len(sizes) * num_rows * max_rank)
    common: Arguments = {
        "rows": work.rows,
        "chunks": work.chunks,
        "rank_table": table.ranks,
        "partials": workspace,
        "num_rows": num_rows,
        "num_slots": table.ranks.shape[1],
        "MAX_RANK": max_rank,
        "BLOCK_M": work.block_m,
    }
    shrink: Arguments = {
        **common,
        "x": x,
        "x_stride": x.stride(0),
        "a_table": table.a,
        "in_features": in_features,
        "SPLIT_LENGTH": blocks.sums.split_length,
        "BLOCK_K": blocks.sums.block_k,
        "BLOCK_R": blocks.shrink.block_r,
        "PRECISION": dot_precision(x.dtype),
    }
    expand: Arguments = {
        **common,
        "out": out,
        "out_stride": out.stride(0),
        "b_table": table.b,
        "scaling_table": table.scalings,
        **{f"SIZE_{p}": sizes[p] if p < len(sizes) else 0 for p in range(MAX_PROJECTIONS)},
        "NUM_SPLITS": num_splits,
        "NUM_PROJECTIONS": len(sizes),
        "BLOCK_R": EXPAND_BLOCK_R,
        "BLOCK_N": blocks.expand.block_n,
        # bf16's and fp16's B is exact in TF32, and bf16's output hides what TF32 cuts off the shrink's sums.
        "PRECISION": {torch.float32: "ieee", torch.float16: "tf32x3"}.get(x.dtype, "tf32"),
    }
    tiles = sum(blocks_of(size, blocks.expand.block_n) for size in sizes)
    return (
        Launch(
            _shrink_kernel,
            (len(work.chunks), num_splits, len(sizes)),
            shrink,
            blocks.shrink.num_warps,
            blocks.shrink.num_stages,
        ),
        Launch(_expand_kernel, (len(work.chunks), tiles), expand, blocks.expand.num_warps, blocks.expand.num_stages),
    )


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

    out [N, >= sum(sizes)], elements of a row contiguous; x [N, in] likewise, of out's dtype (bf16, fp16 or fp32);
    sizes: the columns of each of the P <= 3 projections, side by side in out; table: [P, S]; max_rank: no rank of the
    engine is larger; work: of the N rows; workspace: fp32, at least `workspace_elements`, with any contents.
    Raises ValueError when the workspace is too small.
    """
    for launch in lora_launches(out, x, sizes, table, max_rank, work, workspace):
        launch.run()
