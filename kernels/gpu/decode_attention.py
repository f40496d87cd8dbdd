"""Attention of one query per sequence, its context split over programs (Dao et al., 2023: Flash-Decoding).

Two launches. One program of the first holds the query heads of one KV head, so keys and values are read once, and goes
through splits of a fixed number of positions, counted from the context's start. The second adds up the splits that the
context has, in their order. Neither splits nor order depend on the other sequences, nor on the bound for which the grid
was made.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of, check_workspace, dot_precision, power_of_two
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.softmax_tiles import attend, nothing_seen
from kernels.gpu.tuning import DecodeBlocks, decode_blocks, split_programs

MIN_ROWS = 16  # of a factor of tl.dot
SPLITS_AT_ONCE = 8  # that the second launch adds in one go


@triton.jit(
    do_not_specialize=["max_blocks", "num_splits"], do_not_specialize_on_alignment=["block_tables", "context_lens"]
)
def _split_kernel(
    q,
    q_stride,
    cache,
    scales,
    num_slots,
    block_tables,
    max_blocks,
    context_lens,
    partials,
    num_splits,
    scale,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SPLIT_LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTIAL_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Attend from one KV head's group of queries to some of the splits of one sequence's context.

    The programs of axis 2 take turns at the splits.
    partials [N, H, splits, PARTIAL_SIZE]: weighted sums of values, then the weights' total and the largest score.
    """
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    length = tl.load(context_lens + sequence)
    first = 0  # position that the query sees
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    kept = (m < GROUP)[:, None] & (d < HEAD_DIM)
    heads = kv_head * GROUP + m
    queries = tl.load(q + sequence.to(tl.int64) * q_stride + heads[:, None] * HEAD_DIM + d, mask=kept, other=0.0)
    keys = cache + kv_head.to(tl.int64) * num_slots * HEAD_DIM
    values = cache + (tl.num_programs(1) + kv_head).to(tl.int64) * num_slots * HEAD_DIM
    key_scales = scales
    value_scales = scales
    if SCALED:
        key_scales += kv_head.to(tl.int64) * num_slots
        value_scales += (tl.num_programs(1) + kv_head).to(tl.int64) * num_slots
    block_table = block_tables + sequence.to(tl.int64) * max_blocks
    positions = tl.full((BLOCK_M,), length - 1, tl.int32)
    row = (sequence * tl.num_programs(1) * GROUP + heads).to(tl.int64)
    for split in range(first // SPLIT_LENGTH + tl.program_id(2), tl.cdiv(length, SPLIT_LENGTH), tl.num_programs(2)):
        begin = tl.maximum(split * SPLIT_LENGTH, first // BLOCK_N * BLOCK_N)
        end = tl.minimum((split + 1) * SPLIT_LENGTH, length)
        state = nothing_seen(BLOCK_M, BLOCK_D)
        if WINDOW == 0:  # whole tiles need no mask
            full = begin + (end - begin) // BLOCK_N * BLOCK_N
            state = attend(
                state, queries, positions, keys, values, key_scales, value_scales, block_table, begin, full, scale,
                False, WINDOW, SOFTCAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, SCALED,
            )  # fmt: skip
            begin = full
        sums, totals, largest = attend(
            state, queries, positions, keys, values, key_scales, value_scales, block_table, begin, end, scale,
            True, WINDOW, SOFTCAP, BLOCK_SIZE, HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, SCALED,
        )  # fmt: skip
        partial = partials + (row * num_splits + split) * PARTIAL_SIZE
        tl.store(partial[:, None] + d, sums, mask=kept)
        tl.store(partial + HEAD_DIM, totals, mask=m < GROUP)
        tl.store(partial + HEAD_DIM + 1, largest, mask=m < GROUP)


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["context_lens"])
def _combine_kernel(
    out,
    partials,
    context_lens,
    num_splits,
    WINDOW: tl.constexpr,
    SPLIT_LENGTH: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTIAL_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS_AT_ONCE: tl.constexpr,
):
    """Add up the splits of one head of one sequence, SPLITS_AT_ONCE at a time from the first one."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(context_lens + sequence)
    d = tl.arange(0, BLOCK_D)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // SPLIT_LENGTH
    last = tl.cdiv(length, SPLIT_LENGTH)
    row = (sequence * tl.num_programs(1) + head).to(tl.int64)
    largest = -float("inf")
    total = 0.0
    sums = tl.zeros((BLOCK_D,), tl.float32)
    for group in range(first // SPLITS_AT_ONCE * SPLITS_AT_ONCE, last, SPLITS_AT_ONCE):
        split = group + tl.arange(0, SPLITS_AT_ONCE)
        there = (split >= first) & (split < last)
        partial = partials + (row * num_splits + split) * PARTIAL_SIZE
        each_largest = tl.load(partial + HEAD_DIM + 1, mask=there, other=-float("inf"))
        each_total = tl.load(partial + HEAD_DIM, mask=there, other=0.0)
        each_sums = tl.load(partial[:, None] + d, mask=there[:, None] & (d < HEAD_DIM), other=0.0)
        new_largest = tl.maximum(largest, tl.max(each_largest, 0))
        weights = tl.exp2(each_largest - new_largest)
        shrunk = tl.exp2(largest - new_largest)
        total = total * shrunk + tl.sum(weights * each_total, 0)
        sums = sums * shrunk + tl.sum(weights[:, None] * each_sums, 0)
        largest = new_largest
    result = sums / tl.where(total > 0.0, total, 1.0)  # without a context, 0
    tl.store(out + row * HEAD_DIM + d, result.to(out.dtype.element_ty), mask=d < HEAD_DIM)


def _partial_size(head_dim: int) -> int:
    """Return the fp32 elements of one split's result for one head.

    These are sums, a total and a largest score, with room up to 16 bytes, which one instruction stores.
    """
    return head_dim + 4


def workspace_elements(
    num_rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_context_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Return the number of fp32 elements that the splits of num_rows queries need.

    num_heads, num_kv_heads, head_dim: the shape of attention. max_context_len: the longest context.
    """
    split_length = decode_blocks(head_dim, num_heads // num_kv_heads, dtype, device).split_length
    return num_rows * num_heads * blocks_of(max_context_len, split_length) * _partial_size(head_dim)


def decode_launches(
    out: Tensor,
    q: Tensor,
    cache: Tensor,
    contexts: PagedContexts,
    workspace: Tensor,
    window: int | None,
    softcap: float = 0.0,
    blocks: DecodeBlocks | None = None,
    scales: Tensor | None = None,
) -> tuple[Launch, Launch]:
    """Return the two launches of `kernels.gpu.attention.paged_attention_` for one query per sequence.

    Row n of q [N, H, D] is of sequence n. blocks: sizes of blocks other than the device's. window, softcap, scales: as
    for `paged_attention_`.

    Raises ValueError: when the workspace is too small or not of fp32.
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, num_slots = cache.shape[1:3]
    group = num_heads // num_kv_heads
    blocks = blocks or decode_blocks(head_dim, group, q.dtype, q.device)
    if scales is not None:  # converted keys and values take registers, too
        blocks = blocks._replace(block_n=min(blocks.block_n, 32))
    num_splits = blocks_of(contexts.max_context_len, blocks.split_length)
    check_workspace(workspace, num_rows * num_heads * num_splits * _partial_size(head_dim))
    common: Arguments = {
        "partials": workspace,
        "context_lens": contexts.context_lens,
        "num_splits": num_splits,
        "WINDOW": window or 0,
        "SPLIT_LENGTH": blocks.split_length,
        "HEAD_DIM": head_dim,
        "PARTIAL_SIZE": _partial_size(head_dim),
        "BLOCK_D": power_of_two(head_dim),
    }
    return (
        Launch(
            _split_kernel,
            (num_rows, num_kv_heads, min(num_splits, split_programs(num_rows * num_kv_heads))),
            {
                **common,
                "q": q,
                "q_stride": q.stride(0),
                "cache": cache,
                "scales": scales,
                "num_slots": num_slots,
                "block_tables": contexts.block_tables,
                "max_blocks": contexts.block_tables.stride(0),
                "scale": head_dim**-0.5 * math.log2(math.e),
                "SOFTCAP": softcap * math.log2(math.e),
                "GROUP": group,
                "BLOCK_M": MIN_ROWS,
                "BLOCK_N": blocks.block_n,
                "BLOCK_SIZE": contexts.block_size,
                "PRECISION": dot_precision(q.dtype),
                "SCALED": scales is not None,
            },
            blocks.num_warps,
            blocks.num_stages,
        ),
        Launch(
            _combine_kernel,
            (num_rows, num_heads),
            {**common, "out": out, "SPLITS_AT_ONCE": SPLITS_AT_ONCE},
            num_warps=1 if head_dim <= 128 else 2,
        ),
    )
