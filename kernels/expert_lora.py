"""Low-rank adapters on experts: segments of rows that have one adapter and one expert.

Semantics, for row m of expert e and adapter g (none: nothing is added):
    out[m] += scaling_g * (x[m] @ A_ge^T) @ B_ge^T          A_ge [r, in], B_ge [out, r]

A's and B's of all experts of an adapter lie side by side; B's lie transposed, as in `kernels.lora`. This is the slow
way, one pair of adapter and expert after the other; `kernels.cpu.experts` has the fast one of CPUs.
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
    spans: list[tuple[int, int, int, int]]
    """(adapter, expert, first, last) of each segment, the places [first, last) among these rows."""


def expert_segments(rows: ExpertRows, adapters: Tensor) -> ExpertSegments:
    """Return the segments of the rows. adapters [M] int64: as for `expert_lora_reference`. Waits for the device."""
    of_rows = adapters.tolist()
    pairs = list(zip(experts_of(rows).tolist(), of_rows, strict=True))
    order = sorted((m for m, g in enumerate(of_rows) if g >= 0), key=pairs.__getitem__)
    spans, first = [], 0
    for (e, g), members in itertools.groupby(pairs[m] for m in order):
        last = first + sum(1 for _ in members)
        spans.append((g, e, first, last))
        first = last
    if order == list(range(len(of_rows))):
        return ExpertSegments(None, spans)
    return ExpertSegments(torch.tensor(order, dtype=torch.int64), spans)


class ExpertFactors(NamedTuple):
    """The matrices of one adapter for projections p that share an input."""

    projections: tuple[int, ...]
    """The adapted projections, as positions among all."""
    a: Tensor
    """[E, sum(r_p), in]: the A's of the projections below each other."""
    bs: tuple[Tensor, ...]
    """The B's of these projections: [E, r_p, out_p] of each."""
    scalings: tuple[float, ...]


def add_expert_lora_(
    outs: Sequence[Tensor], x: Tensor, segments: ExpertSegments, factors: Sequence[ExpertFactors | None]
) -> None:
    """Add to each row the deltas of its adapter's matrices for its expert, for projections that share x [M, in].

    outs: [M, out_p] of each projection, in place. factors: the factors of each adapter; None: the adapter adds nothing.
    """
    for g, e, first, last in segments.spans:
        adapter = factors[g]
        if adapter is None:
            continue
        mine = slice(first, last) if segments.rows is None else segments.rows[first:last]
        shrunk = x[mine].to(adapter.a.dtype) @ adapter.a[e].T
        ranks = [b.shape[1] for b in adapter.bs]
        parts = zip(adapter.projections, torch.split(shrunk, ranks, 1), adapter.bs, adapter.scalings, strict=True)
        for p, h, b, scaling in parts:
            outs[p][mine] += (scaling * (h @ b[e])).to(x.dtype)
