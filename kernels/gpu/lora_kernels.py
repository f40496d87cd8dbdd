"""The programs of `kernels.gpu.lora`: lookup, shrink, expand, and expand with the gated activation after it.

Every program belongs to one chunk of rows of one slot (`kernels.gpu.work_list`). Few rows make programs that move a few
KiB, so what counts is how many reads wait for each other: a chunk's rank and addresses are found by its number, having
been looked up once for the whole step (`resolve_kernel`), and the first ranks of B, their sums and the base output are
all asked for before any of them is needed. If an adapter has no further ranks, which is usual, a program's tiles are on
their way while those before them are computed.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_chunks"], do_not_specialize_on_alignment=["chunks"])
def resolve_kernel(
    a,
    b,
    ranks,
    scalings,
    a_table,
    b_table,
    rank_table,
    scaling_table,
    chunks,
    num_slots,
    num_chunks,
    BLOCK: tl.constexpr,
):
    """Look up the rank and addresses, for one layer's projection, of the adapters in the slots of all chunks.

    The rank is 0 for chunks without a slot and for those beyond the last one.
    """
    here = tl.program_id(0).to(tl.int64)
    for begin in range(0, num_chunks, BLOCK):
        chunk = begin + tl.arange(0, BLOCK)
        inside = chunk < num_chunks
        slot = tl.load(chunks + chunk * 3, mask=inside, other=-1)
        count = tl.load(chunks + chunk * 3 + 2, mask=inside, other=0)
        used = (slot >= 0) & (count > 0)
        source = here * num_slots + slot
        target = here * num_chunks + chunk
        tl.store(a + target, tl.load(a_table + source, mask=used, other=0), mask=inside)
        tl.store(b + target, tl.load(b_table + source, mask=used, other=0), mask=inside)
        tl.store(ranks + target, tl.load(rank_table + source, mask=used, other=0), mask=inside)
        tl.store(scalings + target, tl.load(scaling_table + source, mask=used, other=0.0), mask=inside)


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["rows", "chunks", "a_table", "rank_table"],
)
def shrink_kernel(
    x,
    x_stride,
    rows,
    chunks,
    a_table,
    rank_table,
    partials,
    num_rows,
    in_features,
    SPLIT_LENGTH: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum, for one chunk and one projection, SPLITS_AT_ONCE splits of `in`, BLOCK_R ranks at a time.

    Each split is summed by itself, then the splits are added in their order: the same bits as when each has a program
    of its own and expand adds them. partials [programs along `in`, P, N, MAX_RANK], N in the order of `rows`.
    """
    chunk, part, projection = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    entry = projection * tl.num_programs(0) + chunk
    rank = tl.load(rank_table + entry)
    a = tl.load(a_table + entry).to(tl.pointer_type(x.dtype.element_ty))
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if rank == 0:
        return
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
def projection_of(stretch, SIZE_0: tl.constexpr, SIZE_1: tl.constexpr, SIZE_2: tl.constexpr, WIDTH: tl.constexpr):
    """Return the projection of a group that a stretch of WIDTH columns belongs to.

    Returns (the projection, its size, its first column in out, the stretch's number within it).
    """
    stretches_0: tl.constexpr = tl.cdiv(SIZE_0, WIDTH)
    stretches_1: tl.constexpr = tl.cdiv(SIZE_1, WIDTH)
    projection = 0
    size = SIZE_0
    column = 0
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
    return projection, size, column, stretch


@triton.jit
def b_block_of(b, r, rank, n, size):
    """Return a block [BLOCK_R, BLOCK_N] of B."""
    return tl.load(b + r[:, None] * size + n, mask=(r < rank)[:, None] & (n < size), other=0.0)


@triton.jit
def _shrunk(
    partials, projection, num_projections, place, inside, r, rank, num_rows,
    NUM_PARTS: tl.constexpr, MAX_RANK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Return the sum [BLOCK_M, BLOCK_R] of the partial sums, in their order."""
    h = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for part in tl.static_range(NUM_PARTS):
        at = (part * num_projections + projection) * num_rows + place
        h += tl.load(partials + at[:, None] * MAX_RANK + r, mask=inside[:, None] & (r < rank), other=0.0)
    return h


@triton.jit
def _times_b(h, b_block, delta, PRECISION: tl.constexpr):
    """Return delta + h @ b_block.

    "bf16x2": h as the sum of two bf16 numbers, 16 bits of h, and b_block as it is.
    """
    if PRECISION == "bf16x2":
        high = h.to(tl.bfloat16)
        low = (h - high.to(tl.float32)).to(tl.bfloat16)
        delta = tl.dot(high, b_block, tl.dot(low, b_block, delta))
    else:
        delta = tl.dot(h, b_block.to(tl.float32), delta, input_precision=PRECISION)
    return delta


@triton.jit
def _further_ranks(
    delta, b, rank, n, size, partials, projection, num_projections, place, inside, num_rows,
    NUM_PARTS: tl.constexpr, MAX_RANK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Return delta with the ranks from BLOCK_R on added."""
    for first_rank in range(BLOCK_R, rank, BLOCK_R):
        r = first_rank + tl.arange(0, BLOCK_R)
        b_block = b_block_of(b, r, rank, n, size)
        h = _shrunk(
            partials, projection, num_projections, place, inside, r, rank, num_rows,
            NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R,
        )  # fmt: skip
        delta = _times_b(h, b_block, delta, PRECISION)
    return delta


@triton.jit
def _expand_tile(
    target, n, size, b, rank, scaling, h, r, partials, projection, place, inside, num_rows,
    NUM_PROJECTIONS: tl.constexpr, NUM_PARTS: tl.constexpr, MAX_RANK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, FURTHER: tl.constexpr,
):  # fmt: skip
    """Add the deltas of columns n of one projection to target.

    FURTHER: add the deltas of all ranks, not only of the first BLOCK_R, whose sums are h.
    """
    b_block = b_block_of(b, r, rank, n, size)
    base = tl.load(target, mask=inside[:, None] & (n < size), other=0.0)
    delta = _times_b(h, b_block, tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
    if FURTHER:
        delta = _further_ranks(
            delta, b, rank, n, size, partials, projection, NUM_PROJECTIONS, place, inside, num_rows,
            NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, PRECISION,
        )  # fmt: skip
    result = base.to(tl.float32) + scaling * delta
    tl.store(target, result.to(target.dtype.element_ty), mask=inside[:, None] & (n < size))


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["rows", "chunks", "b_table", "rank_table", "scaling_table"],
)
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
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add to out, for one chunk, the deltas of TILES times BLOCK_N columns of one projection.

    A delta is the partial sums' sum times B, scaled.
    """
    chunk = tl.program_id(0)
    projection, size, column, stretch = projection_of(tl.program_id(1), SIZE_0, SIZE_1, SIZE_2, BLOCK_N * TILES)
    entry = projection * tl.num_programs(0) + chunk
    rank = tl.load(rank_table + entry)
    b = tl.load(b_table + entry).to(tl.pointer_type(out.dtype.element_ty))
    scaling = tl.load(scaling_table + entry)
    first = tl.load(chunks + chunk * 3 + 1)
    count = tl.load(chunks + chunk * 3 + 2)
    if rank == 0:
        return
    b = tl.multiple_of(b, 16)
    m = tl.arange(0, BLOCK_M)
    r = tl.arange(0, BLOCK_R)
    place = first + m
    inside = m < count
    row = tl.load(rows + place, mask=inside, other=0).to(tl.int64)
    h = _shrunk(
        partials, projection, NUM_PROJECTIONS, place, inside, r, rank, num_rows, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R
    )
    if rank <= BLOCK_R:
        for tile in tl.range(TILES, num_stages=STAGES):
            n = (stretch * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
            _expand_tile(
                out + row[:, None] * out_stride + column + n, n, size, b, rank, scaling, h, r, partials, projection,
                place, inside, num_rows, NUM_PROJECTIONS, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION,
                FURTHER=False,
            )  # fmt: skip
    else:
        for tile in range(TILES):
            n = (stretch * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
            _expand_tile(
                out + row[:, None] * out_stride + column + n, n, size, b, rank, scaling, h, r, partials, projection,
                place, inside, num_rows, NUM_PROJECTIONS, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION,
                FURTHER=True,
            )  # fmt: skip


@triton.jit
def store_activated(target, gate, up, gate_scaling, up_scaling, gate_delta, up_delta, mask):
    """Store silu(gate + gate_scaling * gate_delta) * (up + up_scaling * up_delta) to the pointers `target`.

    gate, up and the deltas are blocks of values. Both sums are rounded to target's dtype first, as if they had been
    stored. mask: the elements that are stored.
    """
    dtype = target.dtype.element_ty
    gate = (gate.to(tl.float32) + gate_scaling * gate_delta).to(dtype).to(tl.float32)
    up = (up.to(tl.float32) + up_scaling * up_delta).to(dtype).to(tl.float32)
    tl.store(target, (gate / (1.0 + tl.exp(-gate)) * up).to(dtype), mask=mask)


@triton.jit
def _activate_tile(
    out, gate_up, n, row, inside, place, r, gate_b, up_b, gate_rank, up_rank, gate_scaling, up_scaling, gate_h, up_h,
    partials, num_rows,
    WIDTH: tl.constexpr, NUM_PARTS: tl.constexpr, MAX_RANK: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, FURTHER: tl.constexpr,
):  # fmt: skip
    """Compute columns n of silu(gate) * up, both with their deltas. FURTHER: as for `_expand_tile`."""
    gate_block = b_block_of(gate_b, r, gate_rank, n, WIDTH)
    up_block = b_block_of(up_b, r, up_rank, n, WIDTH)
    kept = inside[:, None] & (n < WIDTH)
    source = gate_up + row[:, None] * 2 * WIDTH + n
    gate = tl.load(source, mask=kept, other=0.0)
    up = tl.load(source + WIDTH, mask=kept, other=0.0)
    gate_delta = _times_b(gate_h, gate_block, tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
    if FURTHER:
        gate_delta = _further_ranks(
            gate_delta, gate_b, gate_rank, n, WIDTH, partials, 0, 2, place, inside, num_rows,
            NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, PRECISION,
        )  # fmt: skip
    up_delta = _times_b(up_h, up_block, tl.zeros((BLOCK_M, BLOCK_N), tl.float32), PRECISION)
    if FURTHER:
        up_delta = _further_ranks(
            up_delta, up_b, up_rank, n, WIDTH, partials, 1, 2, place, inside, num_rows,
            NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, PRECISION,
        )  # fmt: skip
    target = out + row[:, None] * WIDTH + n
    store_activated(target, gate, up, gate_scaling, up_scaling, gate_delta, up_delta, kept)


@triton.jit(
    do_not_specialize=["num_rows"],
    do_not_specialize_on_alignment=["rows", "chunks", "b_table", "rank_table", "scaling_table"],
)
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
    WIDTH: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    MAX_RANK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILES: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute, for one chunk, TILES times BLOCK_N columns of silu(gate) * up, both with their deltas.

    The deltas are never stored.
    """
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
    if count == 0:
        return
    gate_b = tl.multiple_of(gate_b, 16)
    up_b = tl.multiple_of(up_b, 16)
    m = tl.arange(0, BLOCK_M)
    r = tl.arange(0, BLOCK_R)
    place = first + m
    inside = m < count
    row = tl.load(rows + place, mask=inside, other=0).to(tl.int64)
    gate_h = _shrunk(partials, 0, 2, place, inside, r, gate_rank, num_rows, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R)
    up_h = _shrunk(partials, 1, 2, place, inside, r, up_rank, num_rows, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R)
    if (gate_rank <= BLOCK_R) & (up_rank <= BLOCK_R):
        for tile in tl.range(TILES, num_stages=STAGES):
            n = (tl.program_id(1) * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
            _activate_tile(
                out, gate_up, n, row, inside, place, r,
                gate_b, up_b, gate_rank, up_rank, gate_scaling, up_scaling, gate_h, up_h, partials, num_rows,
                WIDTH, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION, FURTHER=False,
            )  # fmt: skip
    else:
        for tile in range(TILES):
            n = (tl.program_id(1) * TILES + tile) * BLOCK_N + tl.arange(0, BLOCK_N)
            _activate_tile(
                out, gate_up, n, row, inside, place, r,
                gate_b, up_b, gate_rank, up_rank, gate_scaling, up_scaling, gate_h, up_h, partials, num_rows,
                WIDTH, NUM_PARTS, MAX_RANK, BLOCK_M, BLOCK_R, BLOCK_N, PRECISION, FURTHER=True,
            )  # fmt: skip
