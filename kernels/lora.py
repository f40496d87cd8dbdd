"""Low-rank adapters (Hu et al., 2021) of many requests in one batch (Chen et al., 2023: Punica).

Semantics, for token n with adapter g of rank r_g (no adapter: nothing is added):
    out[n] += scaling_g * (x[n] @ A_g^T) @ B_g^T            A_g [r_g, in], B_g [out, r_g]

Shrink is x @ A^T, expand is h @ B^T. Projections that share their input share one shrink: their A's lie below each
other. B's lie transposed, [r, out]: an expand over few rows is several times faster that way. Adapters of equal ranks
lie side by side in a table and are multiplied in one batched product. The best dtype of a table depends on how many
rows it is multiplied with (`WIDE_ROWS`). Nothing of one adapter meets rows of another, so what overflows stays in its
own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.workspace import Workspace

# Rows of a segment from which on products in the engine's own 16-bit dtype are faster than in fp32, which has the
# cheaper calls.
WIDE_ROWS = 12


def lora_reference(x: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Return the delta [N, out] in fp32 of x [N, in], a [r, in] and b [out, r], by the definition.

    scaling: the factor of the delta.
    """
    return scaling * (x.float() @ a.float().T) @ b.float().T


class Run(NamedTuple):
    """G adapters side by side in a table, each for the same number m of places; projections p share the input."""

    take: Tensor | None
    """[G * m] int64, the row of x at each place, adapter by adapter; a place without a row repeats any row.

    None where place i is row i.
    """
    a: Tensor
    """[G, sum(r_p), in], the A's of G adapters, those of the projections below each other."""
    bs: tuple[Tensor, ...]
    """[G, r_p, out_p] for each p."""
    scale: Tensor | None
    """[G, 1, sum(r_p)] fp32, each projection's scaling for each of its ranks; None: multiplied into bs."""


def add_batched_lora_(
    outs: Sequence[Tensor],
    x: Tensor,
    runs: Sequence[Run],
    places: Tensor | None,
    rows: Tensor | None,
    scratch: Workspace,
) -> None:
    """Add to each row the deltas of the row's own adapter, for projections that share the input x [N, in].

    outs: [N, out_p] of each projection p, in place.
    runs: runs of one dtype, which the products have.
    places: [n] int64, the place of the n-th row's delta among the places of all runs, one after the other (None: the
    i-th at i).
    rows: [n] int64, the rows to add to (None: all).
    scratch: memory of the products' dtype. In fp32 the sum is rounded once.
    """
    x = x.to(runs[0].a.dtype)
    shrunk = [_shrink(x if run.take is None else x.index_select(0, run.take), run) for run in runs]
    if len(runs) == 1 and runs[0].take is None and places is None and rows is None and _adds_in_place(outs[0], runs[0]):
        for out, h, b in zip(outs, shrunk[0], runs[0].bs, strict=True):
            out.view(h.shape[0], h.shape[1], -1).baddbmm_(h, b)
        return
    for p, out in enumerate(outs):
        delta = _expand([(h[p], run.bs[p]) for h, run in zip(shrunk, runs, strict=True)], scratch)
        delta = delta if places is None else delta.index_select(0, places)
        if rows is None:
            out.add_(delta)
        else:
            out.index_copy_(0, rows, (out.index_select(0, rows) + delta).to(out.dtype))


def _shrink(x: Tensor, run: Run) -> Sequence[Tensor]:
    """Return the product [G, m, r_p] of x [G * m, in] and each projection's A, scaled where the run has scales."""
    num_adapters, _, width = run.a.shape
    x = x.view(num_adapters, -1, width)
    # Each form is the faster one where it is used, up to twice.
    shrunk = torch.bmm(x, run.a.mT) if x.shape[1] > 1 else torch.bmm(run.a, x.mT).mT
    if run.scale is not None:
        shrunk = (shrunk * run.scale).to(shrunk.dtype)
    return torch.split(shrunk, [b.shape[1] for b in run.bs], 2) if len(run.bs) > 1 else (shrunk,)


def _expand(factors: Sequence[tuple[Tensor, Tensor]], scratch: Workspace) -> Tensor:
    """Return the deltas [sum(G * m), out] of one projection: per run, h [G, m, r] times b [G, r, out].

    The result is valid until scratch is used.
    """
    width = factors[0][1].shape[2]
    if len(factors) == 1:
        ((h, b),) = factors
        return torch.bmm(h, b, out=scratch.take(h.shape[0], h.shape[1], width)).view(-1, width)
    counts = [h.shape[0] * h.shape[1] for h, _ in factors]
    deltas = scratch.take(sum(counts), width)
    for (h, b), part in zip(factors, torch.split(deltas, counts), strict=True):
        torch.bmm(h, b, out=part.view(h.shape[0], h.shape[1], width))
    return deltas


def _adds_in_place(out: Tensor, run: Run) -> bool:
    """Tell whether the products of the run are added to out directly.

    oneDNN adds a product to columns of a larger matrix at no cost; in fp32 PyTorch would multiply one adapter at a
    time.
    """
    return out.dtype == run.a.dtype != torch.float32
