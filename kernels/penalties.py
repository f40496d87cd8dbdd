"""Penalties on tokens that a text already holds.

Semantics, for one row and each token t, with count(t) how often it occurs in the completion:
    l[t] = l[t] / repetition if l[t] > 0 else l[t] * repetition   if t occurs in the prompt or the completion
                                                                   (Keskar et al., 2019: CTRL)
    l[t] = l[t] - frequency * count(t) - presence                  if count(t) > 0 (as OpenAI's API defines them)

Texts are short beside a vocabulary, so the work is done on the (row, token) pairs that occur, not on whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


def penalties_reference(
    logits: Tensor,
    prompt: Sequence[int],
    completion: Sequence[int],
    repetition: float,
    frequency: float,
    presence: float,
) -> Tensor:
    """Penalize the logits [V] of one row by the definition, and return them as [V] fp64."""
    penalized = logits.double().clone()
    for token in {*prompt, *completion}:
        value = penalized[token]
        penalized[token] = value / repetition if value > 0 else value * repetition
    for token in set(completion):
        penalized[token] -= frequency * completion.count(token) + presence
    return penalized


def occurring(texts: Sequence[Sequence[int]], vocab_size: int) -> tuple[Ints, Ints, Ints]:
    """Count each text's distinct tokens: return (index of the text, token id, number of occurrences), [K] each."""
    keys = [np.array(text, dtype=np.int64) + index * vocab_size for index, text in enumerate(texts)]
    pairs, counts = np.unique(np.concatenate(keys), return_counts=True)
    return pairs // vocab_size, pairs % vocab_size, counts


def penalize_repetition_(logits: Tensor, rows: Tensor, token_ids: Tensor, repetition: Tensor) -> None:
    """Penalize repetition in place: logits [N, V]; rows, token_ids [K] int64, no pair twice; repetition [K] > 0."""
    values = logits[rows, token_ids]
    logits[rows, token_ids] = torch.where(values > 0, values / repetition, values * repetition)
