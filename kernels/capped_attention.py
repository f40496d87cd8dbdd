"""Attention over a paged cache whose scores are capped, or whose heads have sinks, on a CPU.

Semantics, beside those of `kernels.attention`, for a score s of head h before the softmax:
    cap:   s = cap * tanh(s / cap)                                  Gemma 2 (Gemma Team, 2024, arXiv 2408.00118)
    sinks: softmax over (s_1, ..., s_n, sinks[h]), whose last weight is dropped        gpt-oss; Xiao et al., 2023

Values may be narrower than keys, with zeros in the cache behind them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def capped_attention_reference(
    q: Tensor, cache: Tensor, slots: Tensor, position: int, window: int | None, cap: float | None, sinks: Tensor | None
) -> Tensor:
    """Return the attention [H, D] of one query, by the definition, in fp32.

    q [H, D]; cache [2, KVH, S, D]; slots [>= position + 1] int64; sinks [H].

    window: the positions that the query sees, its own included; None: all up to its own. cap: the bound of scores;
    None: not bounded. sinks: None without any.
    """
    first = 0 if window is None else max(0, position - window + 1)
    seen = slots[first : position + 1]
    group = q.shape[0] // cache.shape[1]
    out = []
    for head, query in enumerate(q.float()):
        keys, values = cache[:, head // group, seen].float()
        scores = keys @ query * q.shape[-1] ** -0.5
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        total = scores.exp().sum() + (0.0 if sinks is None else math.exp(float(sinks[head])))
        out.append(scores.exp() @ values / total)
    return torch.stack(out).to(q.dtype)


def capped_decode_attention(
    q: Tensor, cache: Tensor, blocks: Tensor, hidden: Tensor, cap: float | None, sinks: Tensor | None
) -> Tensor:
    """Return the attention [N, H * D] of one query for each of N sequences.

    q [N, H, D]; cache [2, KVH, S, D]; blocks [N, B] int64: each sequence's block numbers, padded with any valid ones;
    hidden [N, 1, L] bool, L = B * block_size: True at positions that the query does not attend to; sinks [H].

    cap: the bound of scores; None: not bounded. sinks: None without any.
    """
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads = cache.shape[1]
    block_size = hidden.shape[-1] // blocks.shape[1]
    by_block = cache.view(2, num_kv_heads, -1, block_size * head_dim)
    keys, values = by_block.index_select(2, blocks.flatten()).view(2, num_kv_heads, num_seqs, -1, head_dim)
    grouped = q.view(num_seqs, num_kv_heads, -1, head_dim).transpose(0, 1)  # [KVH, N, G, D]
    scores = _soft_capped(torch.matmul(grouped * head_dim**-0.5, keys.transpose(-1, -2)), cap)
    scores = scores.masked_fill_(hidden, -torch.inf)  # [KVH, N, G, L]
    of_heads = None if sinks is None else sinks.view(num_kv_heads, 1, -1, 1).expand(-1, num_seqs, -1, -1)
    out = torch.matmul(_softmax(scores, of_heads), values)
    return out.transpose(0, 1).reshape(num_seqs, num_heads * head_dim)


def capped_prefill_attention(
    q: Tensor, cache: Tensor, slots: Tensor, visible: Tensor, cap: float | None, sinks: Tensor | None
) -> Tensor:
    """Return the attention [T, H * D] of the T newest positions of one sequence over its C >= T cached ones.

    q [T, H, D]; cache [2, KVH, S, D]; slots [C] int64; visible [T, C] bool; sinks [H].

    cap: the bound of scores; None: not bounded. sinks: None without any.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = cache.shape[1]
    keys, values = cache.index_select(2, slots)  # [KVH, C, D]
    grouped = q.view(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [KVH, G, T, D]
    scores = _soft_capped(torch.matmul(grouped * head_dim**-0.5, keys[:, None].transpose(-1, -2)), cap)
    scores = scores.masked_fill_(~visible, -torch.inf)
    of_heads = None if sinks is None else sinks.view(num_kv_heads, -1, 1, 1).expand(-1, -1, num_tokens, -1)
    out = torch.matmul(_softmax(scores, of_heads), values[:, None])
    return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads * head_dim)


def _soft_capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the weights of scores [..., L] beside a sink [..., 1] that gets the rest of them."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)
    with_sinks = torch.cat((scores, sinks.to(scores.dtype)), -1)
    return with_sinks.softmax(-1, dtype=torch.float32)[..., :-1].to(scores.dtype)
