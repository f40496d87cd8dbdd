"""Logits changed as requests ask, and a token for every row, on a GPU: one launch each, without waiting."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling.choice import GREEDY_BELOW
from engine.sampling.logits_processors import Put, Row
from engine.transfers import Transfers
from kernels.gpu.penalties import TokenPairs, penalize_
from kernels.gpu.sampling import SamplingRows, sample
from kernels.penalties import Ints, occurring

_LOW_64_BITS = (1 << 64) - 1


class TritonChoice:
    """`engine.sampling.sampler.Choose` on a GPU. Draws by the same rule and numbers as `engine.sampling.choice`."""

    def __init__(self, transfers: Transfers) -> None:
        self._put = transfers.put

    def __call__(self, logits: Tensor, rows: Many[Row]) -> Tensor:
        """Choose a token per row: logits [N, V] fp32 -> [N] int64, -1 where the largest is not finite."""
        params = [row.params for row in rows]
        temperatures = [p.temperature if p.temperature > GREEDY_BELOW else 0.0 for p in params]
        shares = np.array([temperatures, [p.top_p for p in params], [p.min_p for p in params]], dtype=np.float32)
        seeds = np.array([row.sequence.seed & _LOW_64_BITS for row in rows], dtype=np.uint64).view(np.int64)
        draws = np.stack([seeds, np.array([row.position for row in rows], dtype=np.int64)])
        top_k = self._put(np.array([max(p.top_k, 0) for p in params], dtype=np.int32))
        temperature, top_p, min_p = self._put(shares)
        seed, position = self._put(draws)
        return sample(logits, SamplingRows(temperature, top_k, top_p, min_p, seed, position))


def penalize_rows_(logits: Tensor, rows: Many[Row], put: Put) -> None:
    """Apply logit_bias and the penalties of all rows that ask for any: `engine.sampling.logits_processors.Adjust`."""
    params = [row.params for row in rows]
    penalized = [
        i for i, p in enumerate(params) if p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0
    ]
    if not penalized and not any(p.logit_bias for p in params):
        return
    factors = [[p.repetition_penalty, p.frequency_penalty, p.presence_penalty] for p in params]
    repetition, frequency, presence = put(np.array(factors, dtype=np.float32).T.copy())
    pairs = TokenPairs(*(put(column) for column in _token_pairs(rows, penalized, logits.shape[1])))
    penalize_(logits, pairs, repetition, frequency, presence)


def _token_pairs(rows: Many[Row], penalized: Many[int], vocab_size: int) -> tuple[NDArray[Any], ...]:
    """Return each (row, token) that is biased, or in the text of a row that is penalized: see `TokenPairs`."""
    biased = {
        i * vocab_size + token: bias for i, row in enumerate(rows) for token, bias in row.params.logit_bias.items()
    }
    bias_keys = np.array(list(biased), dtype=np.int64)
    text_keys, _ = _occurring(penalized, [rows[i].token_ids for i in penalized], vocab_size)
    completion_keys, completion_counts = _occurring(penalized, [rows[i].completion for i in penalized], vocab_size)
    keys = np.unique(np.concatenate((bias_keys, text_keys)))
    counts = np.full(len(keys), -1, dtype=np.int32)
    counts[np.searchsorted(keys, text_keys)] = 0
    counts[np.searchsorted(keys, completion_keys)] = completion_counts
    biases = np.zeros(len(keys), dtype=np.float32)
    biases[np.searchsorted(keys, bias_keys)] = list(biased.values())
    return (keys // vocab_size).astype(np.int32), (keys % vocab_size).astype(np.int32), counts, biases


def _occurring(indexes: Many[int], texts: Many[list[int]], vocab_size: int) -> tuple[Ints, Ints]:
    """Return row * vocab_size + token of each distinct token of these rows' texts, and how often it occurs there."""
    if not texts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    text, token_ids, counts = occurring(texts, vocab_size)
    return np.array(indexes, dtype=np.int64)[text] * vocab_size + token_ids, counts
