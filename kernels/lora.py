"""Low-rank adapters (Hu et al., 2021) of many requests in one batch (Chen et al., 2023: Punica).

Semantics, for token n with adapter g of rank r_g (no adapter: nothing is added):
    out[n] += scaling_g * (x[n] @ A_g^T) @ B_g^T            A_g [r_g, in], B_g [out, r_g]

Shrink is x @ A^T, expand is h @ B^T. Projections that share their input share one shrink: their A's lie below each
other. B's lie transposed, [r, out]: an expand over few rows is several times faster that way. Many rows of one adapter
that lie together (a long prefill chunk) take plain products. All others take batched products over a table of adapters
with equal ranks, in fp32: at a few rows for each adapter the conversion of the weights, done once, is worth more than
half the bytes. Nothing of one adapter meets rows of another, so what overflows stays in its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.workspace import Workspace


def lora_reference(x: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """x [N, in], a [r, in], b [out, r] -> the delta [N, out] in fp32, by the definition."""
    return scaling * (x.float() @ a.float().T) @ b.float().T


def add_lora_(outs: Sequence[Tensor], x: Tensor, a: Tensor, bs: Sequence[Tensor], scalings: Sequence[float]) -> None:
    """Add one adapter's deltas to rows that all use it, for projections that share the input x [N, in].

    outs: [N, out_p] of each projection p, in place; a [sum(r_p), in]; bs: [r_p, out_p]. All of one dtype.
    """
    shrunk = torch.split(torch.mm(x, a.T), [len(b) for b in bs], -1)
    for out, h, b, scaling in zip(outs, shrunk, bs, scalings, strict=True):
        out.addmm_(h, b, alpha=scaling)


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
    scratch: Workspace,
) -> None:
    """Add to rows each its own adapter's deltas, for projections that share the input x [N, in].

    outs: [N, out_p] of each projection p, in place. a [G, sum(r_p), in] and bs [G, r_p, out_p] are the table, in fp32,
    its scalings multiplied into bs. places: [n] int64, where among the places of all runs, one after the other, the
    delta of the n-th row is found (None: the i-th at i); rows: [n] int64, which rows these are (None: all). scratch: of
    fp32. The sum is rounded once.
    """
    x = x.float()
    taken = [x if run.take is None else x.index_select(0, run.take) for run in runs]
    num_places = [len(part) for part in taken]
    widths = [b.shape[2] for b in bs]
    buffers = torch.split(scratch.take(sum(num_places) * sum(widths)), [sum(num_places) * width for width in widths])
    deltas = [buffer.view(-1, width) for buffer, width in zip(buffers, widths, strict=True)]
    by_run = zip(*(torch.split(delta, num_places) for delta in deltas), strict=True)
    for (first, last, _), x_run, of_run in zip(runs, taken, by_run, strict=True):
        _batched_deltas(x_run.view(last - first, -1, x.shape[1]), a[first:last], [b[first:last] for b in bs], of_run)
    for out, delta in zip(outs, deltas, strict=True):
        delta = delta if places is None else delta.index_select(0, places)
        if rows is None:
            out.add_(delta)
        else:
            out.index_copy_(0, rows, (out.index_select(0, rows) + delta).to(out.dtype))


def _batched_deltas(x: Tensor, a: Tensor, bs: Sequence[Tensor], deltas: Sequence[Tensor]) -> None:
    """x [G, m, in], a [G, R, in], bs [G, r, out] -> deltas [G * m, out] of each projection, overwritten."""
    num_adapters, num_places, _ = x.shape
    # Each form is the faster one where it is used, up to twice.
    shrunk = torch.bmm(x, a.mT) if num_places > 1 else torch.bmm(a, x.mT).mT
    for h, b, delta in zip(torch.split(shrunk, [b.shape[1] for b in bs], 2), bs, deltas, strict=True):
        torch.bmm(h, b, out=delta.view(num_adapters, num_places, -1))
