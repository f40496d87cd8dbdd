"""Low-rank adapters on experts: segments of rows that have one adapter and one expert.

Semantics, for row m of expert e and adapter g (none: nothing is added):
    out[m] += scaling_g * (x[m] @ A_ge^T) @ B_ge^T          A_ge [r, in], B_ge [out, r]

A's and B's of all experts of an adapter lie side by side, and so do adapters of a table: the pair (g, e) is one of
G * E virtual adapters. B's lie transposed, as in `kernels.lora`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.experts import ExpertRows


def expert_lora_reference(
    x: Tensor, rows: ExpertRows, adapters: Tensor, a: Tensor, b: Tensor, scalings: Tensor
) -> Tensor:
    """Return the deltas [M, out] in fp32 by the definition.

    x [M, in]; adapters [M], the adapter of each row, -1: none; a [G, E, r, in]; b [G, E, r, out]; scalings [G].
    """
    out = torch.zeros(len(x), b.shape[-1])
    experts = experts_of(rows)
    for m, (g, e) in enumerate(zip(adapters.tolist(), experts.tolist(), strict=True)):
        if g >= 0:
            out[m] = scalings[g] * (x[m].float() @ a[g, e].float().T) @ b[g, e].float()
    return out


def experts_of(rows: ExpertRows) -> Tensor:
    """Return the expert [M] int64 of each row."""
    ends = rows.counts.cumsum(0)
    return torch.searchsorted(ends, torch.arange(len(rows.tokens), device=ends.device), right=True)


class ExpertSegments(NamedTuple):
    """The rows of a layer's experts that have adapters, sorted by expert, then by adapter."""

    rows: Tensor | None
    """[n] int64, the rows; None: all, as they are."""
    adapters: Tensor
    """[n] int64, the adapter of each."""
    spans: list[tuple[int, int, int, int]]
    """(adapter, expert, first, last): places among these rows."""


def expert_segments(rows: ExpertRows, adapters: Tensor) -> ExpertSegments:
    """Return the segments of the rows. adapters [M] int64: as for the reference. Waits for the device."""
    of_rows = adapters.tolist()
    pairs = list(zip(experts_of(rows).tolist(), of_rows, strict=True))
    order = sorted((m for m, g in enumerate(of_rows) if g >= 0), key=pairs.__getitem__)
    spans, first = [], 0
    for (e, g), members in itertools.groupby(pairs[m] for m in order):
        last = first + sum(1 for _ in members)
        spans.append((g, e, first, last))
        first = last
    if order == list(range(len(of_rows))):
        return ExpertSegments(None, adapters, spans)
    mine = torch.tensor(order, dtype=torch.int64)
    return ExpertSegments(mine, adapters.index_select(0, mine), spans)


def add_expert_lora_(
    outs: Sequence[Tensor], x: Tensor, segments: ExpertSegments, a: Tensor, bs: Sequence[Tensor], scale: Tensor | None
) -> None:
    """Add to each row the deltas of its adapter's matrices for its expert, for projections p that share x [M, in].

    outs: [M, out_p] of each projection, in place; a [G, E, sum(r_p), in]; bs [G, E, r_p, out_p]; scale
    [G, 1, sum(r_p)] fp32, None: multiplied into bs.
    """
    mine, spans = segments.rows, segments.spans
    if not spans:
        return
    x = (x if mine is None else x.index_select(0, mine)).to(a.dtype)
    # One after the other: side by side they would be copied, which takes several times as long as the products.
    shrunk = x.new_empty(len(x), a.shape[2])
    for g, e, first, last in spans:
        torch.mm(x[first:last], a[g, e].T, out=shrunk[first:last])
    if scale is not None:
        shrunk = (shrunk * scale[:, 0].index_select(0, segments.adapters)).to(a.dtype)
    for out, h, b in zip(outs, torch.split(shrunk, [b.shape[2] for b in bs], 1), bs, strict=True):
        delta = x.new_empty(len(x), b.shape[3])
        for g, e, first, last in spans:
            torch.mm(h[first:last], b[g, e], out=delta[first:last])
        if mine is None:
            out.add_(delta)
        else:
            out.index_copy_(0, mine, (out.index_select(0, mine) + delta).to(out.dtype))
