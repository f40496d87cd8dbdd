"""The online softmax of a tile of queries over a stretch of one sequence's cache, for both attention kernels.

This is the algorithm of Milakov and Gimelshein (2018), as FlashAttention (Dao et al., 2022) uses it, over a block
table. Knows no grid.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend(
    state,
    q,
    query_positions,
    keys,
    values,
    key_scales,
    value_scales,
    block_table,
    begin,
    end,
    scale,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Attend from q [BLOCK_M, BLOCK_D] to positions [begin, end), BLOCK_N positions at a time.

    query_positions [BLOCK_M]; keys, values: the rows of one head, [S, HEAD_DIM], with SCALED times their scales [S];
    block_table: the blocks of the sequence; begin: a multiple of BLOCK_N; scale: the factor of scores, positive, times
    log2(e); WINDOW: 0 for none; SOFTCAP: the bound of scaled scores, times log2(e), or 0 for none. Without MASKED, end
    is a multiple of BLOCK_N too and every query sees everything.

    Takes and returns the state (sums [BLOCK_M, BLOCK_D] of values weighted by 2^(score - largest), the weights' totals
    [BLOCK_M], the largest scaled scores [BLOCK_M], -inf where a query has seen nothing); at first `nothing_seen`.
    """
    sums, totals, largest = state
    d = tl.arange(0, BLOCK_D)
    for tile in range(begin, end, BLOCK_N):
        positions = tile + tl.arange(0, BLOCK_N)
        inside = positions < (end if MASKED else tile + BLOCK_N)
        block = tl.load(block_table + positions // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slots = block * BLOCK_SIZE + positions % BLOCK_SIZE
        k = tl.load(keys + slots * HEAD_DIM + d[:, None], mask=inside & (d < HEAD_DIM)[:, None], other=0.0)
        v = tl.load(values + slots[:, None] * HEAD_DIM + d, mask=inside[:, None] & (d < HEAD_DIM), other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION)
        if SCALED:
            scores *= tl.load(key_scales + slots, mask=inside, other=0.0)
        if SOFTCAP > 0:  # c tanh(s / c), where tanh(u) = 2 sigmoid(2 u) - 1
            scores = (2.0 * tl.sigmoid(scores * (2.0 * scale / SOFTCAP)) - 1.0) * (SOFTCAP / scale)
        if MASKED:
            seen = inside & (positions <= query_positions[:, None])
            if WINDOW > 0:
                seen = seen & (positions > query_positions[:, None] - WINDOW)
            scores = tl.where(seen, scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
        reference = tl.where(new_largest == -float("inf"), 0.0, new_largest)  # no inf - inf where nothing is seen yet
        weights = tl.exp2(scores * scale - reference[:, None])
        shrunk = tl.exp2(largest - reference)
        totals = totals * shrunk + tl.sum(weights, 1)
        if SCALED:
            weights *= tl.load(value_scales + slots, mask=inside, other=0.0)
        sums = tl.dot(weights.to(q.dtype), v.to(q.dtype), sums * shrunk[:, None], input_precision=PRECISION)
        largest = new_largest
    return sums, totals, largest


@triton.jit
def nothing_seen(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the state of queries before `attend`."""
    sums = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    return sums, tl.zeros((BLOCK_M,), tl.float32), tl.full((BLOCK_M,), -float("inf"), tl.float32)
