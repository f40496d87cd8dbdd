"""The programs of `kernels.gpu.lora` for chunks of one or two rows: expand, with or without the gated activation.

Two rows would leave matrix units idle, and what these need, tiles of 16 rows in an order of threads of their own, costs
more than the few products do. Here every thread holds all ranks of eight columns: it asks for its part of B at once, 16
reads of 16 bytes, and adds up by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.lora_kernels import b_block_of, projection_of, store_activated


@triton.jit
def _two_rows(
    b, rank, n, size, partials, projection, num_projections, place, last, num_rows,
    NUM_PARTS: tl.constexpr, MAX_RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Return the deltas [BLOCK_N] of two rows: the one at place and, where that is below last, the one after it."""
    delta_0 = tl.zeros((BLOCK_N,), tl.float32)
    delta_1 = tl.zeros((BLOCK_N,), tl.float32)
    for first_rank in tl.range(0, rank, BLOCK_R, num_stages=STAGES):
        r = first_rank + tl.arange(0, BLOCK_R)
        b_block = b_block_of(b, r, rank, n, size).to(tl.float32)
        h_0 = tl.zeros((BLOCK_R,), tl.float32)
        h_1 = tl.zeros((BLOCK_R,), tl.float32)
        for part in tl.static_range(NUM_PARTS):
            at = partials + ((part * num_projections + projection) * num_rows + place) * MAX_RANK + r
            h_0 += tl.load(at, mask=r < rank, other=0.0)
            h_1 += tl.load(at + MAX_RANK, mask=(r < rank) & (place + 1 + 0 * r < last), other=0.0)
        delta_0 += tl.sum(h_0[:, None] * b_block, 0)
        delta_1 += tl.sum(h_1[:, None] * b_block, 0)
    return delta_0, delta_1


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["rows", "chunks", "b_table", "rank_table", "scaling_table"],
)
def expand_rows_kernel(
    out,
    out_stride,
    rows,
    chunks,
    b_table,
    rank_table,
    scaling_table,
    partials,
    num_rows,
    SIZE_0: tl.constexpr,
    SIZE_1: tl.constexpr,
    SIZE_2: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    NUM_PROJECTIONS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute as `expand_kernel`, for chunks of one or two rows, which would leave matrix units idle.

    Every thread asks for all of its part of B at once.
    """
    chunk = tl.program_id(0)
    projection, size, column, stretch = projection_of(tl.program_id(1), SIZE_0, SIZE_1, SIZE_2, BLOCK_N)
    entry = projection * tl.num_programs(0) + chunk
    rank = tl.load(rank_table + entry)
    b = tl.load(b_table + entry).to(tl.pointer_type(out.dtype.element_ty))
    scaling = tl.load(scaling_table + entry)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if rank == 0:
        return
    b = tl.multiple_of(b, 16)
    n = stretch * BLOCK_N + tl.arange(0, BLOCK_N)
    last = first + count
    inside = n < size
    more = inside & (first + 1 + 0 * n < last)
    target_0 = out + tl.load(rows + first).to(tl.int64) * out_stride + column + n
    target_1 = out + tl.load(rows + last - 1).to(tl.int64) * out_stride + column + n
    base_0 = tl.load(target_0, mask=inside, other=0.0)
    base_1 = tl.load(target_1, mask=more, other=0.0)
    delta_0, delta_1 = _two_rows(
        b, rank, n, size, partials, projection, NUM_PROJECTIONS, first, last, num_rows,
        NUM_PARTS, MAX_RANK, BLOCK_R, BLOCK_N, STAGES,
    )  # fmt: skip
    dtype = out.dtype.element_ty
    tl.store(target_0, (base_0.to(tl.float32) + scaling * delta_0).to(dtype), mask=inside)
    tl.store(target_1, (base_1.to(tl.float32) + scaling * delta_1).to(dtype), mask=more)


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["rows", "chunks", "b_table", "rank_table", "scaling_table"],
)
def activate_rows_kernel(
    out,
    gate_up,
    rows,
    chunks,
    b_table,
    rank_table,
    scaling_table,
    partials,
    num_rows,
    WIDTH: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute as `activate_kernel`, for chunks of one or two rows."""
    chunk = tl.program_id(0)
    up_entry = tl.num_programs(0) + chunk
    gate_rank = tl.load(rank_table + chunk)
    up_rank = tl.load(rank_table + up_entry)
    gate_b = tl.load(b_table + chunk).to(tl.pointer_type(out.dtype.element_ty))
    up_b = tl.load(b_table + up_entry).to(tl.pointer_type(out.dtype.element_ty))
    gate_scaling = tl.load(scaling_table + chunk)
    up_scaling = tl.load(scaling_table + up_entry)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    gate_b = tl.multiple_of(gate_b, 16)
    up_b = tl.multiple_of(up_b, 16)
    if count == 0:
        return
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    last = first + count
    inside = n < WIDTH
    more = inside & (first + 1 + 0 * n < last)
    row_0 = tl.load(rows + first).to(tl.int64)
    row_1 = tl.load(rows + last - 1).to(tl.int64)
    source_0 = gate_up + row_0 * 2 * WIDTH + n
    source_1 = gate_up + row_1 * 2 * WIDTH + n
    gate_0 = tl.load(source_0, mask=inside, other=0.0)
    up_0 = tl.load(source_0 + WIDTH, mask=inside, other=0.0)
    gate_1 = tl.load(source_1, mask=more, other=0.0)
    up_1 = tl.load(source_1 + WIDTH, mask=more, other=0.0)
    gate_delta_0, gate_delta_1 = _two_rows(
        gate_b, gate_rank, n, WIDTH, partials, 0, 2, first, last, num_rows,
        NUM_PARTS, MAX_RANK, BLOCK_R, BLOCK_N, STAGES,
    )  # fmt: skip
    up_delta_0, up_delta_1 = _two_rows(
        up_b, up_rank, n, WIDTH, partials, 1, 2, first, last, num_rows,
        NUM_PARTS, MAX_RANK, BLOCK_R, BLOCK_N, STAGES,
    )  # fmt: skip
    target_0 = out + row_0 * WIDTH + n
    target_1 = out + row_1 * WIDTH + n
    store_activated(target_0, gate_0, up_0, gate_scaling, up_scaling, gate_delta_0, up_delta_0, inside)
    store_activated(target_1, gate_1, up_1, gate_scaling, up_scaling, gate_delta_1, up_delta_1, more)
