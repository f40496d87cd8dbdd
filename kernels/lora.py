"""Low-rank adapters (Hu et al., 2021) of many requests in one batch (Chen et al., 2023: Punica).

Semantics, for token n with adapter g of rank r_g (no adapter: nothing is added):
    out[n] += scaling_g * (x[n] @ A_g^T) @ B_g^T            A_g [r_g, in], B_g [out, r_g]

Shrink is x @ A^T, expand is h @ B^T. Rows of one adapter that lie together (a prefill chunk) take two plain products.
Rows of many adapters (decode) take two products as well: over the ranks of all adapters of the batch side by side,
with a mask between them that leaves each row its own ranks, scaled. On a CPU the weights' bytes decide, and so they
are read once; true ranks are concatenated, never padded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def lora_reference(x: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """x [N, in], a [r, in], b [out, r] -> the delta [N, out] in fp32, by the definition."""
    return scaling * (x.float() @ a.float().T) @ b.float().T


def add_lora_(out: Tensor, x: Tensor, a: Tensor, b: Tensor, scaling: float) -> None:
    """Add one adapter's delta to rows that all use it: out [N, out] in place, x [N, in], a [r, in], b [out, r]."""
    out.addmm_(torch.mm(x, a.T), b.T, alpha=scaling)


def rank_mask(ranks: Sequence[int], scalings: Sequence[float], row_adapter: Tensor) -> Tensor:
    """[N, sum(ranks)] fp32: scalings[g] where column j belongs to adapter g = row_adapter[n], else 0.

    row_adapter [N] int64 indexes ranks and scalings.
    """
    owner = torch.repeat_interleave(torch.arange(len(ranks)), torch.tensor(ranks)).to(row_adapter.device)
    column_scaling = torch.tensor(scalings, dtype=torch.float32, device=row_adapter.device)[owner]
    return (owner[None] == row_adapter[:, None]) * column_scaling


def add_mixed_lora_(outs: Sequence[Tensor], x: Tensor, a: Tensor, bs: Sequence[Tensor], mask: Tensor) -> None:
    """Add to each row its own adapter's delta, for all projections that share the input x.

    outs: P tensors [N, out_p], in place. x [N, in]. a [R, in]: for each projection the A's of all adapters, R being the
    sum of all their ranks. bs: P tensors [R_p, out_p], the B^T's of all adapters. mask [N, R] as `rank_mask` gives it,
    projection by projection. A projection that no adapter of the batch targets has R_p = 0.
    """
    shrunk = (torch.mm(x, a.T) * mask).to(x.dtype)
    first = 0
    for out, b in zip(outs, bs, strict=True):
        if b.shape[0]:
            out.addmm_(shrunk[:, first : first + b.shape[0]], b)
            first += b.shape[0]
