"""The gated activation of the Llama family (Shazeer, 2020: SwiGLU) on a GPU.

Semantics:
    out[n, i] = silu(gate_up[n, i]) * gate_up[n, I + i]      0 <= i < I, in fp32, rounded once
"""

from __future__ import annotations

from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [N, 2I], contiguous -> [N, I] in its dtype; unlike the CPU's, its argument stays as it is."""
    raise NotImplementedError
