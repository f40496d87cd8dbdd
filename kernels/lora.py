"""Low-rank adapters (Hu et al., 2021) of many requests in one batch (Chen et al., 2023: Punica).

Semantics, for token n with adapter g of rank r_g (no adapter: nothing is added):
    out[n] += scaling_g * (x[n] @ A_g^T) @ B_g^T            A_g [r_g, in], B_g [out, r_g]

Shrink is x @ A^T, expand is h @ B^T. Projections that share their input share one shrink: their A's lie below each
other. Rows of one adapter that lie together (a prefill chunk) take plain products. Rows of many adapters (decode) take
one batched product over a table of adapters with equal ranks, in fp32: at a few rows for each adapter the conversion of
the weights, done once, is worth more than half the bytes. Nothing of one adapter meets rows of another, so what
overflows stays in its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def lora_reference(x: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """x [N, in], a [r, in], b [out, r] -> the delta [N, out] in fp32, by the definition."""
    return scaling * (x.float() @ a.float().T) @ b.float().T


def add_lora_(outs: Sequence[Tensor], x: Tensor, a: Tensor, bs: Sequence[Tensor], scalings: Sequence[float]) -> None:
    """Add one adapter's deltas to rows that all use it, for projections that share the input x [N, in].

    outs: [N, out_p] of each projection p, in place; a [sum(r_p), in]; bs: [out_p, r_p]. All of one dtype.
    """
    ranks = [b.shape[1] for b in bs]
    shrunk = torch.split(torch.mm(x, a.T), ranks, -1)
    for out, h, b, scaling in zip(outs, shrunk, bs, scalings, strict=True):
        out.addmm_(h, b.T, alpha=scaling)


class Run(NamedTuple):
    """Adapters [first, last) of a table, each for the same number m of places.

    take: [(last - first) * m] int64, the row of x at each place, adapter by adapter; a place that needs none repeats
    any row. None where place i is row i.
    """

    first: int
    last: int
    take: Tensor | None


def add_batched_lora_(
    outs: Sequence[Tensor],
    x: Tensor,
    a: Tensor,
    bs: Sequence[Tensor],
    runs: Sequence[Run],
    places: Tensor | None,
    rows: Tensor | None,
) -> None:
    """Add to rows each its own adapter's deltas, for projections that share the input x [N, in].

    outs: [N, out_p] of each projection p, in place. a [G, sum(r_p), in] and bs [G, out_p, r_p] are the table, in fp32,
    its scalings multiplied into bs. places: [n] int64, where among the places of all runs, one after the other, the
    delta of the n-th row is found (None: the i-th at i); rows: [n] int64, which rows these are (None: all).
    The sum is rounded once.
    """
    x = x.float()
    ranks = [b.shape[2] for b in bs]
    deltas: list[list[Tensor]] = [[] for _ in bs]
    for first, last, take in runs:
        taken = x if take is None else x.index_select(0, take)
        shrunk = torch.bmm(a[first:last], taken.view(last - first, -1, x.shape[1]).mT)  # [G, R, m]: fastest at m = 1
        for h, b, parts in zip(torch.split(shrunk, ranks, 1), bs, deltas, strict=True):
            parts.append(torch.bmm(h.mT, b[first:last].mT).flatten(0, 1))
    for out, parts in zip(outs, deltas, strict=True):
        delta = parts[0] if len(parts) == 1 else torch.cat(parts)
        if places is not None:
            delta = delta.index_select(0, places)
        if rows is None:
            out.add_(delta)
        else:
            out.index_copy_(0, rows, (out.index_select(0, rows) + delta).to(out.dtype))
