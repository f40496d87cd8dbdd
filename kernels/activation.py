"""The gated activations of decoders (Shazeer, 2020): SwiGLU of Llama, GEGLU of Gemma, and gpt-oss's bounded gate.

Semantics, 0 <= i < I:
    silu_mul:  out[n, i] = silu(gate_up[n, i]) * gate_up[n, I + i]
    gelu_mul:  out[n, i] = gelu(gate_up[n, i]) * gate_up[n, I + i]
               gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))     (Hendrycks and Gimpel, 2016)
    clamped_mul: out[n, i] = g * sigmoid(slope * g) * (u + 1)
               g = min(gate_up[n, i], bound), u = gate_up[n, I + i] between -bound and bound          (gpt-oss)
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


def clamped_mul_reference(gate_up: Tensor, slope: float, bound: float) -> Tensor:
    """Return clamped_mul [N, I] of gate_up [N, 2I] in its dtype, by the definition, in fp32.

    slope, bound: as in the module's semantics.
    """
    gate, up = gate_up.float().chunk(2, -1)
    gate, up = gate.clamp(max=bound), up.clamp(-bound, bound)
    return (gate * torch.sigmoid(slope * gate) * (up + 1)).to(gate_up.dtype)


def clamped_mul(gate_up: Tensor, slope: float, bound: float) -> Tensor:
    """Return clamped_mul [N, I] of gate_up [N, 2I] in its dtype. Overwrites gate_up.

    slope, bound: as in the module's semantics.
    """
    gate, up = gate_up.chunk(2, -1)
    gate.clamp_(max=bound)
    up.clamp_(-bound, bound).add_(1)
    return torch.sigmoid(gate * slope).mul_(gate).mul_(up)
