"""Low-rank adapters on experts: segments of rows that have one adapter and one expert.

Semantics, for row m of expert e and adapter g (none: nothing is added):
    out[m] += scaling_g * (x[m] @ A_ge^T) @ B_ge^T          A_ge [r, in], B_ge [out, r]

A's and B's of all experts of an adapter lie side by side, and so do adapters of a table: the pair (g, e) is one of
G * E virtual adapters. B's lie transposed, as in `kernels.lora`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.experts import ExpertRows

GATHERED_ELEMENTS = 1 << 22
"""The most elements of A's that are copied side by side, which few rows take; above, segments go one by one."""


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


def add_expert_lora_(
    outs: Sequence[Tensor],
    x: Tensor,
    rows: ExpertRows,
    adapters: Tensor,
    a: Tensor,
    bs: Sequence[Tensor],
    scale: Tensor | None,
) -> None:
    """Add to each row the deltas of its adapter's matrices for its expert, for projections p that share x [M, in].

    outs: [M, out_p] of each projection, in place; adapters: as for the reference; a [G, E, sum(r_p), in]; bs
    [G, E, r_p, out_p]; scale [G, 1, sum(r_p)] fp32, None: multiplied into bs.
    """
    num_experts = a.shape[1]
    mine = (adapters >= 0).nonzero()[:, 0]
    if not len(mine):
        return
    of = adapters[mine], experts_of(rows)[mine]
    sizes = [b.shape[2] for b in bs]
    # The adapters of a table do not lie next to each other, so that a view of virtual adapters would be a copy of all.
    if len(mine) * a.shape[2] * a.shape[3] <= GATHERED_ELEMENTS:
        shrunk = torch.bmm(x[mine].to(a.dtype)[:, None], a[of].mT)
        shrunk = shrunk if scale is None else (shrunk * scale[of[0]]).to(a.dtype)
        deltas = [torch.bmm(h, b[of])[:, 0] for h, b in zip(torch.split(shrunk, sizes, 2), bs, strict=True)]
    else:
        virtual = of[0] * num_experts + of[1]
        order = virtual.argsort(stable=True)
        mine = mine[order]
        pairs, counts = torch.unique_consecutive(virtual[order], return_counts=True)
        found: list[list[Tensor]] = []
        for pair, part in zip(pairs.tolist(), torch.split(x[mine].to(a.dtype), counts.tolist()), strict=True):
            g, e = divmod(pair, num_experts)
            shrunk = part @ a[g, e].T
            shrunk = shrunk if scale is None else (shrunk * scale[g]).to(a.dtype)
            found.append([h @ b[g, e] for h, b in zip(torch.split(shrunk, sizes, 1), bs, strict=True)])
        deltas = [torch.cat(of_projection) for of_projection in zip(*found, strict=True)]
    for out, delta in zip(outs, deltas, strict=True):
        out[mine] = (out[mine] + delta).to(out.dtype)
