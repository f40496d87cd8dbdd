"""The gated activation of the Llama family (Shazeer, 2020: SwiGLU).

Semantics:
    out[n, i] = silu(gate_up[n, i]) * gate_up[n, I + i]      0 <= i < I
"""

from __future__ import annotations

import torch
from torch import Tensor


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """gate_up [N, 2I] -> [N, I] in its dtype, by the definition, in fp32."""
    gate, up = gate_up.float().chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [N, 2I] -> [N, I] in its dtype. Overwrites the gate half of its argument."""
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.silu(gate, inplace=True) * up
