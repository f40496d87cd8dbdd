"""Writing keys and values into a paged cache (Kwon et al., 2023: PagedAttention).

The cache of one layer is [2, KVH, num_blocks * block_size, D]: keys then values, heads first, so that the slots a
sequence owns gather into contiguous memory per head. A slot is block * block_size + offset in the block.

Semantics:
    cache[0, :, slots[n]] = k[n]        cache[1, :, slots[n]] = v[n]
"""

from __future__ import annotations

from torch import Tensor


def write_kv_reference(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """cache [2, KVH, S, D], k and v [N, KVH, D], slots [N] int64: one token after another."""
    for n, slot in enumerate(slots.tolist()):
        cache[0, :, slot] = k[n]
        cache[1, :, slot] = v[n]


def write_kv(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """cache [2, KVH, S, D] is written in place; k and v [N, KVH, D], slots [N] int64, all different."""
    cache[0].index_copy_(1, slots, k.transpose(0, 1))
    cache[1].index_copy_(1, slots, v.transpose(0, 1))
