"""The gated activations of decoders (Shazeer, 2020): SwiGLU of the Llama family, and GEGLU of Gemma.

Semantics, 0 <= i < I:
    silu_mul:  out[n, i] = silu(gate_up[n, i]) * gate_up[n, I + i]
    gelu_mul:  out[n, i] = gelu(gate_up[n, i]) * gate_up[n, I + i]
               gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))     (Hendrycks and Gimpel, 2016)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Return silu_mul [N, I] of gate_up [N, 2I] in its dtype, by the definition, in fp32."""
    gate, up = gate_up.float().chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu_mul [N, I] of gate_up [N, 2I] in its dtype. Overwrites the gate half of gate_up."""
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.silu(gate, inplace=True) * up


def gelu_mul_reference(gate_up: Tensor) -> Tensor:
    """Return gelu_mul [N, I] of gate_up [N, 2I] in its dtype, by the definition, in fp32."""
    gate, up = gate_up.float().chunk(2, -1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1 + torch.tanh(inner)) * up).to(gate_up.dtype)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return gelu_mul [N, I] of gate_up [N, 2I] in its dtype."""
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up
