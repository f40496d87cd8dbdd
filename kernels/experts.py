"""Experts (Shazeer et al., 2017): rows of tokens go through the matrices that a router has chosen for each.

Semantics, for token n with router logits l[n] over E experts, of which the K largest are chosen:
    route:          shares[n, k] = exp(l[n, e_k]) / sum of exp(l[n, e])     over the chosen e where normalized, else all
    sorted_rows:    M = N * K rows, one for each token and choice, by expert; those of one expert by token
    grouped(x)[m]   = weight[expert of m] @ x[m] + bias[expert of m]
    weighted_sum:   out[n] = sum_k shares[n, k] * x[row of (n, k)], in fp32, by rising k

Chosen experts are the first of equal ones; NaN counts as the largest. Segments of rows of one expert are what a grouped
product multiplies together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.linear import Linear


class ExpertRows(NamedTuple):
    """The M rows of one layer's experts, sorted by expert."""

    tokens: Tensor
    """[M] int64, the token of each row."""
    places: Tensor
    """[N, K] int64, the row of each token's k-th choice."""
    counts: Tensor
    """[E] int64, the rows of each expert."""
    chunks: Tensor | None = None
    """[C, 3] int32, the rows in pieces, for kernels that go by them (`kernels.gpu.experts`)."""


def route(logits: Tensor, num_chosen: int, *, normalized: bool) -> tuple[Tensor, Tensor]:
    """Return the shares [N, K] fp32 and the numbers [N, K] int64 of the K = num_chosen best experts of each token.

    logits: the router's [N, E]. normalized: True: softmax over the chosen experts alone, so that the shares of a token
    sum to 1; False: over all E experts.
    """
    logits = logits.float()
    best, chosen = torch.topk(logits, num_chosen, dim=-1)
    if normalized:
        return best.softmax(-1), chosen
    return (best - logits.logsumexp(-1, keepdim=True)).exp(), chosen


def sorted_rows(chosen: Tensor, num_experts: int) -> ExpertRows:
    """Return the rows of the chosen experts [N, K]. Waits for no device."""
    flat = chosen.flatten()
    order = torch.argsort(flat, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return ExpertRows(order // chosen.shape[1], places.view_as(chosen), counts)


def segments(rows: ExpertRows) -> list[tuple[int, int, int]]:
    """Return (expert, first, last) of each expert that has rows, which are [first, last). Waits for the device."""
    found, first = [], 0
    for expert, count in enumerate(rows.counts.tolist()):
        if count:
            found.append((expert, first, first + count))
        first += count
    return found


def weighted_sum(x: Tensor, rows: ExpertRows, shares: Tensor) -> Tensor:
    """Return the sums [N, H] of the rows x [M, H] of each token, by its shares [N, K] fp32, in the dtype of x."""
    parts = x.index_select(0, rows.places.flatten()).view(*shares.shape, -1)
    return torch.einsum("nk,nkh->nh", shares, parts.float()).to(x.dtype)


def grouped_reference(x: Tensor, rows: ExpertRows, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the grouped product [M, out] fp32 of x [M, in] with weight [E, out, in], by the definition.

    bias: [E, out]; None without one.
    """
    experts = torch.repeat_interleave(torch.arange(len(weight)), rows.counts.cpu())
    out = [weight[expert].float() @ row for expert, row in zip(experts.tolist(), x.float(), strict=True)]
    product = torch.stack(out)
    return product if bias is None else product + bias[experts].float()


class GroupedLinear:
    """Products with the matrices of all experts: weight [E, out, in], bias [E, out] or None. One expert at a time."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        biases: Sequence[Tensor | None] = [None] * len(weight) if bias is None else list(bias)
        self._linears = [Linear(matrix, of_expert) for matrix, of_expert in zip(weight, biases, strict=True)]

    def __call__(self, x: Tensor, rows: ExpertRows) -> Tensor:
        """Multiply each row of x [M, in] by its expert's matrix, and return the result [M, out]."""
        parts = [self._linears[expert](x[first:last]) for expert, first, last in segments(rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
