"""All operations on queries, keys and values between their projection and attention, in one pass on a GPU.

Semantics, for row n at positions[n] with cos and sin of that position:
    q[n, h] = rotate(norm_q(qkv[n, h]))               0 <= h < H, in place           (rotate: `kernels.rope`)
    k[n, h] = rotate(norm_k(qkv[n, H + h]))           0 <= h < KVH
    cache[0, :, slots[n]] = finite(k[n])              cache[1, :, slots[n]] = finite(qkv[n, H + KVH :])
    norm_q, norm_k: `kernels.norm` over each head's D (Qwen3), or nothing
    finite: NaN becomes 0, an infinity the largest number, for the reason given in `kernels.kv_cache`
    In a cache of e4m3: scales[:, h, slots[n]] = max |finite(...)| / 448 of each key and value, and the cache has the
    numbers divided by that; a scale of 0 is one of zeros.

Fused because it pays: apart, rotation reads and writes q and k, and the cache write reads k and v again. For Llama 3.1
8B in bf16 that is 28 KiB a token, together it is 24 KiB, and one launch instead of two, or four with norms.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Launch, blocks_of, power_of_two
from kernels.kv_cache import write_kv_reference
from kernels.norm import rms_norm_reference
from kernels.rope import rope_reference

BLOCK_HEADS = 8
LARGEST_FLOAT8 = 448.0


class HeadNorms(NamedTuple):
    """Norms of queries and keys: weights [D] of each."""

    q: Tensor
    k: Tensor
    eps: float


def rope_and_write_kv_reference(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    slots: Tensor,
    norms: HeadNorms | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Compute as `rope_and_write_kv_`, by the definition, in fp32 until rounded once.

    Returns q rotated, [N, H, D]; qkv stays as it is.

    norms, scales: as for `rope_and_write_kv_`.
    """
    num_kv_heads = cache.shape[1]
    q, k, v = qkv.split([qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], 1)
    wide_q, wide_k = q.float(), k.float()
    if norms is not None:
        wide_q, wide_k = rms_norm_reference(wide_q, norms.q, norms.eps), rms_norm_reference(wide_k, norms.k, norms.eps)
    cos, sin = cos[positions], sin[positions]
    written = slots >= 0
    rotated = rope_reference(wide_k, cos, sin).to(k.dtype)
    if scales is None:
        write_kv_reference(cache, rotated[written], v[written], slots[written])
    else:
        kept = torch.nan_to_num(torch.stack((rotated, v))[:, written]).float()  # [2, N, KVH, D]
        largest = kept.abs().amax(-1) / LARGEST_FLOAT8
        numbers = kept / torch.where(largest > 0, largest, 1.0)[..., None]
        scales[:, :, slots[written]] = largest.transpose(1, 2)
        cache.view(torch.uint8)[:, :, slots[written]] = numbers.to(cache.dtype).view(torch.uint8).transpose(1, 2)
    return rope_reference(wide_q, cos, sin).to(q.dtype)


@triton.jit(do_not_specialize_on_alignment=["positions", "slots"])
def _rope_kv_kernel(
    qkv,
    positions,
    cos,
    sin,
    cache,
    scales,
    slots,
    num_slots,
    q_weight,
    k_weight,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    LARGEST: tl.constexpr,
    NORM: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Compute BLOCK_HEADS of one row's heads, in two halves [BLOCK_HEADS, HEAD_DIM / 2] each."""
    half: tl.constexpr = HEAD_DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    i = tl.arange(0, BLOCK_HALF)
    is_query = head < NUM_HEADS
    is_value = head >= NUM_HEADS + NUM_KV_HEADS
    inside = (head < NUM_HEADS + 2 * NUM_KV_HEADS) & (i < half)
    source = qkv + (row * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM + i
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    rotating = inside & (head < NUM_HEADS + NUM_KV_HEADS)
    if NORM:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / HEAD_DIM
        scale = tl.where(is_value, 1.0, (1.0 / tl.sqrt(mean + eps))[:, None])
        is_key = rotating & (head >= NUM_HEADS)
        first *= scale * _norm_weight(q_weight, k_weight, i, rotating & is_query, is_key)
        second *= scale * _norm_weight(q_weight, k_weight, i + half, rotating & is_query, is_key)
    angle = tl.load(positions + row) * half + i
    c = tl.load(cos + angle, mask=rotating, other=0.0)
    s = tl.load(sin + angle, mask=rotating, other=0.0)
    rotated_first = tl.where(rotating, first * c - second * s, first)  # not times 1 and 0: infinity would become NaN
    rotated_second = tl.where(rotating, second * c + first * s, second)

    dtype = qkv.dtype.element_ty
    tl.store(source, rotated_first.to(dtype), mask=inside & is_query)
    tl.store(source + half, rotated_second.to(dtype), mask=inside & is_query)
    slot = tl.load(slots + row)
    if slot >= 0:
        target = cache + ((head - NUM_HEADS).to(tl.int64) * num_slots + slot) * HEAD_DIM + i  # values follow keys
        cached = inside & (head >= NUM_HEADS)
        kept_first, kept_second = _finite(rotated_first, LARGEST).to(dtype), _finite(rotated_second, LARGEST).to(dtype)
        if SCALED:
            wide_first, wide_second = kept_first.to(tl.float32), kept_second.to(tl.float32)
            largest = tl.max(tl.maximum(tl.abs(wide_first), tl.abs(wide_second)), 1, keep_dims=True)
            largest = tl.div_rn(largest, 448.0)
            place = scales + (head - NUM_HEADS).to(tl.int64) * num_slots + slot
            tl.store(place, largest, mask=(head >= NUM_HEADS) & (head < NUM_HEADS + 2 * NUM_KV_HEADS))
            divisor = tl.where(largest > 0.0, largest, 1.0)
            kept_first = tl.minimum(tl.maximum(tl.div_rn(wide_first, divisor), -448.0), 448.0)
            kept_second = tl.minimum(tl.maximum(tl.div_rn(wide_second, divisor), -448.0), 448.0)
        tl.store(target, kept_first.to(cache.dtype.element_ty), mask=cached)
        tl.store(target + half, kept_second.to(cache.dtype.element_ty), mask=cached)


@triton.jit
def _norm_weight(q_weight, k_weight, i, is_query, is_key):
    """Return the weight [BLOCK_HEADS, BLOCK_HALF] of each head's kind, 1 for values."""
    key_weight = tl.load(k_weight + i, mask=is_key, other=1.0).to(tl.float32)
    return tl.where(is_query, tl.load(q_weight + i, mask=is_query, other=1.0).to(tl.float32), key_weight)


@triton.jit
def _finite(x, LARGEST: tl.constexpr):
    x = tl.where(x != x, 0.0, x)
    return tl.minimum(tl.maximum(x, -LARGEST), LARGEST)


def rope_kv_launch(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    slots: Tensor,
    norms: HeadNorms | None,
    scales: Tensor | None = None,
) -> Launch:
    """Return the launch of `rope_and_write_kv_`.

    norms, scales: as for `rope_and_write_kv_`.
    """
    num_rows, num_all_heads, head_dim = qkv.shape
    num_kv_heads, num_slots = cache.shape[1:3]
    return Launch(
        _rope_kv_kernel,
        (num_rows, blocks_of(num_all_heads, BLOCK_HEADS)),
        {
            "qkv": qkv,
            "positions": positions,
            "cos": cos,
            "sin": sin,
            "cache": cache,
            "scales": scales,
            "slots": slots,
            "num_slots": num_slots,
            "q_weight": None if norms is None else norms.q,
            "k_weight": None if norms is None else norms.k,
            "eps": 0.0 if norms is None else norms.eps,
            "NUM_HEADS": num_all_heads - 2 * num_kv_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "BLOCK_HEADS": BLOCK_HEADS,
            "BLOCK_HALF": power_of_two(head_dim // 2),
            "LARGEST": torch.finfo(qkv.dtype).max,
            "NORM": norms is not None,
            "SCALED": scales is not None,
        },
        num_warps=2,
    )


def rope_and_write_kv_(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    slots: Tensor,
    norms: HeadNorms | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """Rotate q in place, write k and v to the cache, return q: a view [N, H, D] of qkv.

    qkv [N, H + 2 KVH, D], contiguous; positions [N] int64; cos, sin [max_position, D / 2] fp32, one row per position;
    cache [2, KVH, S, D] of qkv's dtype, or of float8_e4m3fn with scales [2, KVH, S] fp32; slots [N] int64, all
    different, or -1: such a row (padding) is not written. The keys and values in qkv stay as they were projected.

    norms: the weights of the norms by head; None: queries and keys are not normed.
    """
    rope_kv_launch(qkv, positions, cos, sin, cache, slots, norms, scales).run()
    return qkv[:, : qkv.shape[1] - 2 * cache.shape[1]]
