"""The programs of `kernels.gpu.lora`: shrink, expand, and expand with the gated activation after it.

Every program belongs to one chunk of rows of one slot (`kernels.gpu.work_list`). What it needs first, the chunk, then
its rank and addresses, are short reads one after the other, so programs of few rows are made to do much: all tiles of a
stretch of columns, all partial sums at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "chunks"])
def shrink_kernel(
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
    SPLITS_AT_ONCE: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of one chunk and one projection, the sum over SPLITS_AT_ONCE splits of `in`, BLOCK_R ranks at a time.

    Each split is summed by itself, then they are added in their order: the same bits as when each has a program of its
    own and expand adds them. partials [programs along `in`, P, N, MAX_RANK], N in the order of `rows`.
    """
    chunk, part, projection = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if (count == 0) | (slot < 0):
        return
    rank = tl.load(rank_table + projection * num_slots + slot)
    if rank == 0:
        return
    a = tl.load(a_table + projection * num_slots + slot).to(tl.pointer_type(x.dtype.element_ty))
    a = tl.multiple_of(a, 16)

    m = tl.arange(0, BLOCK_M)
    row = tl.load(rows + first + m, mask=m < count, other=0).to(tl.int64)
    place = (part * tl.num_programs(2) + projection) * num_rows + first + m
    begin = part * SPLITS_AT_ONCE * SPLIT_LENGTH
    end = tl.minimum(begin + SPLITS_AT_ONCE * SPLIT_LENGTH, in_features)
    for first_rank in range(0, rank, BLOCK_R):
        r = first_rank + tl.arange(0, BLOCK_R)
        total = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        sums = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for offset in range(begin, end, BLOCK_K):
            k = offset + tl.arange(0, BLOCK_K)
            inside = k < in_features
            x_block = tl.load(x + row[:, None] * x_stride + k, mask=(m < count)[:, None] & inside, other=0.0)
            a_block = tl.load(a + r * in_features + k[:, None], mask=(r < rank) & inside[:, None], other=0.0)
            sums = tl.dot(x_block, a_block, sums, input_precision=PRECISION)
            if SPLITS_AT_ONCE > 1:
                ends = (offset + BLOCK_K) % SPLIT_LENGTH == 0
                total = tl.where(ends, total + sums, total)
                sums = tl.where(ends, 0.0, sums)
        tl.store(partials + place[:, None] * MAX_RANK + r, total + sums, mask=(m < count)[:, None] & (r < rank))


@triton.jit
def _adapted(
    base,
    n,
    size,
    projection,
    slot,
    first,
    count,
    b_table,
    rank_table,
    scaling_table,
    partials,
    num_rows,
    num_slots,
    NUM_PARTS: tl.constexpr,
    NUM_PROJECTIONS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """base [BLOCK_M, BLOCK_N], columns n of a projection, with the delta of the chunk's slot; without one as it is."""
    rank = tl.load(rank_table + projection * num_slots + slot, mask=slot >= 0, other=0)
    b = tl.load(b_table + projection * num_slots + slot, mask=slot >= 0, other=0)
    scaling = tl.load(scaling_table + projection * num_slots + slot, mask=slot >= 0, other=0.0)
    b = tl.multiple_of(b.to(tl.pointer_type(base.dtype)), 16)
    m = tl.arange(0, BLOCK_M)
    delta = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first_rank in range(0, rank, BLOCK_R):
        r = first_rank + tl.arange(0, BLOCK_R)
        b_block = tl.load(b + r[:, None] * size + n, mask=(r < rank)[:, None] & (n < size), other=0.0)
        h = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for part in tl.static_range(NUM_PARTS):
            place = (part * NUM_PROJECTIONS + projection) * num_rows + first + m
            h += tl.load(partials + place[:, None] * MAX_RANK + r, mask=(m < count)[:, None] & (r < rank), other=0.0)
        delta = tl.dot(h, b_block.to(tl.float32), delta, input_precision=PRECISION)
    return (base.to(tl.float32) + scaling * delta).to(base.dtype)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "chunks"])
def expand_kernel(
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
    NUM_PARTS: tl.constexpr,
    NUM_PROJECTIONS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of one chunk, TILES times BLOCK_N columns of one projection: the partial sums' sum times B, scaled, added to
    out."""
    chunk = tl.program_id(0)
    stretch = tl.program_id(1)
    slot = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if (count == 0) | (slot < 0):
        return
    stretches_0: tl.constexpr = tl.cdiv(SIZE_0, BLOCK_N * TILES)
    stretches_1: tl.constexpr = tl.cdiv(SIZE_1, BLOCK_N * TILES)
    projection = 0
    size = SIZE_0
    column = 0  # of out, where the projection begins
    if stretch >= stretches_0:
        projection = 1
        size = SIZE_1
        column = SIZE_0
        stretch -= stretches_0
        if stretch >= stretches_1:
            projection = 2
            size = SIZE_2
            column = SIZE_0 + SIZE_1
            stretch -= stretches_1
    if tl.load(rank_table + projection * num_slots + slot) == 0:
        return
    m = tl.arange(0, BLOCK_M)
    row = tl.load(rows + first + m, mask=m < count, other=0).to(tl.int64)
    for tile in range(TILES):
        n = (stretch * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
        target = out + row[:, None] * out_stride + column + n
        inside = (m < count)[:, None] & (n < size)
        base = tl.load(target, mask=inside, other=0.0)
        result = _adapted(
            base, n, size, projection, slot, first, count, b_table, rank_table, scaling_table, partials, num_rows,
            num_slots, NUM_PARTS, NUM_PROJECTIONS, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION,
        )  # fmt: skip
        tl.store(target, result, mask=inside)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["rows", "chunks"])
def activate_kernel(
    out,
    gate_up,
    rows,
    chunks,
    b_table,
    rank_table,
    scaling_table,
    partials,
    num_rows,
    num_slots,
    WIDTH: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of one chunk, TILES times BLOCK_N columns of silu(gate) * up, both with their deltas, which are never stored."""
    chunk = tl.program_id(0)
    slot = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if count == 0:
        return
    m = tl.arange(0, BLOCK_M)
    row = tl.load(rows + first + m, mask=m < count, other=0).to(tl.int64)
    for tile in range(TILES):
        n = (tl.program_id(1) * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (m < count)[:, None] & (n < WIDTH)
        source = gate_up + row[:, None] * 2 * WIDTH + n
        gate = tl.load(source, mask=inside, other=0.0)
        up = tl.load(source + WIDTH, mask=inside, other=0.0)
        gate = _adapted(
            gate, n, WIDTH, 0, slot, first, count, b_table, rank_table, scaling_table, partials, num_rows,
            num_slots, NUM_PARTS, 2, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION,
        ).to(tl.float32)  # fmt: skip
        up = _adapted(
            up, n, WIDTH, 1, slot, first, count, b_table, rank_table, scaling_table, partials, num_rows,
            num_slots, NUM_PARTS, 2, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION,
        ).to(tl.float32)  # fmt: skip
        result = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out + row[:, None] * WIDTH + n, result.to(out.dtype.element_ty), mask=inside)
