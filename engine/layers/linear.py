"""A frozen matrix and its bias, in the layout the device multiplies fastest.

On a CPU in bfloat16 oneDNN multiplies blocked weights about twice as fast as plain ones at decode sizes, so they are
reordered once; everywhere else the plain matrix is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS_HINT = 32  # of the input, for oneDNN's choice of blocks: measured the same from 1 to 512


class Linear:
    """x [N, in] -> x @ weight.T + bias [N, out], for a weight [out, in] that is not kept when it is reordered."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._reordered = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and _onednn_multiplies_bf16()
        if self._reordered:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._reordered:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return out
        return torch.nn.functional.linear(x, self._weight, self._bias)


def _onednn_multiplies_bf16() -> bool:
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
