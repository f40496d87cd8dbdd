"""Low-rank adapters (Hu et al., 2021) of many requests in one batch (Chen et al., 2023: Punica).

Semantics, for token n with adapter g of rank r_g (no adapter: nothing is added):
    out[n] += scaling_g * (x[n] @ A_g^T) @ B_g^T            A_g [r_g, in], B_g [out, r_g]

Shrink is x @ A^T, expand is h @ B^T. Rows of one adapter that lie together (a prefill chunk) take two plain products.
Rows of many adapters (decode) take two products as well, for all projections that share their input: the A's of all
adapters and projections below each other, the B's as blocks on a diagonal, and a mask between that leaves each row its
own ranks, scaled. True ranks are concatenated, never padded. The zeros of the blocks cost less than more products:
on a CPU a product of this size is mostly the cost of its call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.linear import Linear


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


def stack_shrink(parts: Sequence[Tensor]) -> Linear:
    """A's [r, in] of all adapters and projections, in the order of the mask's columns -> in to R = sum(r)."""
    return Linear(torch.cat(tuple(parts)))


def stack_expand(parts: Sequence[tuple[int, Tensor]], out_features: int) -> Linear:
    """B's [out_p, r] with the first output each one writes, in the order of the mask's columns -> R to out_features."""
    first_b = parts[0][1]
    diagonal = first_b.new_zeros(out_features, sum(b.shape[1] for _, b in parts))
    column = 0
    for row, b in parts:
        diagonal[row : row + b.shape[0], column : column + b.shape[1]] = b
        column += b.shape[1]
    return Linear(diagonal)


def add_mixed_lora_(out: Tensor, x: Tensor, shrink: Linear, expand: Linear, mask: Tensor) -> None:
    """Add to each row its own adapter's delta, for all projections that share the input x.

    out [N, out], the projections side by side, in place; x [N, in]; shrink and expand as stacked above; mask [N, R] as
    `rank_mask` gives it, projection by projection. A row's overflow under another's adapter leaves no trace in it.
    """
    shrunk = torch.nan_to_num(shrink(x)) * mask
    out.copy_(expand.add(shrunk.to(x.dtype), out))
