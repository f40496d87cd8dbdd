"""Attention of many queries per sequence over their cached prefix and themselves (Dao, 2023: FlashAttention-2; varlen).

A program holds a tile of rows: consecutive queries of one sequence, each with all query heads of one KV head, so keys
and values are read once for the group; it goes through every position that the tile may see. The tiles are listed
(`kernels.gpu.query_tiles`), those that see most first, and start in this order, each for all KV heads.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Launch, dot_precision, power_of_two
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.softmax_tiles import attend, nothing_seen
from kernels.gpu.tuning import PrefillBlocks, prefill_blocks


@triton.jit(
    do_not_specialize=["max_blocks"],
    do_not_specialize_on_alignment=["tiles", "block_tables", "context_lens", "query_starts"],
)
def _prefill_kernel(
    out,
    q,
    q_stride,
    cache,
    scales,
    num_slots,
    tiles,
    block_tables,
    max_blocks,
    context_lens,
    query_starts,
    scale,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Attend, for one tile and one KV head, from BLOCK_M // GROUP queries with GROUP heads each."""
    kv_head, tile = tl.program_id(0), tiles + 2 * tl.program_id(1)
    sequence, first_query = tl.load(tile), tl.load(tile + 1)
    if sequence < 0:
        return
    queries_at_once: tl.constexpr = BLOCK_M // GROUP
    length = tl.load(context_lens + sequence)
    first_row = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - first_row
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    query = first_query + m // GROUP
    here = (m < queries_at_once * GROUP) & (query < num_queries)
    kept = here[:, None] & (d < HEAD_DIM)
    head = kv_head * GROUP + m % GROUP
    row = (first_row + query).to(tl.int64)
    queries = tl.load(q + (row * q_stride + head * HEAD_DIM)[:, None] + d, mask=kept, other=0.0)

    before = length - num_queries  # positions that were cached before
    first_position = before + first_query
    end = tl.minimum(first_position + queries_at_once, length)
    keys = cache + kv_head.to(tl.int64) * num_slots * HEAD_DIM
    values = cache + (tl.num_programs(0) + kv_head).to(tl.int64) * num_slots * HEAD_DIM
    key_scales = scales
    value_scales = scales
    if SCALED:
        key_scales += kv_head.to(tl.int64) * num_slots
        value_scales += (tl.num_programs(0) + kv_head).to(tl.int64) * num_slots
    block_table = block_tables + sequence.to(tl.int64) * max_blocks
    begin = 0
    state = nothing_seen(BLOCK_M, BLOCK_D)
    if WINDOW > 0:
        begin = tl.maximum(first_position - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:  # what all queries of the tile see needs no mask
        begin = tl.minimum(first_position + 1, end) // BLOCK_N * BLOCK_N
        state = attend(
            state, queries, before + query, keys, values, key_scales, value_scales, block_table, 0, begin, scale,
            False, WINDOW, SOFTCAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, SCALED,
        )  # fmt: skip
    sums, totals, _ = attend(
        state, queries, before + query, keys, values, key_scales, value_scales, block_table, begin, end, scale,
        True, WINDOW, SOFTCAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, SCALED,
    )  # fmt: skip
    result = sums / tl.where(totals > 0.0, totals, 1.0)[:, None]  # without a context, 0
    num_heads = tl.num_programs(0) * GROUP
    tl.store(out + ((row * num_heads + head) * HEAD_DIM)[:, None] + d, result.to(out.dtype.element_ty), mask=kept)


def prefill_launch(
    out: Tensor,
    q: Tensor,
    cache: Tensor,
    contexts: PagedContexts,
    window: int | None,
    softcap: float = 0.0,
    blocks: PrefillBlocks | None = None,
    scales: Tensor | None = None,
) -> Launch:
    """Return the launch of `kernels.gpu.attention.paged_attention_` for tiles of queries.

    blocks: sizes of blocks other than the device's. window, softcap, scales: as for `paged_attention_`.

    Raises ValueError: when the tiles are not of the size that the blocks take.
    """
    assert contexts.tiles is not None
    tiles, queries_at_once = contexts.tiles
    _, num_heads, head_dim = q.shape
    num_kv_heads, num_slots = cache.shape[1:3]
    group = num_heads // num_kv_heads
    blocks = blocks or prefill_blocks(head_dim, group, q.dtype, q.device)
    if scales is not None:  # converted keys and values take registers, too
        blocks = blocks._replace(block_n=min(blocks.block_n, 64 if blocks.block_m <= 128 else 32))
    if queries_at_once != blocks.block_m // group:
        raise ValueError(f"tiles of {queries_at_once} queries: this kernel takes {blocks.block_m // group} at once")
    return Launch(
        _prefill_kernel,
        (num_kv_heads, len(tiles)),
        {
            "out": out,
            "q": q,
            "q_stride": q.stride(0),
            "cache": cache,
            "scales": scales,
            "num_slots": num_slots,
            "tiles": tiles,
            "block_tables": contexts.block_tables,
            "max_blocks": contexts.block_tables.stride(0),
            "context_lens": contexts.context_lens,
            "query_starts": contexts.query_starts,
            "scale": head_dim**-0.5 * math.log2(math.e),
            "WINDOW": window or 0,
            "SOFTCAP": softcap * math.log2(math.e),
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_D": power_of_two(head_dim),
            "BLOCK_M": blocks.block_m,
            "BLOCK_N": blocks.block_n,
            "BLOCK_SIZE": contexts.block_size,
            "PRECISION": dot_precision(q.dtype),
            "SCALED": scales is not None,
        },
        blocks.num_warps,
        blocks.num_stages,
    )
