"""The gated activations of decoders (Shazeer, 2020) on a GPU: SwiGLU of the Llama family, and GEGLU of Gemma.

Semantics, 0 <= i < I, in fp32, rounded once:
    silu_mul:  out[n, i] = silu(gate_up[n, i]) * gate_up[n, I + i]
    gelu_mul:  out[n, i] = gelu(gate_up[n, i]) * gate_up[n, I + i]
               gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gpu.launch import Arguments, Launch, blocks_of

BLOCK = 1024


@triton.jit
def _gated_kernel(out, gate_up, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Compute BLOCK columns of one row; with GELU the gate goes through gelu instead of silu."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < width
    gate = tl.load(gate_up + row * 2 * width + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + i, mask=inside, other=0.0).to(tl.float32)
    # 1 + tanh(u) = 2 / (1 + exp(-2 u)), so that both are the gate by one plus an exponential.
    inner = gate
    if GELU:  # below -80 the result is 0, and the exponential of the cube would not be finite
        inner = tl.maximum(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate), -80.0)
    result = gate / (1.0 + tl.exp(-inner)) * up
    tl.store(out + row * width + i, result.to(out.dtype.element_ty), mask=inside)


def gated_launch(out: Tensor, gate_up: Tensor, *, gelu: bool = False) -> Launch:
    """Return the launch of `gelu_mul`, or of `silu_mul`."""
    num_rows, width = out.shape
    arguments: Arguments = {"out": out, "gate_up": gate_up, "width": width, "GELU": gelu, "BLOCK": BLOCK}
    return Launch(_gated_kernel, (num_rows, blocks_of(width, BLOCK)), arguments)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu_mul [N, I] of gate_up [N, 2I], contiguous, in its dtype. Unlike on a CPU, gate_up stays as it is."""
    return _gated_activation(gate_up, gelu=False)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return gelu_mul [N, I] of gate_up [N, 2I], contiguous, in its dtype. gate_up stays as it is."""
    return _gated_activation(gate_up, gelu=True)


def _gated_activation(gate_up: Tensor, *, gelu: bool) -> Tensor:
    num_rows, width = gate_up.shape
    out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    gated_launch(out, gate_up, gelu=gelu).run()
    return out
