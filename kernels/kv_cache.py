"""Writing keys and values into a paged cache (Kwon et al., 2023: PagedAttention).

The cache of one layer is [2, KVH, num_blocks * block_size, D]: keys then values, heads first, so that the slots a
sequence owns gather into contiguous memory per head. A slot is block * block_size + offset in the block.

Semantics:
    cache[0, :, slots[n]] = k[n]        cache[1, :, slots[n]] = v[n]
    NaN becomes 0 and an infinity the largest number: a block is read, at weight 0, by its next owner, and 0 * NaN is
    not 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def write_kv_reference(cache: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k and v [N, KVH, D] to slots [N] int64 of cache [2, KVH, S, D], one token after another."""
    for n, slot in enumerate(slots.tolist()):
        cache[0, :, slot] = torch.nan_to_num(k[n])
        cache[1, :, slot] = torch.nan_to_num(v[n])


def write_kv(cache: Tensor, kv: Tensor, slots: Tensor) -> None:
    """Write kv [N, 2 KVH, D], k before v, to slots [N] int64, all different, of cache [2, KVH, S, D], in place."""
    cache.flatten(0, 1).index_copy_(1, slots, torch.nan_to_num(kv).transpose(0, 1))
