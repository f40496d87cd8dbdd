"""Attention over a paged cache (layout: `kernels.kv_cache`): decode for many sequences at once, prefill for one chunk.

Semantics, for a query at position p of a sequence whose slots are s[0..p], group = H / KVH query heads per KV head:
    out[h] = sum_j softmax_j(q[h] . k[h // group, s[j]] * D^-0.5) * v[h // group, s[j]]
    over max(0, p - window + 1) <= j <= p

On the CPU the cached rows are gathered and multiplied in batches: measured several times faster for decode than the
flash path of `scaled_dot_product_attention`, which serves prefill well.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.workspace import Workspace


def attention_reference(
    q: Tensor, cache: Tensor, slots: Tensor, position: int, window: int | None = None, softcap: float = 0.0
) -> Tensor:
    """Return the attention [H, D] of one query, by the definition, in fp32.

    q [H, D]; cache [2, KVH, S, D]; slots [>= position + 1] int64. softcap: the bound c of scores s, which become c *
    tanh(s / c); 0: none. window: the positions that the query sees, its own included; None: all up to its own.
    """
    first = 0 if window is None else max(0, position - window + 1)
    seen = slots[first : position + 1]
    group = q.shape[0] // cache.shape[1]
    keys = cache[0, :, seen].float().repeat_interleave(group, 0)
    values = cache[1, :, seen].float().repeat_interleave(group, 0)
    scores = torch.einsum("hd,hjd->hj", q.float(), keys) * q.shape[-1] ** -0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    return torch.einsum("hj,hjd->hd", scores.softmax(-1), values).to(q.dtype)


def decode_attention(q: Tensor, cache: Tensor, blocks: Tensor, hidden: Tensor, scratch: Workspace) -> Tensor:
    """Return the attention [N, H * D] of one query for each of N sequences.

    q [N, H, D]; cache [2, KVH, S, D]; blocks [N, B] int64: each sequence's block numbers, padded with any valid ones;
    hidden [N, 1, L] bool, L = B * block_size: True at positions that the query does not attend to; scratch of q's
    dtype.
    """
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads = cache.shape[1]
    block_size = hidden.shape[-1] // blocks.shape[1]
    grouped = q.view(num_seqs, num_kv_heads, -1, head_dim).transpose(0, 1) * head_dim**-0.5  # [KVH, N, G, D]
    by_block = cache.view(2, num_kv_heads, -1, block_size * head_dim)  # whole blocks: few long copies
    gathered = scratch.take(2, num_kv_heads, blocks.numel(), block_size * head_dim)
    torch.index_select(by_block, 2, blocks.flatten(), out=gathered)
    keys, values = gathered.view(2, num_kv_heads, num_seqs, -1, head_dim)
    scores = torch.matmul(grouped, keys.transpose(-1, -2)).masked_fill_(hidden, -torch.inf)  # [KVH, N, G, L]
    out = torch.matmul(scores.softmax(-1), values)
    return out.transpose(0, 1).reshape(num_seqs, num_heads * head_dim)


def prefill_attention(q: Tensor, cache: Tensor, slots: Tensor, visible: Tensor) -> Tensor:
    """Return the attention [T, H * D] of the T newest positions of one sequence over its C >= T cached ones.

    q [T, H, D]; cache [2, KVH, S, D]; slots [C] int64; visible [T, C] bool: True at cached positions that a query
    attends to.
    """
    num_tokens, num_heads, head_dim = q.shape
    keys, values = cache.index_select(2, slots)
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=visible, enable_gqa=num_heads != cache.shape[1]
    )
    return out[0].transpose(0, 1).reshape(num_tokens, num_heads * head_dim)
