"""A token for every row of logits on a CPU: the most likely one, or a draw after temperature and truncation.

A row that asks for no draw takes part in one maximum over the logits, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.sampling.logits_processors import Row
from kernels.sampling import most_likely, sample, uniform

GREEDY_BELOW = 1e-5  # a temperature that would overflow fp32 means the most likely token


def choose_on_host(logits: Tensor, rows: Many[Row]) -> Tensor:
    """Choose a token per row as `engine.sampling.sampler.Sampler` says: logits [N, V] fp32 -> [N] int64."""
    best, token_ids = most_likely(logits)
    random = [i for i, row in enumerate(rows) if row.params.temperature > GREEDY_BELOW]
    if random:
        drawing = logits if len(random) == len(rows) else logits[random]
        token_ids[random] = _draw(drawing, [rows[i] for i in random])
    return torch.where(torch.isfinite(best), token_ids, -1)


def _draw(logits: Tensor, rows: Many[Row]) -> Tensor:
    params = [row.params for row in rows]

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)

    return sample(
        logits,
        temperature=column([p.temperature for p in params]),
        top_k=column([max(p.top_k, 0) for p in params], torch.int64),
        top_p=column([p.top_p for p in params]),
        min_p=column([p.min_p for p in params]),
        u=column([uniform(row.sequence.seed, row.position) for row in rows], torch.float64),
    )
