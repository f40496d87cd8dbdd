"""Penalties and biases on the tokens that a request names or its text holds, on a GPU.

Semantics, for each pair (row, token), where count is how often the token occurs in the row's completion:
    l = logits[row, token] + bias
    l = l / repetition if l > 0 else l * repetition        where the text, prompt included, holds the token
    l = l - frequency * count - presence                   where count > 0
with the row's own repetition, frequency and presence (`kernels.penalties` gives the sources).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class TokenPairs(NamedTuple):
    """K pairs, none twice. rows [K] int32, -1 for padding; token_ids [K] int32; counts [K] int32, -1 where the text
    does not hold the token at all, 0 where only the prompt does; biases [K] fp32."""

    rows: Tensor
    token_ids: Tensor
    counts: Tensor
    biases: Tensor


def penalize_(logits: Tensor, pairs: TokenPairs, repetition: Tensor, frequency: Tensor, presence: Tensor) -> None:
    """In place: logits [N, V] fp32; repetition > 0, frequency, presence: [N] fp32."""
    raise NotImplementedError


def penalize_reference(
    logits: Tensor, pairs: TokenPairs, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """By the definition, pair by pair: as `penalize_`, but logits stay as they are -> [N, V] fp32."""
    out = logits.clone()
    for row, token, count, bias in zip(*(tensor.tolist() for tensor in pairs), strict=True):
        if row < 0:
            continue
        value = out[row, token] + bias
        if count >= 0:
            value = value / repetition[row] if value > 0 else value * repetition[row]
        if count > 0:
            value = value - frequency[row] * count - presence[row]
        out[row, token] = value
    return out
