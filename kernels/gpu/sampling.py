"""Choosing the next token of many sequences from their logits on a GPU: everything of a row in one program.

Semantics, the rule and the draws of `kernels.sampling`, for one row with temperature t > 0:
    p = softmax(logits / t)
    take the top_k most likely tokens, of these the most likely ones until top_p of their mass is reached, and every
    token as likely as the last one taken; of these keep the ones with p >= min_p * max(p)
    token = the first whose cumulative kept probability exceeds u times the whole, in the vocabulary's order,
    u = `kernels.sampling.uniform`(seed, position)
    with t = 0, the first of the most likely tokens
    -1 if the largest logit is NaN or infinite

The reference is `kernels.sampling.kept_probabilities_reference` with `uniform`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SamplingRows(NamedTuple):
    """What N rows ask for. temperature [N] fp32, 0: the most likely token; top_k [N] int32, 0 is off; top_p [N] fp32 in
    (0, 1], 1 is off; min_p [N] fp32 in [0, 1], 0 is off; seeds, positions [N] int64."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """logits [N, V] fp32, rows contiguous, not changed -> token ids [N] int64; -1 where a row has no finite maximum."""
    raise NotImplementedError
