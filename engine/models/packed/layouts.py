"""The orders in which tools pack integers into 32 bits. Each function knows the order and checks no shape.

Sources: AutoAWQ's `awq/modules/linear/{gemm,gemv}.py`, GPTQModel's `nn_modules/qlinear`, compressed-tensors'
`compressors/pack_quantized/helpers.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

# AutoAWQ's GEMM puts column AWQ_COLUMNS[i] of eight at the i-th four bits; this is the place of each column.
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


def unpacked(words: Tensor, bits: int, places: tuple[int, ...] | None = None) -> Tensor:
    """Return the integers of words along their last dimension, the lowest bits first.

    words [..., n] int32 -> [..., n * 32 / bits] uint8. places: the place of each integer within a word; None: the
    integers lie in order.
    """
    every = torch.arange(32 // bits) if places is None else torch.tensor(places)
    shifts = (every * bits).to(words.device, torch.int32)
    spread = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return spread.to(torch.uint8).flatten(-2)


def awq_gemm(words: Tensor) -> Tensor:
    """Return the integers [in, out] of AutoAWQ's GEMM words [in, out / 8]."""
    return unpacked(words, 4, AWQ_PLACES)


def gptq_rows(words: Tensor, bits: int) -> Tensor:
    """Return the integers [out, in] of GPTQ's weights [in * bits / 32, out]."""
    return unpacked(words.T.contiguous(), bits)


def gptq_zeros(words: Tensor, bits: int, *, is_first: bool) -> Tensor:
    """Return the zero points [G, out] of GPTQ's words [G, out * bits / 32].

    is_first: True for GPTQ's first format, which stores each zero point less one. One is added to all integers of a
    word at once, as it was subtracted, so that borrows between neighbouring integers are undone.
    """
    ones = sum(1 << (bits * place) for place in range(32 // bits))
    return unpacked(words + torch.tensor(ones, dtype=torch.int32) if is_first else words, bits)
