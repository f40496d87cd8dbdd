"""Multiplying by a frozen matrix, kept in the layout that the device multiplies fastest.

Semantics:
    linear(x)[n, o]     = sum_i x[n, i] * weight[o, i] + bias[o]
    linear.add(x, y)    = y + linear(x)                              rounded once

On a CPU in bfloat16 oneDNN multiplies blocked weights about twice as fast as plain ones at decode sizes, so they are
reordered once; everywhere else the plain matrix is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_HINT = 32  # of the input, for oneDNN's choice of blocks: measured the same from 1 to 512


class Embedding:
    """The rows of a table [V, H] by their numbers."""

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self.dtype, self.device = table.dtype, table.device

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the rows [N, H] of token_ids [N] integers, as a tensor that the caller may overwrite."""
        return self._table[token_ids]


class Linear:
    """Products with one matrix: weight [out, in], not kept when it is reordered; bias [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._reordered = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _onednn_multiplies_bf16()
        if self._reordered:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply x [N, in] by the matrix, add the bias, and return the result [N, out]."""
        if self._reordered:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return out
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return y [N, out] plus the product of x [N, in].

        y may be overwritten: on a GPU a copy of y would be one more launch.
        """
        if self._reordered:
            out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, y, self._weight, self._bias, "add")
            return out
        if y.is_cuda:
            return (y if self._bias is None else y.add_(self._bias)).addmm_(x, self._weight.T)
        return torch.addmm(y if self._bias is None else y + self._bias, x, self._weight.T)


def _onednn_multiplies_bf16() -> bool:
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
