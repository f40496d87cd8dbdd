"""Penalties and biases on the tokens that a request names or its text holds, on a GPU.

Semantics, for each pair (row, token), where count is how often the token occurs in the row's completion:
    l = logits[row, token] + bias
    l = l / repetition if l > 0 else l * repetition        where the text, prompt included, holds the token
    l = l - frequency * count - presence                   where count > 0
with the row's own repetition, frequency and presence (`kernels.penalties` gives the sources).
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of

BLOCK = 256


class TokenPairs(NamedTuple):
    """K pairs of a row and a token, none twice."""

    rows: Tensor
    """[K] int32, -1 for padding."""
    token_ids: Tensor
    """[K] int32, the token of each pair."""
    counts: Tensor
    """[K] int32, -1 where the text does not hold the token at all, 0 where only the prompt does."""
    biases: Tensor
    """[K] fp32, the bias that is added to the token's logit."""


def penalize_reference(
    logits: Tensor, pairs: TokenPairs, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """Return the penalized logits [N, V] fp32, by the definition, pair by pair.

    Arguments are as for `penalize_`, but logits stay as they are.
    """
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


@triton.jit(
    do_not_specialize=["num_pairs"],
    do_not_specialize_on_alignment=["rows", "token_ids", "counts", "biases", "repetition", "frequency", "presence"],
)
def _penalize_kernel(
    logits, stride, rows, token_ids, counts, biases, repetition, frequency, presence, num_pairs, BLOCK: tl.constexpr
):
    """Penalize BLOCK pairs."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    row = tl.load(rows + pair, mask=inside, other=-1)
    inside = row >= 0
    count = tl.load(counts + pair, mask=inside, other=-1)
    target = logits + row.to(tl.int64) * stride + tl.load(token_ids + pair, mask=inside, other=0)
    value = tl.load(target, mask=inside, other=0.0) + tl.load(biases + pair, mask=inside, other=0.0)
    factor = tl.load(repetition + row, mask=inside, other=1.0)
    value = tl.where(count >= 0, tl.where(value > 0, value / factor, value * factor), value)
    cost = tl.load(frequency + row, mask=inside, other=0.0) * count + tl.load(presence + row, mask=inside, other=0.0)
    tl.store(target, tl.where(count > 0, value - cost, value), mask=inside)


def penalize_launch(
    logits: Tensor, pairs: TokenPairs, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Launch:
    """Return the launch that changes logits [N, V] in place by the penalties of their pairs of row and token."""
    num_pairs = len(pairs.rows)
    arguments: Arguments = {
        "logits": logits,
        "stride": logits.stride(0),
        **pairs._asdict(),
        "repetition": repetition,
        "frequency": frequency,
        "presence": presence,
        "num_pairs": num_pairs,
        "BLOCK": BLOCK,
    }
    return Launch(_penalize_kernel, (blocks_of(num_pairs, BLOCK),), arguments)


def penalize_(logits: Tensor, pairs: TokenPairs, repetition: Tensor, frequency: Tensor, presence: Tensor) -> None:
    """Penalize the pairs in place: logits [N, V] fp32, elements of a row contiguous.

    repetition > 0, frequency, presence: [N] fp32.
    """
    penalize_launch(logits, pairs, repetition, frequency, presence).run()
