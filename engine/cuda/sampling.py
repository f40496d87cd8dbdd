"""A token for every row of logits on a GPU, in one launch and without waiting (`engine.sampling.sampler.Choose`)."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
from torch import Tensor

from engine.sampling.choice import GREEDY_BELOW
from engine.sampling.logits_processors import Row
from engine.transfers import Transfers
from kernels.gpu.sampling import SamplingRows, sample

_LOW_64_BITS = (1 << 64) - 1


class TritonChoice:
    """Draws as `engine.sampling.choice` does: the same rule, the same random numbers."""

    def __init__(self, transfers: Transfers) -> None:
        self._put = transfers.put

    def __call__(self, logits: Tensor, rows: Many[Row]) -> Tensor:
        """logits [N, V] fp32 -> [N] int64, -1 where the largest is not finite."""
        params = [row.params for row in rows]
        temperatures = [p.temperature if p.temperature > GREEDY_BELOW else 0.0 for p in params]
        shares = np.array([temperatures, [p.top_p for p in params], [p.min_p for p in params]], dtype=np.float32)
        seeds = np.array([row.sequence.seed & _LOW_64_BITS for row in rows], dtype=np.uint64).view(np.int64)
        draws = np.stack([seeds, np.array([row.position for row in rows], dtype=np.int64)])
        top_k = self._put(np.array([max(p.top_k, 0) for p in params], dtype=np.int32))
        temperature, top_p, min_p = self._put(shares)
        seed, position = self._put(draws)
        return sample(logits, SamplingRows(temperature, top_k, top_p, min_p, seed, position))
