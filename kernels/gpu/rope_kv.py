"""What happens to queries, keys and values between their projection and attention, in one pass on a GPU.

Semantics, for row n at positions[n] with cos and sin of that position:
    q[n, h] = rotate(norm_q(qkv[n, h]))               0 <= h < H, in place           (rotate: `kernels.rope`)
    k[n, h] = rotate(norm_k(qkv[n, H + h]))           0 <= h < KVH
    cache[0, :, slots[n]] = finite(k[n])              cache[1, :, slots[n]] = finite(qkv[n, H + KVH :])
    norm_q, norm_k: `kernels.norm` over each head's D (Qwen3), or nothing
    finite: NaN becomes 0, an infinity the largest number, for the reason given in `kernels.kv_cache`

Fused because it pays: apart, rotation reads and writes q and k, and the cache write reads k and v again. For Llama 3.1
8B in bf16 that is 28 KiB a token, together it is 24 KiB, and one launch instead of two, or four with norms.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.kv_cache import write_kv_reference
from kernels.norm import rms_norm_reference
from kernels.rope import rope_reference


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
) -> Tensor:
    """By the definition, in fp32 until rounded once; as `rope_and_write_kv_`, but qkv stays as it is."""
    num_kv_heads = cache.shape[1]
    q, k, v = qkv.split([qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], 1)
    wide_q, wide_k = q.float(), k.float()
    if norms is not None:
        wide_q, wide_k = rms_norm_reference(wide_q, norms.q, norms.eps), rms_norm_reference(wide_k, norms.k, norms.eps)
    cos, sin = cos[positions], sin[positions]
    written = slots >= 0
    rotated = rope_reference(wide_k, cos, sin).to(k.dtype)
    write_kv_reference(cache, rotated[written], v[written], slots[written])
    return rope_reference(wide_q, cos, sin).to(q.dtype)


def rope_and_write_kv_(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache: Tensor,
    slots: Tensor,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Rotate q in place, write k and v to the cache, return q: a view [N, H, D] of qkv.

    qkv [N, H + 2 KVH, D], contiguous; positions [N] int64; cos, sin [max_position, D / 2] fp32, one row per position;
    cache [2, KVH, S, D] of qkv's dtype; slots [N] int64, all different, or -1: such a row (padding) is not written. The
    keys and values in qkv stay as they were projected.
    """
    raise NotImplementedError
